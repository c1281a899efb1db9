"""`snugbert predict`: every head next to transformers or sentence-transformers, resumed runs and bad input.

Tables and CoNLL files are written in the format of the input: values, shards, resumed runs, and `snugbert ner`.
"""

import csv
import gzip
import io
import json
import os
import re
import shutil
from itertools import chain, pairwise
from pathlib import Path

import family_checkpoints
import forked
import numpy as np
import pytest
import torch
import transformers
from scipy.special import expit, softmax
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import pipeline

import snugbert
import snugbert.prediction.predict_file as run
import snugbert.prediction.predictor
from snugbert.data.tables import read_rows
from snugbert.tasks.tagged_sentences import convert_tags
from snugbert_cli import main

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = family_checkpoints.WORDS


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Returns a function that writes a tiny stock checkpoint of a head, with larger weights: distinct predictions."""
    root = tmp_path_factory.mktemp("checkpoints")

    def write(head: str, family: str = "bert", **fields) -> Path:
        folder = root / f"{family}-{head}-{len(fields.get('id2label', ())) or fields.get('num_labels')}"
        if not folder.exists():
            family_checkpoints.write_checkpoint(folder, family, head, initializer_range=0.2, **fields)
        return folder

    return write


@pytest.fixture(params=[None, 96], ids=["rows", "filled rows"])
def rows_of_all_kinds(request, monkeypatch):
    """Rows as they are, and filled up to a multiple of 96 tokens as on a GPU."""
    monkeypatch.setattr(snugbert.prediction.predictor, "choose_prediction_multiple", lambda *_: request.param)


def make_texts(number: int = 40) -> list[str]:
    """Texts of 1 to 60 words in no order of length."""
    return [
        " ".join(WORDS[(7 * index + step) % len(WORDS)] for step in range(1 + index * 23 % 60))
        for index in range(number)
    ]


def write_rows(file: Path, rows: list[dict]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def predict_file(model: Path, source: Path, output: str, *arguments: str, status: int = 0) -> Path:
    """Predicts a file, and returns the output next to it."""
    files = ["--input_file", str(source), "--output_file", str(source.with_name(output))]
    assert main(["predict", "--model_name_or_path", str(model), *files, *arguments]) == status
    return source.with_name(output)


def predict(tmp_path: Path, model: Path, rows: list[dict], *arguments: str) -> list[dict]:
    source = write_rows(tmp_path / "rows.jsonl", rows)
    return values_of(predict_file(model, source, "out.jsonl", "--overwrite_output_file", *arguments))


def values_of(file: Path) -> list[dict]:
    return [values for _, values in read_rows(file)]


def name_labels(*labels: str) -> dict[str, dict]:
    return {"id2label": dict(enumerate(labels)), "label2id": {label: number for number, label in enumerate(labels)}}


@pytest.fixture(scope="module")
def tagger(checkpoint) -> Path:
    return checkpoint("ForTokenClassification", **name_labels("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))


@pytest.fixture(scope="module")
def classifier(checkpoint) -> Path:
    return checkpoint("ForSequenceClassification", **name_labels("good; ok", "bad, poor"))


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.usefixtures("rows_of_all_kinds")
def test_a_classifier_predicts_like_the_pipeline(checkpoint, tmp_path, family):
    model = checkpoint("ForSequenceClassification", family, num_labels=3)
    rows = [{"id": index, "text": text} for index, text in enumerate(make_texts())]
    found = predict(tmp_path, model, rows, "--max_batch_tokens", "100")
    assert [{name: row[name] for name in ("id", "text")} for row in found] == rows
    classify = pipeline("text-classification", str(model), top_k=None)
    for row, expected in zip(found, classify([row["text"] for row in rows]), strict=True):
        assert row["predicted_label"] == expected[0]["label"]
        assert row["probabilities"] == pytest.approx({each["label"]: each["score"] for each in expected}, abs=1e-5)
    exact = [row["probabilities"]["LABEL_0"] for row in found]
    assert np.std(exact) > 0.001
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.jsonl", "rows.jsonl"]
    rounded = predict(tmp_path, model, rows, "--bf16")
    assert exact != [row["probabilities"]["LABEL_0"] for row in rounded] == pytest.approx(exact, abs=0.05)


def test_pairs_several_labels_and_numbers(checkpoint, tmp_path):
    model = transformers.BertForSequenceClassification.from_pretrained(checkpoint("ForSequenceClassification"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint("ForSequenceClassification"))
    texts = make_texts()
    rows = [{"sentence1": first, "sentence2": second} for first, second in pairwise(texts)]
    inputs = tokenizer(*([row[name] for row in rows] for name in rows[0]), padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits
    tokenizer.save_pretrained(tmp_path / "model")
    for problem in ("multi_label_classification", "regression"):
        model.config.problem_type = problem
        model.save_pretrained(tmp_path / "model")
        found = predict(tmp_path, tmp_path / "model", rows)
        for row, expected in zip(found, logits.tolist(), strict=True):
            if problem == "regression":
                assert row["predicted_label"] == pytest.approx(expected, abs=1e-5)
            else:
                assert row["predicted_label"] == [f"LABEL_{index}" for index in range(2) if expected[index] > 0]
                assert list(row["probabilities"].values()) == pytest.approx(expit(expected).tolist(), abs=1e-5)


@pytest.mark.usefixtures("rows_of_all_kinds")
def test_words_and_texts_are_tagged_like_the_pipeline(tagger, tmp_path):
    texts = [f"  {text}, ok" for text in make_texts()]
    found = predict(tmp_path, tagger, [{"text": text} for text in texts])
    tag = pipeline("token-classification", str(tagger), aggregation_strategy="first")
    for row, expected in zip(found, tag(texts), strict=True):
        spans = [(each["label"], each["start"], each["end"]) for each in row["entities"]]
        assert spans == [(each["entity_group"], each["start"], each["end"]) for each in expected]
        scores = [each["score"] for each in row["entities"]]
        assert scores == pytest.approx([float(each["score"]) for each in expected], abs=1e-5)
        assert all(row["text"][each["start"] : each["end"]] == each["text"] for each in row["entities"])
    assert sum(len(row["entities"]) for row in found) > len(texts)

    words = [{"tokens": text.replace(",", " ,").split()} for text in texts] + [{"tokens": WORDS * 30}]
    tagged = predict(tmp_path, tagger, words)
    assert [len(row["predicted_tags"]) for row in tagged] == [len(row["tokens"]) for row in words]
    assert len(tagged[-1]["tokens"]) > 512


@pytest.mark.usefixtures("rows_of_all_kinds")
def test_questions_and_choices(checkpoint, tmp_path, monkeypatch):
    model = checkpoint("ForQuestionAnswering")
    texts = make_texts(12)
    rows = [{"question": "who was it?", "context": text} for text in [*texts, " ".join(WORDS * 20)]]
    found = predict(tmp_path, model, rows)
    answerer = snugbert.QuestionAnswerer(model)
    monkeypatch.setattr(snugbert.prediction.predictor, "choose_prediction_multiple", lambda *_: None)
    for row in found:
        expected = answerer(question=row["question"], context=row["context"])
        assert row["answer"] == expected["answer"] and row["score"] == pytest.approx(expected["score"], abs=1e-5)

    model = checkpoint("ForMultipleChoice")
    rows = [{"text": text, "choices": texts[: 2 + index % 3]} for index, text in enumerate(texts)]
    stock = transformers.BertForMultipleChoice.from_pretrained(model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    for row in predict(tmp_path, model, rows):
        inputs = tokenizer([row["text"]] * len(row["choices"]), row["choices"], padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = stock(**{name: values[None] for name, values in inputs.items()}).logits[0].numpy()
        assert row["probabilities"] == pytest.approx(softmax(logits).tolist(), abs=1e-5)
        assert row["predicted_choice"] == logits.argmax()


def test_embeddings_and_scores_equal_sentence_transformers(checkpoint, tmp_path):
    encoder = Transformer(str(checkpoint("Model")))
    pooling = Pooling(encoder.get_embedding_dimension(), "cls")
    model = SentenceTransformer(modules=[encoder, pooling, Normalize()], prompts={"query": "who is "})
    model.save_pretrained(str(tmp_path / "encoder"))
    texts = make_texts()
    found = predict(tmp_path, tmp_path / "encoder", [{"text": text} for text in texts], "--prompt_name", "query")
    embeddings = np.array([row["embedding"] for row in found], np.float32)
    np.testing.assert_allclose(embeddings, model.encode(texts, prompt_name="query"), atol=1e-5)

    reranker = CrossEncoder(str(checkpoint("ForSequenceClassification", num_labels=1)))
    reranker.save_pretrained(str(tmp_path / "reranker"))
    found = predict(tmp_path, tmp_path / "reranker", [{"query": texts[0], "text": text} for text in texts])
    expected = CrossEncoder(str(tmp_path / "reranker")).predict([(texts[0], text) for text in texts])
    assert [row["score"] for row in found] == pytest.approx(expected.tolist(), abs=1e-5)


def predict_and_die(arguments: list[str]) -> None:
    """The process dies while it writes the third window."""
    write, calls = run.write_atomically, []

    def write_or_die(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            os._exit(9)
        write(*arguments)

    run.WINDOW_ROWS, run.write_atomically = 8, write_or_die
    main(arguments)


def test_a_killed_run_continues_and_gives_the_same_file(checkpoint, tmp_path, monkeypatch, caplog, capsys):
    """The output is in the model's folder. Its partial files do not count as a change of the model."""
    model, rows = tmp_path / "model", [{"text": text} for text in make_texts()]
    output = model / "out.jsonl"
    shutil.copytree(checkpoint("ForSequenceClassification"), model)
    source = write_rows(tmp_path / "rows.jsonl", rows)
    monkeypatch.setattr(run, "WINDOW_ROWS", 8)
    arguments = ["predict", "--model_name_or_path", str(model), "--input_file", str(source)]
    assert main([*arguments, "--output_file", str(tmp_path / "straight.jsonl")]) == 0

    arguments += ["--output_file", str(output)]
    assert forked.run(predict_and_die, arguments).returncode == 9
    assert not output.exists()
    partial = model / "out.jsonl.partial"
    assert partial.read_bytes().count(b"\n") == 24  # more than the 16 rows of the state

    assert main([*arguments, "--max_seq_length", "9"]) == 2
    assert re.search(r"--max_seq_length +- +9", capsys.readouterr().err)
    content = partial.read_bytes()
    partial.write_bytes(content[:9])
    assert main(arguments) == 2 and partial.read_bytes() == content[:9]
    assert "out.jsonl.partial is damaged. Add --overwrite_output_file" in capsys.readouterr().err
    partial.write_bytes(content + b'{"text": "torn')
    caplog.clear()
    assert main(arguments) == 0
    assert "continuing after 16 rows" in caplog.text
    assert output.read_bytes() == (tmp_path / "straight.jsonl").read_bytes()
    assert len(values_of(output)) == len(rows)
    assert main(arguments) == 2  # the output exists


