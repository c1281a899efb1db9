"""`snugbert glue`: whole runs, parity with stock BERT, bad input."""

import json
import random
from pathlib import Path

import pandas
import pytest
import torch
from datasets import Dataset, load_dataset
from glue_examples import (
    FILLER,
    LARGER,
    NO_FILES,
    SMALL,
    VOCABULARY,
    WORDS,
    arguments,
    checkpoint_of,
    read_predictions,
    sentences,
)
from sklearn.metrics import accuracy_score, mean_squared_error
from tables import write_csv
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
)

import snugbert_cli
from snugbert import (
    SnugBertConfig,
    SnugBertForSequenceClassification,
    SnugBertForTokenClassification,
    SnugBertTokenizer,
)
from snugbert.cli.main import run_command
from snugbert.errors import InputError
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments

pytestmark = pytest.mark.usefixtures("one_thread")
ALL = {"do_train": True, "do_eval": True, "do_predict": True}


@pytest.fixture(scope="module")
def run(workshop) -> Path:
    """The output folder of a complete run."""
    output_dir = workshop / "run"
    command = arguments(workshop, output_dir, save_steps=15, **ALL, test_file=workshop / "test.csv")
    assert snugbert_cli.main(["glue", *command]) == 0
    return output_dir


def test_a_run_learns_and_writes_everything(run, workshop):
    results = json.loads((run / "eval_results.json").read_text())
    names = ("eval_accuracy", "eval_baseline_accuracy", "eval_samples")
    assert [results[name] for name in names] == [1.0, 0.5, 60]
    predictions = [line.split("\t") for line in (run / "predict_results.txt").read_text().splitlines()]
    expected = [[str(i), row["label"]] for i, row in enumerate(sentences(20, seed=3))]
    assert predictions == [["index", "prediction"], *expected]
    config = json.loads((run / "config.json").read_text())
    assert config["id2label"] == {"0": "cheerful", "1": "gloomy"} and config["vocab_size"] == len(VOCABULARY)
    classify = pipeline("text-classification", model=str(run), device="cpu")
    assert [answer["label"] for answer in classify(["the film was great", "a dull plot"])] == ["cheerful", "gloomy"]


def test_predictions_are_read_back(run, tmp_path):
    """Texts with tabs, quotes and line breaks stay as they are. The file gives the same accuracy as the report."""
    hard = ["a\tfilm", 'the "old" plot, was', "a\r\ngood\nscene", "None", "2012", "", "Zürich \u2028 it", "{}"]
    texts = [*hard, *(row["sentence"] for row in sentences(40, seed=12))]
    rows = [
        {"ticket": f"K-{i}", "review": text, "note": text[::-1], "mood": list(WORDS)[i % 3 % 2]}
        for i, text in enumerate(texts)
    ]
    changes = {**checkpoint_of(run), "train_file": None, "label_column_name": "mood", "max_eval_samples": 31}
    run_command("glue", arguments(run, tmp_path, **changes, validation_file=write_csv(tmp_path / "dev.csv", rows)))
    file, results = tmp_path / "eval_predictions.jsonl", json.loads((tmp_path / "eval_results.json").read_text())
    for frame in (pandas.read_json(file, lines=True), load_dataset("json", data_files=str(file))["train"].to_pandas()):
        assert list(frame) == ["ticket", "review", "note", "label", "predicted_label", "probabilities"]
        assert frame.rename(columns={"label": "mood"})[list(rows[0])].to_dict("records") == rows[:31]
        assert accuracy_score(frame.label, frame.predicted_label) == results["eval_accuracy"]
        probabilities = pandas.DataFrame(list(frame.probabilities))
        assert list(probabilities) == list(WORDS) and probabilities.sum(axis=1).to_numpy() == pytest.approx(1)
        assert list(probabilities.idxmax(axis=1)) == list(frame.predicted_label)


