"""Intervals of scores: equal to a bootstrap that calls the metric on every resample."""

import numpy as np
import pytest

from snugbert.trainers.finetuning.intervals import (
    bootstrap,
    draw,
    interval_of_mean,
    resample_classes,
    resample_entities,
    resample_label_sets,
    resample_means,
    resample_numbers,
)
from snugbert.trainers.glue.metric import GlueMetric
from snugbert.trainers.ner.data import NerSplit, Sentence
from snugbert.trainers.ner.metric import count_entities, score_tags
from snugbert.trainers.squad.metric import squad_metrics, squad_scores, squad_v2_metrics

N, R = 60, 12
INDICES = np.concatenate(list(draw(N, R)))
RANDOM = np.random.default_rng(1)


def check(resample, score):
    """Compares resampled scores with `score`, which gets the indices of the drawn examples."""
    found = resample(INDICES)
    expected = [score(row) for row in INDICES]
    assert found and all(metric in expected[0] for metric in found)
    for metric, values in found.items():
        np.testing.assert_allclose(values, [one[metric] for one in expected], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("task", "classes"), [("mrpc", 2), ("cola", 2), ("ax", 3), ("classification", 20)])
def test_classes(task, classes):
    references = RANDOM.integers(classes, size=N)
    predictions = np.where(RANDOM.random(N) < 0.6, references, RANDOM.integers(classes, size=N))
    metrics = {"mrpc": ("accuracy", "f1"), "classification": ("accuracy",)}.get(task, ("matthews_correlation",))
    metric = GlueMetric(task, keep_in_memory=True)
    check(
        resample_classes(predictions, references, metrics),
        lambda rows: metric.compute(predictions=predictions[rows], references=references[rows]),
    )


def test_constant_answers():
    zeros = np.zeros(N, dtype=np.int64)
    scores = resample_classes(zeros, zeros, ("accuracy", "f1", "matthews_correlation"))(INDICES)
    assert {name: set(values) for name, values in scores.items()} == {
        "accuracy": {1.0},
        "f1": {0.0},
        "matthews_correlation": {0.0},
    }
    assert bootstrap(resample_numbers(np.zeros(N), RANDOM.random(N), ("pearson",)), N) == {}


def test_label_sets():
    references = (RANDOM.random((N, 5)) < 0.4).astype(np.int64)
    predictions = np.where(RANDOM.random((N, 5)) < 0.8, references, 1 - references)
    predictions[:, 4] = references[:, 4] = 0  # a label without predictions and references
    metric = GlueMetric("multi_label", keep_in_memory=True)
    check(
        resample_label_sets(predictions, references),
        lambda rows: metric.compute(predictions=predictions[rows], references=references[rows]),
    )


@pytest.mark.parametrize(("task", "metrics"), [("stsb", ("pearson", "spearmanr")), ("regression", ("mse",))])
def test_numbers(task, metrics):
    references = RANDOM.integers(6, size=N) / 2  # with ties
    predictions = references + RANDOM.normal(size=N)
    metric = GlueMetric(task, keep_in_memory=True)
    check(
        resample_numbers(predictions, references, metrics),
        lambda rows: metric.compute(predictions=predictions[rows], references=references[rows]),
    )


def test_entities():
    def tags() -> list[list[str]]:
        return [RANDOM.choice(["O", "O", "B-PER", "I-PER", "B-LOC"], size=6).tolist() for _ in range(N)]

    references, predictions = tags(), tags()
    predictions = [p if i % 2 else r for i, (p, r) in enumerate(zip(predictions, references, strict=True))]
    words = [f"w{i}" for i in range(6)]
    split = NerSplit("x", [Sentence(words, one, i) for i, one in enumerate(references)], True)

    def score(rows):
        return score_tags(split._replace(sentences=[split.sentences[i] for i in rows]), [predictions[i] for i in rows])

    check(resample_entities(count_entities(split, predictions)), score)


@pytest.mark.parametrize("version_2", [False, True])
def test_questions(version_2):
    words = np.array("a big cat sat on the mat".split())
    golds = {f"q{i}": (" ".join(RANDOM.choice(words, 3)),) for i in range(N)}
    if version_2:
        golds |= {f"q{i}": () for i in range(0, N, 3)}
    texts = {
        q: (answers or ("",))[0] if i % 2 else " ".join(RANDOM.choice(words, 2))
        for i, (q, answers) in enumerate(golds.items())
    }
    exact, f1 = squad_scores(texts, golds, version_2)

    def score(rows):
        drawn = {f"{k}": f"q{i}" for k, i in enumerate(rows)}
        parts = [{k: values[q] for k, q in drawn.items()} for values in (exact, f1, texts, golds)]
        return squad_v2_metrics(*parts) if version_2 else squad_metrics(*parts[:2])

    values = [np.array(list(one.values()), dtype=np.float64) for one in (exact, f1)]
    if not version_2:
        check(resample_means({"exact_match": values[0], "f1": values[1]}), score)
        return
    answered = np.array([bool(answers) for answers in golds.values()])
    groups = {"": np.ones(N, dtype=bool), "HasAns_": answered, "NoAns_": ~answered}
    columns = {
        f"{group}{name}": np.where(counts, one, np.nan)
        for group, counts in groups.items()
        for name, one in zip(("exact", "f1"), values, strict=True)
    }
    check(resample_means(columns), score)


def test_the_interval_covers_the_true_accuracy():
    """Of 200 samples of 100 examples with accuracy 0.8, about 95 % have an interval that contains 0.8."""
    covered = 0
    for seed in range(200):
        correct = (np.random.default_rng(seed).random(100) < 0.8).astype(np.int64)
        low, high = bootstrap(resample_classes(correct, np.ones(100, dtype=np.int64), ("accuracy",)), 100, 200)[
            "accuracy"
        ]
        covered += low <= 0.8 <= high
    assert 0.9 < covered / 200 < 0.98


def test_the_mean_over_seeds():
    """Student's t with 4 degrees of freedom: 2.776 standard errors."""
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    half = 2.776445 * np.std(values, ddof=1) / np.sqrt(5)
    assert interval_of_mean(values) == pytest.approx([3 - half, 3 + half])
    assert interval_of_mean([1.0]) is None