def test_each_process_of_a_launcher_predicts_a_shard(checkpoint, tmp_path, monkeypatch, caplog):
    model, rows, used = checkpoint("ForSequenceClassification"), [{"text": text} for text in make_texts()], []
    whole = predict(tmp_path, model, rows, "--max_seq_length", "32")
    assert "21 of 40 texts (52.5%) are longer than" in caplog.text
    monkeypatch.setattr(run, "choose_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", used.append)
    for rank in range(3):
        for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 3}.items():
            monkeypatch.setenv(name, str(value))
        predict(tmp_path, model, rows, "--max_seq_length", "32")
    assert used == [0, 1, 0]
    parts = [values_of(tmp_path / f"out-0000{rank}-of-00003.jsonl") for rank in range(3)]
    assert [len(part) for part in parts] == [13, 13, 14]
    for ours, expected in zip(chain(*parts), whole, strict=True):
        assert (ours["text"], ours["predicted_label"]) == (expected["text"], expected["predicted_label"])


def test_bad_rows_are_refused_or_left_out_by_line(checkpoint, tmp_path, capsys, caplog):
    source, output = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    lines = ['{"text": "one"}', "not JSON", '{"text": null}', '{"text": "\\ud83d"}', "", '{"text": "two", "n": NaN}']
    source.write_text("\n".join([*lines, '{"text": "tw\xff"}']), encoding="latin-1")
    files = ["--input_file", str(source), "--output_file", str(output)]
    arguments = ["predict", "--model_name_or_path", str(checkpoint("ForSequenceClassification")), *files]
    assert main(arguments) == 2
    assert "rows.jsonl, row 2: not JSON" in capsys.readouterr().err and not list(tmp_path.glob("out*"))
    assert main([*arguments, "--on_bad_text", "skip"]) == 0
    assert [row["text"] for row in values_of(output)] == ["one", "two"]
    assert values_of(output)[-1]["n"] is None  # JSON has no NaN
    for row, problem in ((2, "not JSON"), (3, "no text in column 'text'"), (4, "an unpaired surrogate")):
        assert re.search(rf"rows.jsonl, row {row}: .*{problem}", caplog.text)
    assert main([*arguments, "--on_bad_text", "replace", "--overwrite_output_file"]) == 0
    assert [row["text"] for row in values_of(output)] == ["one", "two", "tw\ufffd"]


