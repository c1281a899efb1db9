"""Long documents: windows, logits and losses next to stock BERT, and `snugbert glue` from the data to exports."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from glue_examples import LARGER, TOKENIZER, arguments, checkpoint_of, read_predictions, sentences
from parity import CONFIG, ours_and_stock
from tables import write_csv
from transformers import AutoTokenizer, BertForSequenceClassification

import snugbert_cli
from snugbert import SnugBertDataCollatorWithPacking, SnugBertTokenizer
from snugbert.cli.main import run_command
from snugbert.export.export import export_model
from snugbert.gpu.row_sizes import pad_row
from snugbert.prediction.predictor import Predictor
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.question_windows import split_into_spans
from snugbert.tasks.windows import PadNested, tokenize_documents, tokenize_texts

pytestmark = pytest.mark.usefixtures("one_thread")
LENGTH, STRIDE = 16, 4


def documents(number: int, seed: int) -> list[dict[str, str]]:
    """Some windows of filler words before a sentence that decides the label."""
    rows = enumerate(sentences(number, seed))
    return [{**row, "sentence": "the old film was " * (4 + index % 7) + row["sentence"]} for index, row in rows]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    TOKENIZER.save_pretrained(folder / "tokenizer")
    write_csv(folder / "train.csv", documents(160, seed=1))
    write_csv(folder / "dev.csv", documents(50, seed=2))
    return folder


def run_glue(workshop: Path, output_dir: Path, **changes: object) -> dict:
    """Runs `snugbert glue`, by default to train a small model on windows. Returns the results."""
    flags = {**LARGER, "num_train_epochs": 8, "learning_rate": 2e-3, "max_seq_length": LENGTH, "doc_stride": STRIDE}
    run_command("glue", arguments(workshop, output_dir, **flags | changes))
    return json.loads((output_dir / "results.json").read_text())


@pytest.fixture(scope="module")
def run(workshop) -> Path:
    """The output folder of a complete run."""
    run_glue(workshop, workshop / "run")
    return workshop / "run"


def test_windows_have_the_spans_of_question_answering():
    """Also more texts than the tokenizer gets at once, and texts without words."""
    texts = [row["sentence"] for row in documents(1100, seed=3)] + ["", "good"]
    columns = tokenize_documents(TOKENIZER, texts, LENGTH, STRIDE)
    expected = []
    for text in texts:
        ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
        spans = split_into_spans(len(ids), LENGTH - 2, STRIDE)
        expected.append([[TOKENIZER.cls_token_id, *ids[a:b], TOKENIZER.sep_token_id] for a, b in spans])
    assert columns["input_ids"].to_pylist() == expected
    assert columns["num_windows"].to_pylist() == [len(windows) for windows in expected]


def test_truncated_texts_are_counted():
    texts = [row["sentence"] for row in documents(30, seed=4)] + ["good"]
    for columns in ([texts], [texts, texts[::-1]]):
        encoded, truncated = tokenize_texts(TOKENIZER, columns, LENGTH)
        kept = encoded["input_ids"].to_pylist()
        assert kept == TOKENIZER(*columns, truncation=True, max_length=LENGTH)["input_ids"]
        assert truncated == sum(len(ids) > LENGTH for ids in TOKENIZER(*columns)["input_ids"])
    task = TextClassification()
    task.use_tokenizer(TOKENIZER, LENGTH)
    task.encode(task.make_split([["good " * 23], ["good"]]))
    assert "1 of 2 texts (50.0%) are longer than 16 tokens" in task.describe_truncation(["text"])


LABELS = {
    "single_label_classification": torch.tensor([2, 0, 1, 2]),
    "multi_label_classification": torch.tensor([[1.0, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0]]),
    "regression": torch.tensor([[0.5, 1, -1], [2, 0, 1], [1, 1.5, 1], [0, 1, 3]]),
}


@pytest.mark.parametrize("problem", LABELS)
def test_loss_and_gradients_equal_a_loop_over_stock_bert(problem):
    """Packed (also items of a token budget), padded, and over accumulated batches of one document each."""
    ours, stock = ours_and_stock("ForSequenceClassification", problem_type=problem)
    generator = np.random.default_rng(0)
    features = [
        {"input_ids": [generator.integers(1, CONFIG["vocab_size"], size).tolist() for size in sizes]}
        for sizes in ([16, 16, 5], [3], [16, 9], [12, 12, 12, 1])
    ]
    for feature, label in zip(features, LABELS[problem].tolist(), strict=True):
        feature |= {"attention_mask": [[1] * len(ids) for ids in feature["input_ids"]]}
        feature |= {"num_windows": len(feature["input_ids"]), "label": label}
    logits = torch.stack(
        [torch.cat([stock(torch.tensor([ids])).logits for ids in f["input_ids"]]).mean(0) for f in features]
    )
    loss_of = {
        "single_label_classification": torch.nn.functional.cross_entropy,
        "multi_label_classification": torch.nn.functional.binary_cross_entropy_with_logits,
        "regression": torch.nn.functional.mse_loss,
    }
    loss = loss_of[problem](logits, LABELS[problem])
    loss.backward()
    expected = {name: weight.grad for name, weight in stock.named_parameters()}

    pack = SnugBertDataCollatorWithPacking()
    pad = PadNested(TOKENIZER, padding="max_length", max_length=LENGTH)
    for batches in ([pack([features[:3], features[3]])], [pad(features)], [pack([each]) for each in features]):
        ours.zero_grad()
        items = LABELS[problem].numel()
        outputs = [ours(**batch, num_items_in_batch=items) for batch in batches]
        sum(output.loss for output in outputs).backward()
        torch.testing.assert_close(torch.cat([output.logits for output in outputs]), logits)
        torch.testing.assert_close(sum(output.loss for output in outputs), loss)
        for name, weight in ours.named_parameters():
            torch.testing.assert_close(weight.grad, expected[name], atol=1e-5, rtol=1e-4)


def test_windows_may_be_padded_on_the_left():
    """Positions are columns, as in stock BERT. A window without tokens does not count."""
    ours, stock = ours_and_stock("ForSequenceClassification")
    windows = (([1, 2, 3], [0, 1, 2]), ([4, 5], [1, 2]), ([6], [2]))
    first, second, third = (
        stock(torch.tensor([ids]), position_ids=torch.tensor([columns])).logits[0] for ids, columns in windows
    )
    ids = torch.tensor([[[1, 2, 3], [0, 4, 5]], [[0, 0, 6], [0, 0, 0]]])
    logits = ours(ids, attention_mask=ids.sign()).logits
    torch.testing.assert_close(logits, torch.stack([(first + second) / 2, third]))


def test_batches_that_do_not_fit():
    ours, _ = ours_and_stock("ForSequenceClassification")
    batch = SnugBertDataCollatorWithPacking()([{"input_ids": [[1, 2], [3]], "num_windows": 2}])
    for counts in ([1], [2, 1], [2, 0]):
        with pytest.raises(ValueError, match="`num_windows` is"):
            ours(**{**batch, "num_windows": torch.tensor(counts)})
    with pytest.raises(ValueError, match="several windows cannot be filled"):
        pad_row(batch, 8)


def test_a_run_reads_the_end_of_documents(run):
    """The first windows do not decide the label."""
    results, config = (json.loads((run / f"{name}.json").read_text()) for name in ("results", "config"))
    assert results["metrics"]["eval"]["accuracy"] > 0.95
    assert config["document_windows"] == {"max_seq_length": LENGTH, "doc_stride": STRIDE}


def test_accumulated_batches_equal_one(workshop, tmp_path):
    """4 batches of 4 documents equal a batch of 16."""
    losses = []
    for size, steps in ((16, 1), (4, 4)):
        flags = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps, "max_steps": 2}
        results = run_glue(workshop, tmp_path / str(size), **flags, validation_file=None)
        losses.append(results["training"]["train_loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


@pytest.mark.slow
def test_predict_score_and_stock_bert_agree(run, workshop, tmp_path):
    """Every reader of the model finds its windows in config.json. A document's logits do not depend on the others."""
    expected = read_predictions(run / "eval_predictions.jsonl")
    accuracy = json.loads((run / "results.json").read_text())["metrics"]["eval"]["accuracy"]
    assert Predictor(run).evaluate(workshop / "dev.csv") == {"accuracy": accuracy}
    start = {**checkpoint_of(run), "train_file": None, "max_seq_length": None, "doc_stride": None}
    padded = run_glue(workshop, tmp_path / "padded", **start, pad_to_max_length=True)
    assert padded["metrics"]["eval"]["accuracy"] == accuracy
    flags = ["--model_name_or_path", str(run), "--input_file", str(workshop / "dev.csv"), "--use_cpu"]
    for name, value in (("max_seq_length", 8), ("doc_stride", 13)):  # one of the two is given
        folder = tmp_path / f"{name}-{value}"
        run_glue(workshop, folder, **start | {name: value})
        scored = read_predictions(folder / "eval_predictions.jsonl")
        output = folder / "predicted.jsonl"
        assert snugbert_cli.main(["predict", *flags, f"--{name}", str(value), "--output_file", str(output)]) == 0
        for row, other, before in zip(read_predictions(output), scored, expected, strict=True):
            assert row["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
            assert row["probabilities"] != pytest.approx(before["probabilities"], abs=1e-5)

    export_model(run, tmp_path / "stock", "bert")
    for model in (run, tmp_path / "stock"):
        assert Predictor(model).evaluate(workshop / "dev.csv") == {"accuracy": accuracy}
    stock = BertForSequenceClassification.from_pretrained(tmp_path / "stock").eval()
    stock_tokenizer = AutoTokenizer.from_pretrained(tmp_path / "stock")
    for row in expected[:5]:
        ids = stock_tokenizer(row["sentence"], add_special_tokens=False)["input_ids"]
        cls, sep = stock_tokenizer.cls_token_id, stock_tokenizer.sep_token_id
        spans = split_into_spans(len(ids), LENGTH - 2, STRIDE)
        with torch.no_grad():
            logits = torch.cat([stock(torch.tensor([[cls, *ids[a:b], sep]])).logits for a, b in spans])
        probabilities = logits.mean(0).softmax(-1).tolist()
        assert list(row["probabilities"].values()) == pytest.approx(probabilities, abs=1e-5)


@pytest.mark.slow
def test_the_code_of_cards_averages_windows(run, tmp_path, monkeypatch, capsys):
    """The code in the cards of the run and of its export, on a real document."""
    row = read_predictions(run / "eval_predictions.jsonl")[0]
    export_model(run, tmp_path / "stock", "bert")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").symlink_to(run)
    logits = []
    for folder in ("run", "stock"):
        text = Path(folder, "README.md").read_text()
        code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[-1].replace("A long text.", row["sentence"])
        values: dict = {}
        exec(code, values)
        logits.append(values["model"](**values.get("inputs", values.get("batch"))).logits.mean(0))
        assert row["predicted_label"] in capsys.readouterr().out
    torch.testing.assert_close(*logits)
    assert logits[0].softmax(-1).tolist() == pytest.approx(list(row["probabilities"].values()), abs=1e-5)


def test_the_stored_windows_have_the_limit_of_the_tokenizer(workshop, tmp_path):
    SnugBertTokenizer(vocab=TOKENIZER.get_vocab(), model_max_length=12).save_pretrained(tmp_path / "tokenizer")
    flags = {"tokenizer_name": tmp_path / "tokenizer", "max_seq_length": 128, "max_steps": 1, "validation_file": None}
    run_glue(workshop, tmp_path / "out", **flags)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["document_windows"] == {"max_seq_length": 12, "doc_stride": STRIDE}


@pytest.mark.slow
def test_distillation(run, workshop, tmp_path):
    """The teacher reads its own windows, and the student whole documents."""
    teacher = {"teacher_name_or_path": run, "cache_dir": tmp_path / "cache"}
    results = run_glue(workshop, tmp_path / "student", **teacher, max_seq_length=64, doc_stride=None)
    assert results["metrics"]["eval"]["accuracy"] > 0.9
