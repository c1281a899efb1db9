"""Tables and CoNLL files are written in the format of the input: values, shards, resumed runs, and `snugbert ner`."""

import csv
import gzip
import io
import json
from pathlib import Path

import family_checkpoints
import pytest

import snugbert.prediction.predict_file as run
from snugbert.data.tables import read_rows
from snugbert.tasks.tagged_sentences import convert_tags
from snugbert_cli import main

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = family_checkpoints.WORDS
HEADS = {
    "classifier": ("ForSequenceClassification", ["good; ok", "bad, poor"]),
    "tagger": ("ForTokenClassification", ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder with a classifier and a tagger."""
    root = tmp_path_factory.mktemp("models")
    for name, (head, labels) in HEADS.items():
        fields = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
        family_checkpoints.write_checkpoint(root / name, "bert", head, initializer_range=0.2, **fields)
    return root


def predict(model: Path, source: Path, output: str, *arguments: str) -> Path:
    """Predicts a file, and returns the output next to it."""
    files = ["--input_file", str(source), "--output_file", str(source.with_name(output))]
    assert main(["predict", "--model_name_or_path", str(model), *files, *arguments]) == 0
    return source.with_name(output)


def predict_in_shards(model: Path, source: Path, suffix: str) -> bytes:
    """Predicts a file in more shards than it has windows, and joins them."""
    for number in range(1, 4):
        predict(model, source, f"part{suffix}", "--shard", f"{number}/3")
    return b"".join(file.read_bytes() for file in sorted(source.parent.glob(f"part-*{suffix}")))


def interrupt_and_predict(model: Path, source: Path, output: str, monkeypatch) -> bytes:
    """Interrupts a run after its second window, and continues it."""
    write, states = run.write_atomically, iter(range(2))
    with monkeypatch.context() as context:
        context.setattr(run, "write_atomically", lambda *arguments: write(*arguments) or next(states))
        with pytest.raises(StopIteration):
            predict(model, source, output)
    return predict(model, source, output).read_bytes()


def values_of(file: Path) -> list[dict]:
    return [values for _, values in read_rows(file)]


TEXTS = ['Ann, "who" is', "a; b\nand\rc", "", "was \u2028 it", "ü, ß", "who"]


@pytest.mark.parametrize(("start", "separator"), [("", "\t"), ("\ufeff", ";"), ("one column", ",")])
def test_csv(models, tmp_path, monkeypatch, start, separator):
    monkeypatch.setattr(run, "WINDOW_ROWS", 2)
    model, table = models / "classifier", io.StringIO()
    rows = [[text] if start == "one column" else [str(number), text] for number, text in enumerate(TEXTS)]
    header = ["text"] if start == "one column" else ["id; n, o|p", "text"]
    csv.writer(table, delimiter=separator, quoting=csv.QUOTE_ALL).writerows([header, *rows])
    source = tmp_path / "rows.csv.gz"
    source.write_bytes(gzip.compress((start.replace("one column", "") + table.getvalue()).encode()))

    whole = predict(model, source, "out.csv").read_bytes()
    assert whole.startswith("\ufeff".encode()) == (start == "\ufeff")
    # The output can be read again as CSV, with the values of the JSON lines.
    found, expected = values_of(tmp_path / "out.csv"), values_of(predict(model, source, "out.jsonl"))
    assert [row | {"probabilities": json.loads(row["probabilities"])} for row in found] == expected
    assert [row["text"] for row in found] == TEXTS and len(expected[0]) == len(header) + 2
    assert predict_in_shards(model, source, ".csv") == whole
    assert interrupt_and_predict(model, source, "resumed.csv", monkeypatch) == whole


def test_tsv_and_entities(models, tmp_path):
    source = tmp_path / "rows.tsv"
    source.write_text("id\ttext\n" + "".join(f'{number}\t"{text}\n' for number, text in enumerate(WORDS)))
    whole = predict(models / "tagger", source, "out.tsv")
    expected = values_of(predict(models / "tagger", source, "out.jsonl"))
    assert [row | {"entities": json.loads(row["entities"])} for row in values_of(whole)] == expected
    assert any(row["entities"] for row in expected)
    assert predict_in_shards(models / "tagger", source, ".tsv") == whole.read_bytes()


def make_conll(line_end: str) -> str:
    """Sentences in IOB1, with comments, documents, several blank lines and a byte order mark."""
    sentences = [
        "".join(
            f"{WORDS[(index + 3 * word) % len(WORDS)]} NN {'I-PER' if word % 3 else 'O'}\n" for word in range(index)
        )
        for index in [*range(1, 12), 200]  # the last one takes several windows
    ]
    document = "-DOCSTART- -X- O\n\n"
    text = f"\ufeff{document}# id = 1 2\n" + "\n".join(sentences) + f"\n\n{document}a NN O\n\n\n# end\n"
    return text.replace("\n", line_end)


@pytest.mark.parametrize("line_end", ["\n", "\r"])
def test_conll_like_ner(models, tmp_path, monkeypatch, line_end):
    monkeypatch.setattr(run, "WINDOW_ROWS", 2)
    tagger, source = models / "tagger", tmp_path / "test.conll"
    source.write_bytes(make_conll(line_end).encode())
    whole = predict(tagger, source, "out.conll").read_bytes()
    if line_end == "\n":
        arguments = ["--test_file", str(source), "--do_predict", "--output_dir", str(tmp_path / "ner"), "--use_cpu"]
        assert main(["ner", "--model_name_or_path", str(tagger), *arguments]) == 0
        assert whole == (tmp_path / "ner" / "predictions.conll").read_bytes() != source.read_bytes()
    assert whole.count(line_end.encode()) == make_conll("\n").count("\n")
    assert predict_in_shards(tagger, source, ".conll") == whole
    assert interrupt_and_predict(tagger, source, "resumed.conll", monkeypatch) == whole
    # The same tags as for JSON, which are in the labels of the model.
    rows = values_of(predict(tagger, source, "out.jsonl"))
    lines = whole.decode().replace(line_end, "\n").split("\n")
    cells = [line.split() for line in lines if line and not line.strip("\ufeff").startswith(("-DOC", "# "))]
    assert [word for row in rows for word in row["tokens"]] == [word for word, _, _ in cells]
    assert [tag[1:].strip("-") for row in rows for tag in row["predicted_tags"]] == [tag[2:] for *_, tag in cells]


def test_conll_columns(models, tmp_path, caplog):
    words = [WORDS[0], WORDS[1]]
    (tmp_path / "words.jsonl").write_text(json.dumps({"tokens": words}))
    (row,) = values_of(predict(models / "tagger", tmp_path / "words.jsonl", "out.jsonl"))
    first, second = convert_tags(row["predicted_tags"], "bio")
    column = ("--text_column_names", "2")
    for name, content, expected, flags in (
        ("words.txt", "-DOCSTART-\n\n{}\n{}\n", "-DOCSTART- O\n\n{} {}\n{} {}\n", ()),
        ("pos.conll", "{} NN\n{} O\n", "{} NN {}\n{} O {}\n", ()),
        ("ids.conllu", "# text = a b\n1\t{}\t_\n2\t{}\t_\n", "# text = a b\n1\t{}\t_\t{}\n2\t{}\t_\t{}\n", column),
        ("bare.conll", "{} B\n{} I\n", "{} {}\n{} {}\n", ()),
        ("last.conll", "1 {}\n2 {}", "1 {} {}\n2 {} {}", column),
    ):
        source = tmp_path / name
        source.write_text(content.format(*words))
        output = predict(models / "tagger", source, f"out{source.suffix}", "--overwrite_output_file", *flags)
        assert output.read_text() == expected.format(words[0], first, words[1], second)
    assert "pos.conll, line 1: 'NN' is not an entity tag. Predictions are written to a new column." in caplog.text
    assert "only numbers" not in caplog.text
    predict(models / "tagger", tmp_path / "ids.conllu", "other.jsonl")
    assert "If the words are in column 2, set --text_column_names 2." in caplog.text