TEXT, TAGS, ANSWERS = "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"
ROW = '{"text": "a"}'


@pytest.mark.parametrize(
    ("head", "name", "content", "arguments", "message"),
    [
        ("ForMaskedLM", "a.jsonl", ROW, "", "names BertForMaskedLM. Expected a fine-tuned model"),
        (TEXT, "a.jsonl", '{"a": 1}', "", "'text' or column 'sentence'. Columns: 'a'. Set --"),
        (TEXT, "a.jsonl", ROW, "--text_column_names a,b,c", "this model reads 1 or 2 text columns, not 3"),
        (TEXT, "a.jsonl", '{"text": "a", "probabilities": 1}', "", "'probabilities' would be overwritten"),
        (TEXT, "a.csv", "a", "--output_file a.tsv", "must be a file that ends in .jsonl or, like the input,"),
        (TEXT, "a.csv", "text,id\n", "", "has no rows."),
        (TEXT, "a.jsonl", '{"text": null}', "--on_bad_text skip --text_column_names text", "no rows that can be read"),
        (TEXT, "a.csv", "größe,text\n1,a\n", "", "a.csv, line 1: not UTF-8"),
        (TEXT, "a.txt", "a text\n", "", "--input_file: only models that label tokens can read"),
        (TAGS, "a.conll", "a O\n", "--text_column_names tokens", "columns of a CoNLL file have no names"),
        (TAGS, "a.conll", "ü O\n", "--on_bad_text skip", "a.conll, line 1: not UTF-8"),
        (ANSWERS, "a.csv", f"question,context\n{'a ' * 65},b", "", "row 2: the question has 65 tokens"),
        (ANSWERS, "a.csv", "question,context\na,b", "--max_seq_length 99 --doc_stride 95", "leaves 95 for the"),
    ],
)
def test_errors(checkpoint, tmp_path, capsys, head, name, content, arguments, message):
    (tmp_path / name).write_text(content, encoding="latin-1" if "not UTF-8" in message else "utf-8")
    files = ["--input_file", str(tmp_path / name), "--output_file", str(tmp_path / "out.jsonl")]
    model = str(checkpoint(head))
    assert main(["predict", "--model_name_or_path", model, *files, *arguments.split()]) == 2
    assert message in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == [name]


