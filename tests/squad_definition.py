"""SQuAD's metrics written down once more from their definition, to compare ours with."""

import re
from collections import Counter
from operator import itemgetter


def words(text: str) -> list[str]:
    kept = "".join(letter for letter in text.lower() if letter not in r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~""")
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def definition_1(predictions: dict[str, str], golds: dict[str, list[str]]) -> dict[str, float]:
    """What evaluate-v1.1.py counts."""
    total = exact = f1 = 0
    for question in golds:
        total += 1
        exact += max([words(predictions[question]) == words(answer) for answer in golds[question]])
        f1 += max([definition_f1(words(predictions[question]), words(answer)) for answer in golds[question]])
    return {"exact_match": 100.0 * exact / total, "f1": 100.0 * f1 / total}


def definition_f1(predicted: list[str], right: list[str]) -> float:
    shared = Counter(predicted) & Counter(right)
    if not shared:
        return 0
    precision, recall = shared.total() / len(predicted), shared.total() / len(right)
    return 2 * precision * recall / (precision + recall)


def definition_2(predictions, golds, odds, threshold) -> dict[str, float]:
    """What evaluate-v2.0.py counts, given a file of odds."""
    exact, f1 = {}, {}
    for question, answers in golds.items():
        answers = [answer for answer in answers if words(answer)] or [""]
        said = words(predictions[question])
        exact[question] = max([1 if said == words(answer) else 0 for answer in answers])
        f1[question] = max(
            [definition_f1(said, words(a)) if said and words(a) else int(said == words(a)) for a in answers]
        )
    counted = {}
    for name, scores in (("exact", exact), ("f1", f1)):
        counted[name] = {q: float(not golds[q]) if odds[q] > threshold else score for q, score in scores.items()}
    figures = {}
    for prefix, questions in (
        ("", list(golds)),
        ("HasAns_", [q for q in golds if golds[q]]),
        ("NoAns_", [q for q in golds if not golds[q]]),
    ):
        for name in ("exact", "f1"):
            figures[prefix + name] = 100.0 * sum([counted[name][q] for q in questions]) / len(questions)
        figures[prefix + "total"] = len(questions)
    for name, scores in (("exact", exact), ("f1", f1)):
        best = now = sum([not answers for answers in golds.values()])
        best_threshold = 0.0
        for question, value in sorted(odds.items(), key=itemgetter(1)):
            if question in scores:
                now += scores[question] if golds[question] else (-1 if predictions[question] else 0)
                if now > best:
                    best, best_threshold = now, value
        figures[f"best_{name}"] = 100.0 * best / len(scores)
        figures[f"best_{name}_thresh"] = best_threshold
    return figures
