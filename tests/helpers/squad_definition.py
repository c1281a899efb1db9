"""A second implementation of SQuAD's metrics, from their definition, to compare with."""

import re
from collections import Counter
from operator import itemgetter


def words(text: str) -> list[str]:
    kept = "".join(letter for letter in text.lower() if letter not in r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~""")
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def definition_1(predictions: dict[str, str], golds: dict[str, list[str]]) -> dict[str, float]:
    """The metrics of evaluate-v1.1.py."""
    total = exact = f1 = 0
    for question in golds:
        total += 1
        exact += max([words(predictions[question]) == words(answer) for answer in golds[question]])
        f1 += max([definition_f1(words(predictions[question]), words(answer)) for answer in golds[question]])
    return {"exact_match": 100.0 * exact / total, "f1": 100.0 * f1 / total}


def definition_f1(predicted: list[str], gold: list[str]) -> float:
    shared = Counter(predicted) & Counter(gold)
    if not shared:
        return 0
    precision, recall = shared.total() / len(predicted), shared.total() / len(gold)
    return 2 * precision * recall / (precision + recall)


def definition_2(predictions, golds, odds, threshold) -> dict[str, float]:
    """The metrics of evaluate-v2.0.py with a file of odds."""
    exact, f1 = {}, {}
    for question, answers in golds.items():
        answers = [answer for answer in answers if words(answer)] or [""]
        predicted = words(predictions[question])
        exact[question] = max([1 if predicted == words(answer) else 0 for answer in answers])
        f1[question] = max(
            [
                definition_f1(predicted, words(a)) if predicted and words(a) else int(predicted == words(a))
                for a in answers
            ]
        )
    counted = {}
    for name, scores in (("exact", exact), ("f1", f1)):
        counted[name] = {q: float(not golds[q]) if odds[q] > threshold else score for q, score in scores.items()}
    metrics = {}
    for prefix, questions in (
        ("", list(golds)),
        ("HasAns_", [q for q in golds if golds[q]]),
        ("NoAns_", [q for q in golds if not golds[q]]),
    ):
        if not questions:
            continue
        for name in ("exact", "f1"):
            total = 0
            for question in questions:  # the script calls `sum`, which rounds differently since Python 3.12
                total += counted[name][question]
            metrics[prefix + name] = 100.0 * total / len(questions)
        metrics[prefix + "total"] = len(questions)
    for name, scores in (("exact", exact), ("f1", f1)):
        best = now = sum([not answers for answers in golds.values()])
        best_threshold = 0.0
        for question, value in sorted(odds.items(), key=itemgetter(1)):
            if question in scores:
                now += scores[question] if golds[question] else (-1 if predictions[question] else 0)
                if now > best:
                    best, best_threshold = now, value
        metrics[f"best_{name}"] = 100.0 * best / len(scores)
        metrics[f"best_{name}_thresh"] = best_threshold
    return metrics
