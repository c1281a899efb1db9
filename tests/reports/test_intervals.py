"""Intervals of scores against a plain bootstrap that scores resampled examples with the official metric."""

from functools import partial

import numpy as np
import pytest
import sklearn.metrics
from scipy.stats import pearsonr, spearmanr, ttest_1samp
from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score
from sklearn.metrics import f1_score as f1_of_label
from squad_definition import definition_1, definition_2

from snugbert.data.squad import Question
from snugbert.reports import intervals
from snugbert.reports.intervals import SEED, TAILS, bootstrap, combine_intervals, estimate_mean_interval
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.question_answering import QuestionAnswering, QuestionSplit
from snugbert.tasks.spans import Answer
from snugbert.tasks.tagging import Tagging

RESAMPLES = 20
GENERATOR = np.random.default_rng(3)


@pytest.fixture
def few_resamples(monkeypatch):
    monkeypatch.setattr(intervals.bootstrap, "__defaults__", (RESAMPLES,))


def plain_bootstrap(number: int, score) -> dict[str, tuple[float, float]]:
    """Draws the same examples, and scores each resample from scratch."""
    generator = np.random.default_rng(SEED)
    drawn = [score(generator.integers(number, size=number)) for _ in range(RESAMPLES)]
    names = [name for name in drawn[0] if not np.isnan([metrics[name] for metrics in drawn]).all()]
    return {name: tuple(np.nanpercentile([metrics[name] for metrics in drawn], TAILS)) for name in names}


def check(task, split, answers, number: int, score) -> dict[str, tuple[float, float]]:
    """Compares scores and intervals with a reference. `score` gets the numbers of the drawn examples."""
    rows, expected = task.measure(split, answers), score(np.arange(number))
    metrics = task.score(split, rows)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-12, nan_ok=True)
    ours, plain = bootstrap(rows, partial(task.score, split)), plain_bootstrap(number, score)
    assert ours.keys() == plain.keys()
    for name, interval in plain.items():
        assert ours[name] == pytest.approx(interval, abs=1e-12), name
        assert interval[0] <= interval[1]
    return ours


@pytest.mark.parametrize(
    ("task", "labels", "number"),
    [
        (None, list("abcdefghijk"), 120),
        ("cola", ["unacceptable", "acceptable"], 3),  # resamples with one label only: the correlation is 0
        ("mrpc", ["equivalent", "not_equivalent"], 120),  # the checkpoint's ids are not the task's
        ("qqp", ["not_duplicate", "duplicate"], 120),
        *((task, ["entailment", "not_entailment"], 120) for task in ("qnli", "rte", "wnli")),
        ("sst2", ["negative", "positive"], 120),
        # MNLI's diagnostic set has the Matthews correlation of three classes.
        ("mnli", ["entailment", "neutral", "contradiction"], 120),
    ],
)
@pytest.mark.filterwarnings("ignore:A single label was found")  # from scikit-learn
@pytest.mark.usefixtures("few_resamples")
def test_classes(task, labels, number):
    references = GENERATOR.integers(len(labels), size=number)
    noise = GENERATOR.integers(len(labels), size=number)
    predictions = np.where(GENERATOR.random(number) < 0.6, references, noise)
    classification = TextClassification(task_name=task)
    classification.labels = labels
    split, answers = classification.pair(references, predictions)
    split.name = "test_diagnostic" if task == "mnli" else split.name

    def score(drawn):
        pair = references[drawn], predictions[drawn]
        if task in ("cola", "mnli"):
            return {"matthews_correlation": sklearn.metrics.matthews_corrcoef(*pair)}
        accuracy = sklearn.metrics.accuracy_score(*pair)
        if task not in ("mrpc", "qqp"):
            return {"accuracy": accuracy}
        f1 = f1_of_label(*pair, pos_label=int(task == "qqp"), zero_division=0)
        return {"accuracy": accuracy, "f1": f1, "combined_score": (accuracy + f1) / 2}

    assert check(classification, split, answers, number, score)


@pytest.mark.parametrize("task", ["stsb", None])
@pytest.mark.parametrize("spread", ["distinct", "ties", "constant"])
@pytest.mark.filterwarnings("ignore:An input array is constant")  # from SciPy
@pytest.mark.usefixtures("few_resamples")
def test_numbers(task, spread):
    references = GENERATOR.normal(size=80)
    predictions = (references + GENERATOR.normal(size=80)).astype(np.float32)
    if spread != "distinct":
        references, predictions = references.round(), predictions.round()
    if spread == "constant":
        predictions[:] = 0.1
    regression = TextClassification(task_name=task, do_regression=None if task else True)

    def score(drawn):
        pair = predictions[drawn].astype(np.float64), references[drawn]
        if task is None:
            return {"mse": sklearn.metrics.mean_squared_error(*pair)}
        pearson, spearman = pearsonr(*pair).statistic, spearmanr(*pair).statistic
        return {"pearson": pearson, "spearmanr": spearman, "combined_score": (pearson + spearman) / 2}

    ours = check(regression, *regression.pair(references, predictions), 80, score)
    assert bool(ours) == (spread != "constant" or task is None)  # correlations with a constant are undefined