# --- formats


def predict_in_shards(model: Path, source: Path, suffix: str) -> bytes:
    """Predicts a file in more shards than it has windows, and joins them."""
    for number in range(1, 4):
        predict_file(model, source, f"part{suffix}", "--shard", f"{number}/3")
    return b"".join(file.read_bytes() for file in sorted(source.parent.glob(f"part-*{suffix}")))


def interrupt_and_predict(model: Path, source: Path, output: str, monkeypatch) -> bytes:
    """Interrupts a run after its second window, and continues it."""
    write, states = run.write_atomically, []

    def write_or_stop(*arguments):
        write(*arguments)
        states.append(arguments)
        if len(states) == 3:  # the first one before the first window
            raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(run, "write_atomically", write_or_stop)
        predict_file(model, source, output, status=130)
    return predict_file(model, source, output).read_bytes()


TEXTS = ['Ann, "who" is', "a; b\nand\rc", "", "was \u2028 it", "ü, ß", "who"]


@pytest.mark.parametrize(("start", "separator"), [("", "\t"), ("\ufeff", ";"), ("one column", ",")])
def test_csv(classifier, tmp_path, monkeypatch, start, separator):
    monkeypatch.setattr(run, "WINDOW_ROWS", 2)
    table = io.StringIO()
    rows = [[text] if start == "one column" else [str(number), text] for number, text in enumerate(TEXTS)]
    header = ["text"] if start == "one column" else ["id; n, o|p", "text"]
    csv.writer(table, delimiter=separator, quoting=csv.QUOTE_ALL).writerows([header, *rows])
    source = tmp_path / "rows.csv.gz"
    source.write_bytes(gzip.compress((start.replace("one column", "") + table.getvalue()).encode()))

    whole = predict_file(classifier, source, "out.csv").read_bytes()
    assert whole.startswith("\ufeff".encode()) == (start == "\ufeff")
    # The output can be read again as CSV, with the values of the JSON lines.
    found, expected = values_of(tmp_path / "out.csv"), values_of(predict_file(classifier, source, "out.jsonl"))
    assert [row | {"probabilities": json.loads(row["probabilities"])} for row in found] == expected
    assert [row["text"] for row in found] == TEXTS and len(expected[0]) == len(header) + 2
    assert predict_in_shards(classifier, source, ".csv") == whole
    assert interrupt_and_predict(classifier, source, "resumed.csv", monkeypatch) == whole


