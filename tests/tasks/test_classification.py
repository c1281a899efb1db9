"""The task of `snugbert glue`: predictions, and their scores next to scikit-learn and SciPy."""

import itertools

import evaluate
import numpy as np
import pytest
import sklearn.metrics
from datasets import Dataset
from glue_examples import VOCABULARY
from scipy.stats import pearsonr, spearmanr

import snugbert
from snugbert.cli.parser import parse_arguments
from snugbert.data.sources import DataSource
from snugbert.errors import InputError
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.evaluation_set import make_evaluation_set
from snugbert.tasks.labeled_texts import TextSplit
from snugbert.tasks.metrics import TaskMetric
from snugbert.tasks.question_answering import QuestionAnswering
from snugbert.tasks.task_arguments import GlueDataArguments


def test_each_split_is_named_from_its_own_source(tmp_path):
    """MNLI from a folder and from the Hub, and with one file of your own."""

    def name(split, in_dataset=None, **arguments):
        examples = TextSplit(split, "", texts=[[""] * 7], split_in_dataset=in_dataset)
        (source,) = TextClassification(**arguments).describe_sources(examples)
        return source

    glue = {"num_examples": 7, "hub_id": "nyu-mll/glue", "config_name": "mnli"}
    mnli = {"task_name": "mnli", "data_dir": str(tmp_path)}
    assert name("train", **mnli) == DataSource("GLUE MNLI", "train", **glue)
    assert name("validation", **mnli) == DataSource("GLUE MNLI", "validation_matched", **glue)
    assert name("test_diagnostic", task_name="mnli") == DataSource("GLUE diagnostic", "test", 7, "nyu-mll/glue", "ax")
    (tmp_path / "own.tsv").touch()
    own = {**mnli, "validation_file": str(tmp_path / "own.tsv")}
    assert name("validation", **own) == DataSource("own.tsv", "validation", 7)
    assert name("validation_mismatched", **own) == DataSource("GLUE MNLI", "validation_mismatched", **glue)
    hub = DataSource("me/nli (en)", "validation_matched", 7, "me/nli", "en")
    assert name("validation", "validation_matched", dataset_name="me/nli", dataset_config_name="en") == hub


