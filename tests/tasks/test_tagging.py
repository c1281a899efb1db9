"""The task of `snugbert ner`: predictions, their scores, and the files of a run."""

from collections import Counter

import numpy as np
import pytest
from conll import WAYS, all_tags, convert_tags

from snugbert.data.conll import choose_labels, load_splits
from snugbert.tasks import tagging as ner
from snugbert.tasks.entity_tags import SCHEMES, decode_tags
from snugbert.tasks.tagging_arguments import NerDataArguments

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
def test_correct_labels_score_1(way, scheme, conll, part, tokenizer):
    change, limit, document_context = WAYS[way]
    split, labels = change(part)._replace(scheme=scheme), choose_labels(conll, [])
    windows = ner.make_windows(split, labels, tokenizer, limit, document_context)
    data_args = NerDataArguments(validation_file=__file__)
    evaluation_set = ner.make_evaluation_set("eval", split, windows, labels, None, data_args)
    tags = evaluation_set.decode(logits_of(windows, len(labels)))
    assert tags == [convert_tags(bio, scheme) for bio in all_tags(split)]
    metrics = evaluation_set.score(tags)
    numbers = Counter(kind for tags in all_tags(part) for kind, _, _ in decode_tags(tags))
    assert {name: value for name, value in metrics.items() if not name.endswith("number")} == dict.fromkeys(
        [*ner.METRICS, *(f"{kind}_{metric}" for kind in numbers for metric in ner.METRICS[:3])], 1.0
    )
    assert evaluation_set.score_in_training(logits_of(windows, len(labels))) == dict.fromkeys(ner.METRICS, 1.0)
    assert all(metrics[f"{kind}_number"] == number for kind, number in numbers.items())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_accuracy_file_and_confusion_matrix_agree(scheme, conll, part, tokenizer, tmp_path, monkeypatch):
    labels = choose_labels(conll, [])
    tags = convert_tags([tag for row in all_tags(part) for tag in [*row, "O"]], scheme)
    words = [word for sentence in part.sentences for word in [*sentence.words, ""]]
    lines = [f"{word}\t{tag}" if word else "" for word, tag in zip(words, tags, strict=True)]
    (tmp_path / "dev.tsv").write_text("\n".join(lines), encoding="utf-8")
    data_args = NerDataArguments(validation_file=str(tmp_path / "dev.tsv"))
    split = load_splits(data_args, None)["validation"]
    windows = ner.make_windows(split, labels, tokenizer, 128)
    evaluation_set = ner.make_evaluation_set("eval", split, windows, labels, None, data_args)
    matrices = []
    monkeypatch.setattr(ner, "draw_confusion_matrix", lambda *arguments: matrices.append(arguments))

    noise = np.random.default_rng(0).normal(scale=8, size=(len(windows.features), 128, len(labels)))
    logits = logits_of(windows, len(labels))
    predicted = evaluation_set.decode(logits + noise[:, : logits.shape[1]])
    evaluation_set.write(predicted, tmp_path)
    accuracy = evaluation_set.score(predicted)["accuracy"]
    rows = [line.split("\t") for line in (tmp_path / "eval_predictions.tsv").read_text(encoding="utf-8").split("\n")]
    assert [row[0] for row in rows] == words
    equal = [row[1] == tag for row, tag in zip(rows, tags, strict=True) if row[0]]
    assert accuracy == np.mean(equal) and 0.4 < accuracy < 0.9
    ((references, predictions, names, _),) = matrices
    assert (references == predictions).mean() == accuracy
    assert [names[i] for i in references] == [tag for word, tag in zip(words, tags, strict=True) if word]