def test_labeled_test_files_are_scored(run, workshop, tmp_path):
    rows = sentences(20, seed=4)
    rows[0]["label"] = "gloomy"  # wrong: the sentence is cheerful
    changes = {"test_file": write_csv(tmp_path / "test.csv", rows), "do_predict": True, "max_predict_samples": 10}
    run_command("glue", arguments(workshop, tmp_path, **checkpoint_of(run), **changes))
    assert json.loads((tmp_path / "predict_results.json").read_text())["predict_accuracy"] == 0.9
    assert len((tmp_path / "predict_results.txt").read_text().splitlines()) == 11
    assert not (tmp_path / "eval_results.json").exists()
    # The arguments name training examples, but this run did not use them.
    data = json.loads((tmp_path / "results.json").read_text())["data"]
    assert {name: source["num_examples"] for name, (source,) in data.items()} == {"predict": 10}


def test_regression(workshop, tmp_path):
    number = {"cheerful": 1.5, "gloomy": -1}
    rows = [{"text": row["sentence"], "label": number[row["label"]]} for row in sentences(160, seed=5)]
    parts = {"train": rows, "validation": rows[:40], "test": rows[:5]}
    files = {f"{name}_file": write_csv(tmp_path / f"{name}.csv", part) for name, part in parts.items()}
    run_command("glue", arguments(workshop, tmp_path / "out", **files, **ALL, num_train_epochs=8))
    results = json.loads((tmp_path / "out" / "eval_results.json").read_text())
    assert results["eval_mse"] < 0.3 * results["eval_baseline_mse"]
    examples = read_predictions(tmp_path / "out" / "eval_predictions.jsonl")
    assert [{"text": row["text"], "label": row["label"]} for row in examples] == rows[:40]
    gold, predicted = ([row[name] for row in examples] for name in ("label", "predicted_label"))
    assert mean_squared_error(gold, predicted) == results["eval_mse"]
    lines = [line.split("\t") for line in (tmp_path / "out" / "predict_results.txt").read_text().splitlines()[1:]]
    # Another batch, so another order of summation.
    assert [float(number) for _, number in lines] == pytest.approx(predicted[:5], rel=1e-6)
    assert predicted[0] == pytest.approx(1.5, abs=0.75)


def test_similarity_task(workshop, tmp_path):
    lines = ["index\tsentence1\tsentence2\tscore"]
    lines += [f"{i}\t{row['sentence']}\tit was\t{i % 6:.3f}" for i, row in enumerate(sentences(24, seed=6))]
    (tmp_path / "STS-B").mkdir()
    for name in ("train", "dev", "test"):
        (tmp_path / "STS-B" / f"{name}.tsv").write_text("\n".join(lines))
    changes = {"task_name": "sts-b", "data_dir": tmp_path, **NO_FILES, "max_steps": 1}
    run_command("glue", arguments(workshop, tmp_path / "out", **changes, **ALL))
    results = json.loads((tmp_path / "out" / "eval_results.json").read_text())
    assert "eval_pearson" in results and "eval_baseline_pearson" not in results
    scores = [row["predicted_label"] for row in read_predictions(tmp_path / "out" / "predictions.jsonl")]
    table = ["index\tprediction", *(f"{i}\t{min(max(score, 0.0), 5.0)}" for i, score in enumerate(scores))]
    assert (tmp_path / "out" / "STS-B.tsv").read_text().splitlines() == table