def score(task: TextClassification, predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
    split, answers = task.pair(references, predictions)
    return task.score(split, task.measure(split, answers))


@pytest.mark.parametrize("shares", [(0.1, 0.2, 0.05, 0.1), (0.9, 0.3, 0.6, 0.5)])
def test_the_baseline_of_several_labels_is_the_best_constant(shares):
    references = (np.random.default_rng(0).random((200, 4)) < shares).astype(int)
    task = TextClassification(label_separator=",")
    task.labels = list("abcd")
    scores = {
        "".join(itertools.compress("abcd", answer)): score(task, np.tile(answer, (200, 1)), references)
        for answer in itertools.product((0, 1), repeat=4)
    }
    best = max(scores, key=lambda answer: scores[answer]["micro_f1"])
    baseline = task.baseline(task.pair(references, references)[0], None)
    assert baseline == (f"always {', '.join(best)!r}", scores[best])
    assert baseline.metrics["micro_f1"] > 0.2


@pytest.mark.parametrize(
    ("flags", "value"), [([], None), (["--do_regression"], True), (["--do_regression", "no"], False)]
)
def test_do_regression_is_true_false_or_inferred(flags, value):
    argv = [*flags, "--dataset_name", "imdb"]
    assert parse_arguments((GlueDataArguments,), argv, "snugbert glue", "")[0].do_regression is value


OWN = {"classification": {}, "multi_label": {"label_separator": ","}, "regression": {"do_regression": True}}


def metric(task: str, **kwargs) -> TaskMetric:
    return TaskMetric(TextClassification(**OWN.get(task, {"task_name": task})), **kwargs)


def compute(task: str, predictions, references) -> dict[str, float]:
    """Returns the metrics. The mean of two, `combined_score`, is checked and left out."""
    metrics = metric(task, keep_in_memory=True).compute(predictions=predictions, references=references)
    combined = metrics.pop("combined_score", None)
    mean = float(np.mean(list(metrics.values())))
    assert (combined == pytest.approx(mean, nan_ok=True)) if task in ("mrpc", "qqp", "stsb") else combined is None
    return metrics


def test_labels_equal_scikit_learn():
    random = np.random.default_rng(0)
    for classes in (2, 3):
        references = random.integers(0, classes, 1000)
        predictions = np.where(random.random(1000) < 0.7, references, random.integers(0, classes, 1000))
        accuracy = sklearn.metrics.accuracy_score(references, predictions)
        for task in ("rte", "sst2", "qnli", "wnli", "mnli", "classification"):
            assert compute(task, predictions, references) == {"accuracy": accuracy}
        expected = pytest.approx(sklearn.metrics.matthews_corrcoef(references, predictions), abs=1e-12)
        assert compute("cola", predictions, references) == {"matthews_correlation": expected}
        f1 = sklearn.metrics.f1_score(references == 1, predictions == 1)
        for task in ("mrpc", "qqp"):
            assert compute(task, predictions, references) == {"accuracy": accuracy, "f1": f1}


def test_several_labels_equal_scikit_learn():
    random = np.random.default_rng(0)
    references, noise = random.integers(0, 2, (2, 500, 7))
    predictions = np.where(random.random((500, 7)) < 0.8, references, noise)
    references[:, 0] = predictions[:, 0] = 0  # a label that never occurs
    expected = {
        f"{mean}_f1": sklearn.metrics.f1_score(references, predictions, average=mean, zero_division=0)
        for mean in ("micro", "macro")
    }
    expected["subset_accuracy"] = sklearn.metrics.accuracy_score(references, predictions)
    assert compute("multi_label", predictions, references) == pytest.approx(expected)


def test_numbers_equal_scipy():
    random = np.random.default_rng(0)
    references = random.integers(0, 11, 500) / 2  # with ties, as in STS-B
    predictions = references + random.normal(size=500)
    expected = {
        "pearson": pearsonr(predictions, references).statistic,
        "spearmanr": spearmanr(predictions, references).statistic,
    }
    assert compute("stsb", predictions, references) == pytest.approx(expected, abs=1e-12)
    error = sklearn.metrics.mean_squared_error(references, predictions)
    assert compute("regression", predictions, references)["mse"] == pytest.approx(error, abs=1e-12)


@pytest.mark.filterwarnings("error")
def test_constant_predictions():
    assert compute("cola", [1, 1, 1], [1, 0, 1]) == {"matthews_correlation": 0.0}
    assert compute("mrpc", [0, 0, 0], [1, 0, 1]) == pytest.approx({"accuracy": 1 / 3, "f1": 0.0})
    assert all(np.isnan(value) for value in compute("stsb", [2.5, 2.5, 2.5], [1.0, 2.0, 3.0]).values())


def test_evaluate_adds_batches_and_combines_metrics(tmp_path):
    random = np.random.default_rng(1)
    predictions, references = random.integers(0, 2, (2, 90))
    batches = metric("mrpc", cache_dir=str(tmp_path))  # on disk, evaluate's default
    for i in range(0, 90, 32):
        batches.add_batch(predictions=predictions[i : i + 32], references=references[i : i + 32])
    at_once = compute("mrpc", predictions, references)
    assert batches.compute().items() >= at_once.items()
    combined = evaluate.combine([metric("qqp", keep_in_memory=True), metric("cola", keep_in_memory=True)])
    metrics = combined.compute(predictions=predictions, references=references)
    del metrics["combined_score"]
    assert metrics == {**at_once, **compute("cola", predictions, references)}


def test_a_dataset_in_memory_is_scored_with_a_models_labels():
    """The labels have the model's order. Other labels are refused."""
    tokenizer = snugbert.SnugBertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)})
    config = snugbert.SnugBertConfig(id2label={0: "gloomy", 1: "cheerful"}, label2id={"gloomy": 0, "cheerful": 1})
    rows = {"text": ["a good film", "a bad film"], "label": ["cheerful", "gloomy"]}
    data = {"validation": [Dataset.from_dict(rows)]}
    validation = make_evaluation_set(TextClassification(), config, tokenizer, data)
    assert validation.features.inputs["label"][:] == [1, 0]
    assert validation.score(validation.decode(np.eye(2)[[1, 1]])) == {"accuracy": 0.5}
    assert validation.task.describe_sources(validation.split) == [DataSource("dataset", "validation", 2)]
    other = Dataset.from_dict({**rows, "label": ["cheerful", "odd"]})
    with pytest.raises(InputError, match=r"the dataset \(validation\), row 2: unknown label 'odd'"):
        make_evaluation_set(TextClassification(), config, tokenizer, {"validation": [other]})
    unlabeled = Dataset.from_dict({"id": ["1"], "context": ["a good film"], "question": ["a film?"]})
    with pytest.raises(InputError, match=r"^the dataset \(validation\) has no labels"):
        make_evaluation_set(QuestionAnswering(), config, tokenizer, {"validation": [unlabeled]})
