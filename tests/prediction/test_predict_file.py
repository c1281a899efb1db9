"""`snugbert predict`: every head next to transformers or sentence-transformers, resumed runs and bad input."""

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


def predict(tmp_path: Path, model: Path, rows: list[dict], *arguments: str) -> list[dict]:
    source, output = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    files = ["--input_file", str(source), "--output_file", str(output), "--overwrite_output_file"]
    assert main(["predict", "--model_name_or_path", str(model), *files, *arguments]) == 0
    return read(output)


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


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
def test_words_and_texts_are_tagged_like_the_pipeline(checkpoint, tmp_path):
    labels = dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]))
    model = checkpoint("ForTokenClassification", id2label=labels, label2id={label: i for i, label in labels.items()})
    texts = [f"  {text}, ok" for text in make_texts()]
    found = predict(tmp_path, model, [{"text": text} for text in texts])
    tag = pipeline("token-classification", str(model), aggregation_strategy="first")
    for row, expected in zip(found, tag(texts), strict=True):
        spans = [(each["type"], each["start"], each["end"]) for each in row["entities"]]
        assert spans == [(each["entity_group"], each["start"], each["end"]) for each in expected]
        scores = [each["score"] for each in row["entities"]]
        assert scores == pytest.approx([float(each["score"]) for each in expected], abs=1e-5)
        assert all(row["text"][each["start"] : each["end"]] == each["text"] for each in row["entities"])
    assert sum(len(row["entities"]) for row in found) > len(texts)

    words = [{"tokens": text.replace(",", " ,").split()} for text in texts] + [{"tokens": WORDS * 30}]
    tagged = predict(tmp_path, model, words)
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
    assert len(read(output)) == len(rows)
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
    parts = [read(tmp_path / f"out-0000{rank}-of-00003.jsonl") for rank in range(3)]
    assert [len(part) for part in parts] == [13, 13, 14]
    for ours, expected in zip(chain(*parts), whole, strict=True):
        assert (ours["text"], ours["predicted_label"]) == (expected["text"], expected["predicted_label"])


def test_an_output_that_another_process_writes_in_the_meantime_is_kept(checkpoint, tmp_path, monkeypatch):
    output, make_predictor = tmp_path / "out.jsonl", run.make_predictor
    monkeypatch.setattr(run, "make_predictor", lambda *a, **k: output.touch() or make_predictor(*a, **k))
    files = ["--input_file", str(write_rows(tmp_path / "rows.jsonl", [{"text": "a"}])), "--output_file", str(output)]
    assert main(["predict", "--model_name_or_path", str(checkpoint("ForSequenceClassification")), *files]) == 2
    assert output.read_bytes() == b""


def test_bad_rows_are_refused_or_left_out_by_line(checkpoint, tmp_path, capsys, caplog):
    source, output = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    lines = ['{"text": "one"}', "not JSON", '{"text": null}', '{"text": "\\ud83d"}', "", '{"text": "two", "n": NaN}']
    source.write_text("\n".join([*lines, '{"text": "tw\xff"}']), encoding="latin-1")
    files = ["--input_file", str(source), "--output_file", str(output)]
    arguments = ["predict", "--model_name_or_path", str(checkpoint("ForSequenceClassification")), *files]
    assert main(arguments) == 2
    assert "rows.jsonl, row 2: not JSON" in capsys.readouterr().err and not list(tmp_path.glob("out*"))
    assert main([*arguments, "--on_bad_text", "skip"]) == 0
    assert [row["text"] for row in read(output)] == ["one", "two"]
    assert read(output)[-1]["n"] is None  # JSON has no NaN
    for row, problem in ((2, "not JSON"), (3, "no text in column 'text'"), (4, "half of a character")):
        assert re.search(rf"rows.jsonl, row {row}: .*{problem}", caplog.text)
    assert main([*arguments, "--on_bad_text", "replace", "--overwrite_output_file"]) == 0
    assert [row["text"] for row in read(output)] == ["one", "two", "tw\ufffd"]


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