@pytest.mark.slow
def test_several_labels(workshop, tmp_path):
    """One label for each of two kinds of words in a sentence. The checkpoint predicts the same in a second run."""
    generator = random.Random(8)
    rows = []
    for _ in range(320):
        labels = [label for label in WORDS if generator.random() < 0.5]
        words = generator.choices(FILLER, k=6) + [generator.choice(WORDS[label]) for label in labels]
        rows.append({"text": " ".join(generator.sample(words, len(words))), "label": labels})
    for name, part in (("train", rows[60:]), ("dev", rows[:60])):
        (tmp_path / f"{name}.json").write_text(json.dumps(part))
    files = {"train_file": tmp_path / "train.json", "validation_file": tmp_path / "dev.json"}
    run_command("glue", arguments(workshop, tmp_path / "out", **files, **LARGER, num_train_epochs=5))
    results = json.loads((tmp_path / "out" / "eval_results.json").read_text())
    assert results["eval_micro_f1"] == results["eval_macro_f1"] == results["eval_subset_accuracy"] == 1
    examples = read_predictions(tmp_path / "out" / "eval_predictions.jsonl")
    for row, example in zip(rows[:60], examples, strict=True):
        probable = [label for label, probability in example.pop("probabilities").items() if probability > 0.5]
        assert example == {**row, "predicted_label": probable}
    (tmp_path / "test.json").write_text(json.dumps([{"text": row["text"]} for row in rows[:20]]))
    changes = {**checkpoint_of(tmp_path / "out"), "test_file": tmp_path / "test.json", "do_predict": True}
    run_command("glue", arguments(workshop, tmp_path / "again", **changes, **NO_FILES))
    predictions = (tmp_path / "again" / "predict_results.txt").read_text().splitlines()[1:]
    assert predictions == [f"{i}\t{','.join(row['label'])}" for i, row in enumerate(rows[:20])]


def test_defaults_are_the_papers(tmp_path):
    args = FineTuningArguments(output_dir=str(tmp_path))
    assert args.num_train_epochs == 3 and args.per_device_train_batch_size == 32
    assert args.lr_scheduler_type == "linear" and args.get_warmup_steps(200) == 20 and args.weight_decay == 0.01
    model = SnugBertForSequenceClassification(SnugBertConfig.from_size("tiny", num_hidden_layers=1, vocab_size=9))
    decayed = Trainer(model=model, args=args).get_decay_parameter_names(model)
    assert all(("LayerNorm" in name or "bias" in name) != (name in decayed) for name, _ in model.named_parameters())


