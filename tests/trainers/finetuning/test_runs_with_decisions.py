"""`snugbert glue --tune_thresholds` and `--calibrate`: one rule in files, cards, exports and other libraries."""

import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from glue_examples import NO_FILES, arguments, read_predictions, sentences
from safetensors.torch import load_file
from sklearn.metrics import f1_score
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification, pipeline

import snugbert
from snugbert.cli.main import run_command
from snugbert.errors import InputError
from snugbert.export.export import export_model
from snugbert.prediction.predictor import Predictor
from snugbert.tasks.classification import TextClassification
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
# With these, F1 is best with a threshold between 0.05 and 0.4.
PROBABILITIES = {"good": 0.4, "fine": 0.4, "great": 0.8, "bad": 0.05, "dull": 0.05, "poor": 0.05}
CHOSEN = {"tune_thresholds": "f1", "calibrate": True}


def write_rows(file: Path, number: int, seed: int) -> None:
    """Writes sentences with uncertain labels: a word gives a probability of the label 1."""
    generator = random.Random(seed)
    rows = [
        {"sentence": row["sentence"], "label": str(int(generator.random() < probability))}
        for row in sentences(number, seed)
        for probability in [PROBABILITIES[word] for word in row["sentence"].split() if word in PROBABILITIES]
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("uncertain")
    files = {"train_file": folder / "train.jsonl", "validation_file": folder / "dev.jsonl"}
    for seed, (file, number) in enumerate(zip(files.values(), (320, 100), strict=True)):
        write_rows(file, number, seed)
    return files


@pytest.fixture(scope="module")
def run(workshop, files) -> Path:
    """A run with thresholds and a temperature."""
    output_dir = workshop / "calibrated"
    run_command("glue", arguments(workshop, output_dir, **files, **CHOSEN, save_steps=20))
    return output_dir


def test_files_predict_command_and_exports_decide_alike(run, files, tmp_path):
    config = json.loads((run / "config.json").read_text())
    ((label, threshold),) = config["thresholds"].items()
    assert label == "1" and threshold != 0.5
    written = read_predictions(run / "eval_predictions.jsonl")
    for row in written:
        assert row["predicted_label"] == str(int(row["probabilities"]["1"] >= threshold))
    places = {"model_name_or_path": run, "input_file": files["validation_file"], "use_cpu": True}
    for name, more in {"all": {}, "certain": {"abstain_below": 0.7}}.items():
        flags = places | more | {"output_file": tmp_path / f"{name}.jsonl"}
        run_command("predict", [part for flag, value in flags.items() for part in (f"--{flag}", str(value))])
    certain = read_predictions(tmp_path / "certain.jsonl")
    for row, other, expected in zip(certain, read_predictions(tmp_path / "all.jsonl"), written, strict=True):
        label = expected["predicted_label"]
        assert other["predicted_label"] == label and row["abstained"] == (row["probabilities"][label] < 0.7)
        assert row["predicted_label"] == (None if row["abstained"] else label)
    assert 0 < np.mean([row["abstained"] for row in certain]) < 1
    # Stock BERT scores as the model does, and keeps the thresholds.
    export_model(run, tmp_path / "bert", "bert")
    scores = [Predictor(model).evaluate(files["validation_file"])["accuracy"] for model in (run, tmp_path / "bert")]
    correct = [row["label"] == row["predicted_label"] for row in written]
    assert scores[0] == scores[1] == pytest.approx(np.mean(correct))
    stock = json.loads((tmp_path / "bert" / "config.json").read_text())
    assert stock["thresholds"] == config["thresholds"] and stock["calibration"] == config["calibration"]
    # A pipeline of stock transformers returns the calibrated probabilities.
    classify = pipeline("text-classification", model=str(tmp_path / "bert"), top_k=None)
    assert isinstance(classify.model, BertForSequenceClassification)
    scores = {each["label"]: each["score"] for each in classify(written[0]["sentence"], top_k=None)}
    assert scores == pytest.approx(written[0]["probabilities"], abs=1e-5)


def test_reports_have_cross_fitted_scores(run):
    results = json.loads((run / "results.json").read_text())
    facts, config = results["decisions"], json.loads((run / "config.json").read_text())
    assert facts["thresholds"] == config["thresholds"] and facts["calibration"] == config["calibration"]
    written = read_predictions(run / "eval_predictions.jsonl")
    references = [int(row["label"]) for row in written]
    (cheerful,) = (row for row in results["labels"]["eval"]["labels"] if row["label"] == "1")
    plain = [int(row["probabilities"]["1"] > 0.5) for row in written]
    stored = [int(row["predicted_label"]) for row in written]
    # The same examples cannot score lower with thresholds that were chosen on them.
    assert f1_score(references, stored) >= max(cheerful["f1"], f1_score(references, plain))
    assert facts["scores_without"]["accuracy"] == pytest.approx(np.mean(np.equal(references, plain)))
    assert facts["scores_without"]["f1"] == pytest.approx(f1_score(references, plain))
    assert "](reliability.png)" in (run / "README.md").read_text() and (run / "reliability.png").exists()


def test_the_code_on_cards_applies_the_thresholds(run, monkeypatch, capsys):
    """The code for users without SnugBERT, on sentences that the threshold decides and others."""
    monkeypatch.chdir(run.parent)
    code = re.findall(r"^```python\n(.*?)^```$", (run / "README.md").read_text(), re.DOTALL | re.MULTILINE)[-1]
    rows = read_predictions(run / "eval_predictions.jsonl")
    unsure = [row for row in rows if row["predicted_label"] != max(row["probabilities"], key=row["probabilities"].get)]
    chosen = {row["predicted_label"]: row for row in rows}
    for row in (*chosen.values(), unsure[0]):
        exec(code.replace('"A text."', json.dumps(row["sentence"])), {})
        assert capsys.readouterr().out.splitlines()[-1] == row["predicted_label"]
    assert len(chosen) == 2


def test_the_weights_contain_the_temperature(run, workshop, files, tmp_path):
    """A run without the flags, divided by the temperature. A killed run ends with the same bits."""
    run_command("glue", arguments(workshop, tmp_path / "plain", **files))
    calibrated, plain = (load_file(folder / "model.safetensors") for folder in (run, tmp_path / "plain"))
    temperature = json.loads((run / "config.json").read_text())["calibration"]["temperature"]
    assert temperature != 1
    for name, tensor in plain.items():
        assert torch.equal(calibrated[name], tensor / temperature if name.startswith("classifier.") else tensor), name
    assert not {"thresholds", "calibration"} & json.loads((tmp_path / "plain" / "config.json").read_text()).keys()
    shutil.copytree(run / "checkpoint-80", tmp_path / "resumed" / "checkpoint-80")  # after the last step
    again = {**files, **CHOSEN, "save_steps": 20, "resume_from_checkpoint": "true"}
    run_command("glue", arguments(workshop, tmp_path / "resumed", **again))
    for name in ("model.safetensors", "config.json", "eval_predictions.jsonl"):
        assert (tmp_path / "resumed" / name).read_bytes() == (run / name).read_bytes()


def test_each_flag_alone(workshop, files, tmp_path):
    """The metric of the thresholds becomes the main metric."""
    found = {}
    for flag, value in CHOSEN.items():
        run_command(
            "glue", arguments(workshop, tmp_path / flag, **files, task_name="sst2", max_steps=2, **{flag: value})
        )
        results = json.loads((tmp_path / flag / "results.json").read_text())
        found[flag] = results["decisions"], list(results["metrics"]["eval"])
    # The threshold of a GLUE task is for its second label.
    assert list(json.loads((tmp_path / "tune_thresholds/config.json").read_text())["thresholds"]) == ["positive"]
    decisions, metrics = found["calibrate"]
    assert decisions["metric"] is None and decisions["calibration"] is not None and metrics == ["accuracy"]
    decisions, metrics = found["tune_thresholds"]
    assert decisions["calibration"] is None and metrics == ["accuracy", "f1"]
    assert TextClassification(tune_thresholds="f1").main_metric == "f1"


def test_several_labels_in_memory(run, tmp_path):
    """In Python. A new dataset is scored with the thresholds, and a second training chooses its own."""
    generator = random.Random(0)
    labels = [[name for name in ("rare", row["label"]) if generator.random() < 0.6] for row in sentences(120, 1)]
    data = Dataset.from_dict({"text": [row["sentence"] for row in sentences(120, 1)], "label": labels})
    args = FineTuningArguments(str(tmp_path / "out"), max_steps=12, learning_rate=5e-3, use_cpu=True)
    task = TextClassification(tune_thresholds="macro_f1", calibrate=True)
    model = snugbert.SnugBertForSequenceClassification.from_pretrained(run, num_labels=3, ignore_mismatched_sizes=True)
    trainer = FineTuningTrainer(model, args, task, data, data, Predictor(run).tokenizer)
    assert not hasattr(model.config, "thresholds")  # of the run that it continues
    trainer.train()
    assert set(model.config.thresholds) == {"cheerful", "gloomy", "rare"}
    scored = trainer.evaluate(data.select(range(120)), metric_key_prefix="new")
    trainer.save_model()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    metrics = Predictor(loaded, trainer.processing_class).evaluate(data)
    assert metrics["macro_f1"] == pytest.approx(scored["new_macro_f1"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tune_thresholds": "f2"}, "--tune_thresholds: unknown value 'f2'. Choose one of f1, accuracy"),
        ({"tune_thresholds": "macro_f1"}, "macro_f1 does not fit these data. f1 and accuracy need two classes"),
        ({"calibrate": True, "do_regression": True}, "--calibrate needs .* labels that are not numbers"),
        ({"calibrate": True, "validation_file": None}, "needs training examples, and at least 5 validation"),
        ({"abstain_below": 1.5}, "--abstain_below 1.5 must be above 0 and at most 1"),
        ({"calibrate": True, "task_name": "all", **NO_FILES}, "--calibrate needs classes, but STS-B has none"),
    ],
)
def test_bad_arguments(changes, message, files, workshop, tmp_path):
    with pytest.raises(InputError, match=message):
        run_command("glue", arguments(workshop, tmp_path / "out", **{**files, **changes}))


def test_thresholds_fit_the_model(run, tmp_path):
    shutil.copytree(run, tmp_path / "edited")
    config = json.loads((run / "config.json").read_text())
    several = {"problem_type": "multi_label_classification"}
    for change in ({"thresholds": {"2": 0.3}}, {"thresholds": dict.fromkeys(config["label2id"], 0.3)}, several):
        (tmp_path / "edited" / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(InputError, match=r"config\.json: the thresholds .* do not match the labels"):
            Predictor(tmp_path / "edited")
