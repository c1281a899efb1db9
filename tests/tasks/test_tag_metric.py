"""The metric of entities and its baseline, by hand and on real tags with noise."""

import random
import re

import pytest
from conll import all_tags

from snugbert.data.conll import NerSplit, Sentence
from snugbert.tasks.entity_tags import decode_tags, encode_tags
from snugbert.tasks.tag_metric import NerMetric, predict_most_frequent_tags, score_tags


def compute(predictions: list[list[str]], references: list[list[str]]) -> dict[str, float]:
    return NerMetric(keep_in_memory=True).compute(predictions=predictions, references=references)


def test_metric_by_hand():
    references = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "B-ORG", "O"]]
    # The person is too short and the location correct. One organization is correct, one is missed, one is spurious.
    predictions = [["B-PER", "O", "O", "B-LOC"], ["B-ORG", "O", "I-ORG"]]
    metrics = compute(predictions, references)
    assert metrics == pytest.approx(
        {
            "precision": 2 / 4,
            "recall": 2 / 4,
            "f1": 2 / 4,
            "accuracy": 4 / 7,
            **{"PER_precision": 0, "PER_recall": 0, "PER_f1": 0, "PER_number": 1},
            **{"LOC_precision": 1, "LOC_recall": 1, "LOC_f1": 1, "LOC_number": 1},
            **{"ORG_precision": 1 / 2, "ORG_recall": 1 / 2, "ORG_f1": 1 / 2, "ORG_number": 2},
        }
    )
    nothing = compute([["O", "O"]], [["O", "O"]])
    assert nothing == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "accuracy": 1.0}
    assert compute([["O", "O"]], [["B-PER", "O"]])["f1"] == 0.0


def spans(tags: list[str]) -> set[tuple[str, int, int]]:
    """Finds the entities of BIO tags with a regular expression."""
    kinds = sorted({tag[2:] for tag in tags} - {""})
    found = set()
    for kind in kinds:
        letters = "".join(tag[0] if tag[2:] == kind else "O" for tag in tags)
        found |= {(kind, *match.span()) for match in re.finditer("[BI]I*", letters)}
    return found


def test_metric_on_noisy_real_tags(part):
    generator = random.Random(0)
    references = all_tags(part)
    tags = sorted({tag for row in references for tag in row})
    predictions = [[generator.choice(tags) if generator.random() < 0.2 else tag for tag in row] for row in references]
    metrics = compute(predictions, references)
    correct, given = (
        {(i, *span) for i, row in enumerate(rows) for span in spans(row)} for rows in (references, predictions)
    )
    for prefix in ("", "LOC_", "PER_", "ORG_", "MISC_"):
        predicted, expected = ({s for s in group if prefix in ("", f"{s[1]}_")} for group in (given, correct))
        both = len(predicted & expected)
        assert metrics[f"{prefix}precision"] == pytest.approx(both / len(predicted), abs=1e-12)
        assert metrics[f"{prefix}recall"] == pytest.approx(both / len(expected), abs=1e-12)
        assert metrics[f"{prefix}f1"] == pytest.approx(2 * both / (len(predicted) + len(expected)), abs=1e-12)
    pairs = [pair for rows in zip(predictions, references, strict=True) for pair in zip(*rows, strict=True)]
    assert metrics["accuracy"] == pytest.approx(sum(a == b for a, b in pairs) / len(pairs), abs=1e-12)
    # Predictions repaired as conlleval reads them score the same.
    valid = [encode_tags(decode_tags(row), len(row), "bio") for row in predictions]
    assert {**compute(valid, references), "accuracy": metrics["accuracy"]} == metrics


def test_baseline_predicts_most_frequent_tags():
    train = NerSplit("s", [Sentence(["a", "b", "a", "a"], ["B-X", "O", "O", "B-X"], 1)], True)
    test = NerSplit("s", [Sentence(["a", "c"], ["B-X", "B-X"], 1)], True)
    assert predict_most_frequent_tags(train, test) == [["B-X", "O"]]
    assert score_tags(test, [["B-X", "O"]])["f1"] == pytest.approx(2 / 3)