def test_training_equals_stock_bert_under_trainer(workshop, tmp_path):
    """Without dropout, three epochs of the command equal three epochs of the stock model under the stock Trainer.

    They start from a stock checkpoint in 16 bits, like some published ones.
    """
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    bert = tmp_path / "bert"
    config = BertConfig(vocab_size=len(VOCABULARY), **sizes, **dropout)
    BertForSequenceClassification(config).bfloat16().save_pretrained(bert)
    settings = {"per_device_train_batch_size": 16, "num_train_epochs": 3, "learning_rate": 1e-3, "use_cpu": True}
    changes = {**checkpoint_of(bert), "tokenizer_name": workshop / "tokenizer", **settings}
    run_command("glue", arguments(workshop, tmp_path / "ours", **changes))
    ours = SnugBertForSequenceClassification.from_pretrained(tmp_path / "ours")

    tokenizer = SnugBertTokenizer.from_pretrained(workshop / "tokenizer")
    examples = Dataset.from_list(sentences(160, seed=1)).map(
        lambda row: {**tokenizer(row["sentence"]), "label": list(WORDS).index(row["label"])}, remove_columns="sentence"
    )
    stock = BertForSequenceClassification.from_pretrained(bert, dtype=torch.float32)
    defaults = {"warmup_steps": 0.1, "weight_decay": 0.01, "disable_tqdm": True}
    trainer = Trainer(
        model=stock,
        args=TrainingArguments(output_dir=str(tmp_path / "stock"), **settings, **defaults),
        train_dataset=examples,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    loss = trainer.train().training_loss
    results = json.loads((tmp_path / "ours" / "train_results.json").read_text())
    assert results["train_loss"] == pytest.approx(loss, abs=1e-5)
    trained = dict(ours.named_parameters())
    for name, weight in stock.named_parameters():
        torch.testing.assert_close(trained[name], weight, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_file": "missing.csv"}, "--train_file: missing.csv: no such file"),
        ({"train_file": None, "do_train": True}, "no train examples. Pass --train_file"),
        ({"task_name": "imdb"}, "--task_name: .*imdb"),
        ({"data_dir": "{workshop}"}, "--data_dir has the files of a GLUE task. Set --task_name"),
        ({"data_dir": "{workshop}", "task_name": "all", **NO_FILES}, "contains no GLUE files such as"),
        ({"task_name": "all"}, "--train_file is for a single task. The data of all tasks come from --data_dir or"),
        ({"task_name": "all", "doc_stride": 3, **NO_FILES}, "--doc_stride cannot read pairs of texts"),
        ({"doc_stride": 3, "text_column_names": "sentence,sentence"}, "--doc_stride: pairs of texts cannot be cut"),
        ({"doc_stride": 14, "max_seq_length": 16}, "--doc_stride 14 must be less than 14, the number of text tokens"),
        ({"metric_for_best_model": "matthews"}, r"has no metric 'matthews'\. Choose one of accuracy"),
        ({"task_name": "sst2"}, r"train\.csv, row 2: unknown label 'cheerful'\. Expected one of negative, positive"),
        ({"text_column_names": "label", "label_column_name": "sentence"}, "cannot read texts from column 'label'"),
        ({"config_name": None}, "--model_name_or_path is missing"),
        ({"tokenizer_name": None}, "--tokenizer_name is missing. A model with random weights"),
        ({"config_overrides": SMALL + ",vocab_size=9"}, "tokens, but the model's vocabulary has only 9"),
        ({"model_name_or_path": "{workshop}"}, "invalid configuration .*: there is no config.json"),
    ],
)
def test_bad_arguments(changes, message, tmp_path, workshop, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = {k: v.replace("{workshop}", str(workshop)) if isinstance(v, str) else v for k, v in changes.items()}
    if "model_name_or_path" in changes:
        changes["config_name"] = None
    with pytest.raises(InputError, match=message):
        run_command("glue", arguments(workshop, tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_classifier_for_other_labels_and_columns(run, workshop, tmp_path):
    """Its checkpoint stores the columns: a file to score may have more columns of text, in another order."""
    rows = [{"title": f"{word} a plot", "body": word, "mood": i} for i, word in enumerate(["a", "the", "film"] * 4)]
    file, flags = write_csv(tmp_path / "train.csv", rows), {"label_column_name": "mood", "validation_file": None}
    changes = {"train_file": file, "text_column_names": "body", "max_steps": 1}
    command = arguments(workshop, tmp_path / "model", **checkpoint_of(run) | flags | changes)
    with pytest.raises(InputError, match=r"labels in this data: 12\. To replace .*, add --ignore_mismatched_sizes"):
        run_command("glue", command)
    run_command("glue", [*command, "--ignore_mismatched_sizes"])
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert len(config["id2label"]) == 12 and config["text_columns"] == ["body"]
    flags = checkpoint_of(tmp_path / "model") | flags | {"train_file": None, "validation_file": file}
    scored = []
    for changes in ({"text_column_names": "body"}, {}):
        run_command("glue", arguments(workshop, tmp_path / "scored", **flags | changes))
        scored.append(read_predictions(tmp_path / "scored/eval_predictions.jsonl"))
    assert scored[0] == scored[1]


def test_only_a_model_with_trained_weights_is_scored(run, workshop, tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nit was fine\t1\nit was bad\t0\n")
    data = {"task_name": "sst2", "train_file": None, "validation_file": tmp_path / "dev.tsv"}
    # A token classifier's head has weights of this name and size.
    SnugBertForTokenClassification.from_pretrained(run).save_pretrained(tmp_path / "tagger")
    SnugBertForSequenceClassification.from_pretrained(run, num_labels=3, ignore_mismatched_sizes=True).save_pretrained(
        tmp_path / "other"
    )
    for name, more, message in (
        ("tagger", {}, r"tagger: the architecture SnugBertForTokenClassification has no head for this task\. Choose"),
        ("other", {}, r"weights of .*other do not fit its configuration\. Number of labels in this data: 2"),
        ("other", {"ignore_mismatched_sizes": True}, r"other has no weights for classifier.bias, classifier.weight"),
    ):
        changes = {**checkpoint_of(tmp_path / name), "tokenizer_name": workshop / "tokenizer", **data, **more}
        with pytest.raises(InputError, match=message):
            run_command("glue", arguments(workshop, tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()
