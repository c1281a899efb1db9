"""The task of `snugbert ner`: predictions, their scores, and the files of a run."""

import gzip
from collections import Counter

import numpy as np
import pytest
from conll import WAYS, all_tags, convert_tags

from snugbert.entity_tags import decode_tags
from snugbert.trainers.ner import task as ner
from snugbert.trainers.ner.data import choose_labels

pytestmark = pytest.mark.usefixtures("one_thread")


def logits_of(windows: ner.NerWindows, number: int) -> np.ndarray:
    """Logits of the correct labels, random logits for unlabeled tokens, and padding as from Trainer."""
    generator = np.random.default_rng(0)
    rows = windows.features["labels"][:]
    logits = np.full((len(rows), max(map(len, rows)), number), -100.0, dtype=np.float32)
    for i, row in enumerate(rows):
        logits[i, : len(row)] = generator.normal(size=(len(row), number))
        for j, label in enumerate(row):
            if label != -100:
                logits[i, j, label] = 10
    return logits


@pytest.mark.parametrize(("way", "scheme"), [*zip(WAYS, ("iob1", "bio", "bilou", "iobes"), strict=True)])
def test_correct_predictions_reproduce_the_file(way, scheme, conll, part, tokenizer, data_dir, tmp_path):
    change, limit, document_context = WAYS[way]
    split, labels = change(part)._replace(scheme=scheme), choose_labels(conll, [])
    windows = ner.make_windows(split, labels, tokenizer, limit, document_context)
    evaluation_set = ner.make_evaluation_set("eval", split, windows, labels, None, ner.METRICS)
    tags = evaluation_set.decode(logits_of(windows, len(labels)))
    evaluation_set.write(tags, tmp_path)
    metrics = evaluation_set.score(tags)
    numbers = Counter(kind for tags in all_tags(part) for kind, _, _ in decode_tags(tags))
    assert {name: value for name, value in metrics.items() if not name.endswith("number")} == dict.fromkeys(
        [*ner.METRICS, *(f"{kind}_{metric}" for kind in numbers for metric in ner.METRICS[:3])], 1.0
    )
    assert evaluation_set.score_in_training(logits_of(windows, len(labels))) == dict.fromkeys(ner.METRICS, 1.0)
    assert all(metrics[f"{kind}_number"] == number for kind, number in numbers.items())

    lines = (tmp_path / "eval_predictions.txt").read_text(encoding="utf-8").splitlines()
    with gzip.open(data_dir / "conll2003" / "valid.txt.gz", "rt", encoding="utf-8") as stream:
        original = [line.split() for line in stream]
    if way == "long sentences":
        lines, original = [line for line in lines if line], [cells for cells in original if cells]
    tags = convert_tags([cells[3] if cells else "O" for cells in original], scheme)
    expected = [f"{cells[0]} {tag} {tag}" if cells else "" for cells, tag in zip(original, tags, strict=True)]
    assert len(lines) > 4000 and lines == expected[: len(lines)]
    assert expected[len(lines)].startswith("-DOCSTART-")
    assert {path.suffix for path in tmp_path.iterdir()} == {".txt", ".png"}