@pytest.mark.usefixtures("few_resamples")
def test_label_sets():
    references = GENERATOR.integers(2, size=(60, 4))
    references[:, 3] = 0  # a label without references, which is never predicted in some resamples
    predictions = np.where(GENERATOR.random((60, 4)) < 0.2, 1 - references, references)

    def score(drawn):
        pair = references[drawn], predictions[drawn]
        micro, macro = (f1_of_label(*pair, average=average, zero_division=0) for average in ("micro", "macro"))
        return {"micro_f1": micro, "macro_f1": macro, "subset_accuracy": sklearn.metrics.accuracy_score(*pair)}

    task = TextClassification(label_separator=",")
    assert check(task, *task.pair(references, predictions), 60, score)


TAGS = ["O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def tagged(number: int, share: float = 0.2) -> tuple[list[list[str]], list[list[str]]]:
    rows = [[TAGS[i] for i in GENERATOR.integers(len(TAGS), size=GENERATOR.integers(1, 9))] for _ in range(number)]
    predicted = [[TAGS[GENERATOR.integers(6)] if GENERATOR.random() < share else tag for tag in row] for row in rows]
    return rows, predicted


@pytest.mark.parametrize("nothing_predicted", [False, True])
@pytest.mark.usefixtures("few_resamples")
def test_entities(nothing_predicted):
    references, predicted = tagged(50)
    if nothing_predicted:
        predicted = [["O"] * len(row) for row in predicted]

    def score(drawn):
        tags = [[rows[i] for i in drawn] for rows in (references, predicted)]
        entities = {"precision": precision_score, "recall": recall_score, "f1": f1_score}
        metrics = {name: function(*tags, zero_division=0) for name, function in entities.items()}
        return {**metrics, "accuracy": accuracy_score(*tags)}

    assert check(Tagging(), *Tagging().pair(references, predicted), 50, score)


@pytest.mark.parametrize("share_without_answer", [None, 0.4, 0.0])
@pytest.mark.usefixtures("few_resamples")
def test_questions(share_without_answer):
    """Each drawn question gets a new id, because the official scripts need one id per question."""
    words, number, version_2 = "the red house on a green hill".split(), 60, share_without_answer is not None

    def text():
        return " ".join(GENERATOR.choice(words, size=GENERATOR.integers(1, 4)))

    golds = [[text()] if GENERATOR.random() >= (share_without_answer or 0) else [] for _ in range(number)]
    spans = [answers[0] if answers and GENERATOR.random() < 0.5 else text() for answers in golds]
    odds = [GENERATOR.normal() + 2 * (not answers) for answers in golds]
    task = QuestionAnswering(version_2_with_negative=version_2)
    split = QuestionSplit("validation", [Question(str(i), "", "", tuple(texts)) for i, texts in enumerate(golds)])
    answers = [
        Answer("" if version_2 and odd > 0.5 else span, odd, span, []) for span, odd in zip(spans, odds, strict=True)
    ]

    def score(drawn):
        new = {str(place): i for place, i in enumerate(drawn)}
        some_golds = {name: golds[i] for name, i in new.items()}
        texts = {name: answers[i].text for name, i in new.items()}
        if not version_2:
            return definition_1(texts, some_golds)
        some_odds = {name: odds[i] for name, i in new.items()}
        best = definition_2({name: spans[i] for name, i in new.items()}, some_golds, some_odds, np.inf)
        metrics = definition_2(texts, some_golds, some_odds, np.inf)
        metrics |= {name: value for name, value in best.items() if name.startswith("best_")}
        return {name: value for name, value in metrics.items() if not name.endswith(("total", "_thresh"))}

    ours = check(task, split, answers, number, score)
    assert ("NoAns_f1" in ours) == bool(share_without_answer)


def test_means_and_averages():
    values = [0.71, 0.74, 0.69, 0.8, 0.73]
    assert estimate_mean_interval(values) == pytest.approx(tuple(ttest_1samp(values, 0).confidence_interval(0.95)))
    assert estimate_mean_interval([0.7]) is None and estimate_mean_interval([0.7, np.nan]) is None
    # Symmetric intervals of independent scores: variances add up.
    assert combine_intervals([0.5, 0.7], [(0.2, 0.8), (0.3, 1.1)]) == pytest.approx((0.35, 0.85))