def test_tsv_and_entities(tagger, tmp_path):
    source = tmp_path / "rows.tsv"
    source.write_text("id\ttext\n" + "".join(f'{number}\t"{text}\n' for number, text in enumerate(WORDS)))
    whole = predict_file(tagger, source, "out.tsv")
    expected = values_of(predict_file(tagger, source, "out.jsonl"))
    assert [row | {"entities": json.loads(row["entities"])} for row in values_of(whole)] == expected
    assert any(row["entities"] for row in expected)
    assert predict_in_shards(tagger, source, ".tsv") == whole.read_bytes()


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


@pytest.mark.slow
@pytest.mark.parametrize("line_end", ["\n", "\r"])
def test_conll_gets_a_column(tagger, tmp_path, monkeypatch, line_end):
    monkeypatch.setattr(run, "WINDOW_ROWS", 2)
    source = tmp_path / "test.conll"
    source.write_bytes(make_conll(line_end).encode())
    whole = predict_file(tagger, source, "out.conll").read_bytes()
    assert whole.count(line_end.encode()) == make_conll("\n").count("\n")
    assert predict_in_shards(tagger, source, ".conll") == whole
    assert interrupt_and_predict(tagger, source, "resumed.conll", monkeypatch) == whole
    # The same tags as for JSON.
    rows = values_of(predict_file(tagger, source, "out.jsonl"))
    lines = whole.decode().replace(line_end, "\n").split("\n")
    cells = [line.split() for line in lines if line and not line.strip("\ufeff").startswith(("-DOC", "# "))]
    assert [word for row in rows for word in row["tokens"]] == [word for word, *_ in cells]
    tags = [tag for row in rows for tag in convert_tags(row["predicted_tags"], "bio")]
    assert tags == [tag for _, _, _, tag in cells]


def test_conll_columns(tagger, tmp_path, caplog):
    words = [WORDS[0], WORDS[1]]
    (tmp_path / "words.jsonl").write_text(json.dumps({"tokens": words}))
    (row,) = values_of(predict_file(tagger, tmp_path / "words.jsonl", "out.jsonl"))
    first, second = convert_tags(row["predicted_tags"], "bio")
    column = ("--text_column_names", "2")
    for name, content, expected, flags in (
        ("words.txt", "-DOCSTART-\n\n{}\n{}\n", "-DOCSTART- O\n\n{} {}\n{} {}\n", ()),
        ("pos.conll", "{} NN\n{} O\n", "{} NN {}\n{} O {}\n", ()),
        ("ids.conllu", "# text = a b\n1\t{}\t_\n2\t{}\t_\n", "# text = a b\n1\t{}\t_\t{}\n2\t{}\t_\t{}\n", column),
        ("tags.conll", "{} B-X\n{} I-X\n", "{} B-X {}\n{} I-X {}\n", ()),
        ("last.conll", "1 {}\n2 {}", "1 {} {}\n2 {} {}", column),
    ):
        source = tmp_path / name
        source.write_text(content.format(*words))
        output = predict_file(tagger, source, f"out{source.suffix}", "--overwrite_output_file", *flags)
        assert output.read_text() == expected.format(words[0], first, words[1], second)
    assert "only numbers" not in caplog.text
    predict_file(tagger, tmp_path / "ids.conllu", "other.jsonl")
    assert "If the words are in column 2, set --text_column_names 2." in caplog.text
