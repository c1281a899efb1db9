"""The task of `snugbert ner`: predictions, their scores, and files that have the form of their source."""

import gzip
import json
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conll import WAYS, all_tags, convert_tags, make_tagging
from datasets import ClassLabel, Dataset, List
from seqeval.metrics import accuracy_score, classification_report

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.data.conll import Sentence, Tags
from snugbert.errors import InputError
from snugbert.tasks.evaluation_set import EvaluationSet
from snugbert.tasks.metrics import TaskMetric
from snugbert.tasks.tag_windows import TagWindows
from snugbert.tasks.tagged_sentences import (
    BARE,
    BARE_TYPE,
    SCHEMES,
    TAG,
    TagSplit,
    are_entity_tags,
    decode_tags,
    encode_tags,
)
from snugbert.tasks.tagging import METRICS, TagAnswers, Tagging

pytestmark = pytest.mark.usefixtures("one_thread")


def read(tagging: Tagging, split: str) -> TagSplit:
    return tagging.read_splits(tagging.find_sources((split,)))[split]


def logits_of(windows: TagWindows, number: int) -> np.ndarray:
    """Logits of the correct labels, random logits for unlabeled tokens, and padding as from Trainer."""
    generator = np.random.default_rng(0)
    rows = windows.inputs["labels"][:]
    logits = np.full((len(rows), max(map(len, rows)), number), -100.0, dtype=np.float32)
    for i, row in enumerate(rows):
        logits[i, : len(row)] = generator.normal(size=(len(row), number))
        for j, label in enumerate(row):
            if label != -100:
                logits[i, j, label] = 10
    return logits


@pytest.mark.parametrize(("way", "scheme"), [*zip(WAYS, ("iob1", "bio", "bilou", "iobes"), strict=True)])
def test_correct_labels_score_1(way, scheme, labels, part, tokenizer):
    change, limit, document_context = WAYS[way]
    split = change(part)
    tagging = make_tagging(labels, tokenizer, limit, document_context=document_context)
    tagging.scheme = scheme
    evaluation_set = EvaluationSet(tagging, split)
    logits = logits_of(evaluation_set.features, len(labels))
    answers = evaluation_set.decode(logits)
    assert answers.tags == [convert_tags(bio, scheme) for bio in all_tags(split)]
    metrics = evaluation_set.score(answers)
    numbers = Counter(kind for tags in all_tags(part) for kind, _, _ in decode_tags(tags))
    assert {name: value for name, value in metrics.items() if not name.endswith("number")} == dict.fromkeys(
        [*METRICS, *(f"{kind}_{metric}" for kind in numbers for metric in METRICS[:3])], 1.0
    )
    assert evaluation_set.score_in_training(logits) == dict.fromkeys(METRICS, 1.0)
    assert all(metrics[f"{kind}_number"] == number for kind, number in numbers.items())


@pytest.mark.parametrize("scheme", ["iob1", "bmes"])
def test_accuracy_file_and_confusion_matrix_agree(scheme, labels, part, tokenizer, tmp_path, monkeypatch):
    tags = convert_tags([tag for row in all_tags(part) for tag in [*row, "O"]], scheme)
    words = [word for sentence in part.sentences for word in [*sentence.words, ""]]
    lines = [f"{word}\t{tag}" if word else "" for word, tag in zip(words, tags, strict=True)]
    (tmp_path / "dev.tsv").write_text("\n".join(lines), encoding="utf-8")
    tagging = make_tagging(labels, tokenizer, validation_file=str(tmp_path / "dev.tsv"))
    evaluation_set = EvaluationSet(tagging, read(tagging, "validation"))
    windows = evaluation_set.features
    matrices = []
    monkeypatch.setattr("snugbert.tasks.tagging.draw_confusion_matrix", lambda *arguments: matrices.append(arguments))

    noise = np.random.default_rng(0).normal(scale=8, size=(len(windows.inputs), 128, len(tagging.labels)))
    logits = logits_of(windows, len(tagging.labels))
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


def compute(predictions: list[list[str]], references: list[list[str]]) -> dict[str, float]:
    return TaskMetric(Tagging(), keep_in_memory=True).compute(predictions=predictions, references=references)


def test_metric_without_entities():
    nothing = compute([["O", "O"]], [["O", "O"]])
    assert nothing == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "accuracy": 1.0}
    assert compute([["O", "O"]], [["B-PER", "O"]])["f1"] == 0.0
    # Tags that mark no entities.
    assert compute([["NN", "IN", "S"], ["VB"]], [["NN", "NN", "S"], ["O"]]) == {"accuracy": 0.5}


def score_with_seqeval(predictions: list[list[str]], references: list[list[str]]) -> dict[str, float]:
    """Returns the metrics that seqeval reports, with our names. `evaluate`'s script does the same."""
    report = classification_report(references, predictions, output_dict=True, zero_division=0)
    keys = {"precision": "precision", "recall": "recall", "f1": "f1-score"}
    metrics = {name: report["micro avg"][key] for name, key in keys.items()}
    for kind in report.keys() - {"micro avg", "macro avg", "weighted avg"}:
        metrics |= {f"{kind}_{name}": report[kind][key] for name, key in keys.items()}
        metrics[f"{kind}_number"] = report[kind]["support"]
    return {**metrics, "accuracy": accuracy_score(references, predictions)}


def test_metric_on_noisy_real_tags(part):
    generator = random.Random(0)
    references = all_tags(part)
    tags = sorted({tag for row in references for tag in row})
    predictions = [[generator.choice(tags) if generator.random() < 0.2 else tag for tag in row] for row in references]
    metrics = compute(predictions, references)
    assert metrics == score_with_seqeval(predictions, references)
    # Predictions repaired as conlleval reads them score the same.
    valid = [encode_tags(decode_tags(row), len(row), "bio") for row in predictions]
    assert {**compute(valid, references), "accuracy": metrics["accuracy"]} == metrics


@pytest.mark.parametrize("scheme", SCHEMES)
def test_metric_of_tags_without_types(scheme, part):
    generator = random.Random(0)
    references = [[re.sub("-.*", f"-{BARE_TYPE}", tag) for tag in row] for row in all_tags(part)]
    mistakes = [[generator.choice("BIO") if generator.random() < 0.2 else tag[0] for tag in row] for row in references]
    predictions = [[tag if tag == "O" else f"{tag}-{BARE_TYPE}" for tag in row] for row in mistakes]
    expected = score_with_seqeval(predictions, references)
    both = (mistakes, references)
    pairs = [[encode_tags(decode_tags(row), len(row), scheme + BARE) for row in rows] for rows in both]
    assert all(len(tag) == 1 for rows in pairs for row in rows for tag in row)
    assert {**compute(*pairs), "accuracy": expected["accuracy"]} == expected


def test_a_column_of_other_tags_is_refused():
    """The training data decide whether tags mark entities. Otherwise the scores would be 0 without a word."""
    entities, parts = (
        [Dataset.from_list([{"tokens": ["a", "b"], "tags": tags}] * 3)] for tags in (["B-PER", "O"], ["NN", "VB"])
    )
    with pytest.raises(InputError, match="'NN' is not an entity tag"):
        Tagging().read_splits({"train": entities, "validation": parts})
    tagging = Tagging()
    splits = tagging.read_splits({"validation": parts})
    config = SnugBertConfig(id2label={0: "O", 1: "B-PER", 2: "I-PER"})
    with pytest.raises(InputError, match="6 words with a tag that is not in the checkpoint, such as 'NN'"):
        tagging.choose_labels(splits, config)


def test_baseline_predicts_most_frequent_tags():
    train = TagSplit("train", "s", [Sentence(["a", "b", "a", "a"], ["B-X", "O", "O", "B-X"], 1)])
    test = TagSplit("test", "s", [Sentence(["a", "c"], ["B-X", "B-X"], 1)])
    tagging = make_tagging(["O", "B-X", "I-X"])
    predicted = compute([["B-X", "O"]], [["B-X", "B-X"]])
    assert tagging.baseline(test, train).metrics == {name: predicted[name] for name in METRICS}
    assert predicted["f1"] == pytest.approx(2 / 3) and tagging.baseline(test, None) is None


def write(
    folder: Path, name: str, source: bytes, tags: Tags | None = None, split: str = "validation", **columns
) -> str:
    """Reads a source and writes it with its own tags, or with `tags`. Returns the new text."""
    (folder / name).write_bytes(source)
    tagging = Tagging(**{f"{split}_file": str(folder / name)}, **columns)
    sentences = read(tagging, split)
    file = write_split(tagging, sentences, tagging.list_references(sentences) if tags is None else tags, folder)
    return file.read_bytes().decode()


def write_split(tagging: Tagging, split: TagSplit, tags: Tags, folder: Path) -> Path:
    """Writes predictions. Returns the file."""
    (folder / "output").mkdir(exist_ok=True)
    tagging.write(split, TagAnswers(tags), folder / "output")
    (name,) = tagging.list_prediction_files(split)
    return folder / "output" / name


@pytest.mark.slow
def test_conll_2003_with_its_own_tags_is_unchanged(data_dir, tmp_path):
    source = (data_dir / "conll2003/test.txt.gz").read_bytes()
    assert write(tmp_path, "test.txt.gz", source).encode() == gzip.decompress(source)


# Each `B-X` is the tag of a word. Entities are one word long, and types are X, Y or Z.
SOURCES = {
    "tabs, spaces in words, CRLF, no line end at the end": "New York\tB-X\r\n\u00a0is\tO\r\n\r\n\t\r\nA B\tB-Y",
    "spaces, documents": "-DOCSTART- -X- O O\n\n  Jo   NN  B-X \n.\t.\tO\n\n-DOCSTART- -X- O O\n\na a O\n",
    "comments": "# id 1\tdomain=en\nJo _ _ B-X\n# _ _ O\n\n# id 2\tdomain=en\n\n# _ _ O\n. _ _ B-Y\n\n# end\n",
    "comments, tabs": "# id = 1\nJo\t_\t_\tB-X\n# 1\t_\t_\tO\n\n# newdoc\n# id\tx\n#\t_\t_\tO\n.\t_\t_\tB-Y\n",
    "carriage returns": "-DOCSTART-\tO\r\rNew York\tB-X\r\u2028is\tO\r\rA B\tB-Y\r",
    "byte order mark, form feed": "\ufeffJo B-X\n\fa O\n",
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
@pytest.mark.parametrize("scheme", ["bio", "iobes"])
def test_columns(source, scheme, tmp_path):
    source = source.replace("B-", "S-" if scheme == "iobes" else "B-")
    assert write(tmp_path, "dev.conll", source.encode()) == source
    tagging = Tagging(validation_file=str(tmp_path / "dev.conll"))
    references = tagging.list_references(read(tagging, "validation"))
    # Other tags have other lengths.
    mark = "S" if scheme == "iobes" else "B"
    names = {"O": "O", f"{mark}-X": f"{mark}-long", f"{mark}-Y": "O"}
    tags = [[names[tag] for tag in row] for row in references]
    expected = source.replace(f"{mark}-X", f"{mark}-long").replace(f"{mark}-Y", "O")
    assert write(tmp_path, "dev.conll", source.encode(), tags) == expected != source


def test_chosen_columns_new_columns_and_limits(tmp_path):
    # The tags come first.
    swapped = {"text_column_name": "2", "label_column_name": "1"}
    source = b"B-X Jo 7\nO a 8\n\nO b 9\n"
    assert write(tmp_path, "a", source, [["O", "B-Y"], ["B-Y"]], **swapped) == "O Jo 7\nB-Y a 8\n\nB-Y b 9\n"
    # Without tags, they become the last column.
    source = b"-DOCSTART-\r\n\r\nJo\r\na\r\n\r\nb"
    expected = "-DOCSTART- O\r\n\r\nJo B-X\r\na O\r\n\r\nb O"
    assert write(tmp_path, "a.txt", source, [["B-X", "O"], ["O"]], "test") == expected
    new_column = {"label_column_name": "3"}
    expected = "Jo S\tNN\tB-X\na\tNN\tO\n"
    assert write(tmp_path, "a.txt", b"Jo S\tNN\na\tNN\n", [["B-X", "O"]], "test", **new_column) == expected
    # Where words have tabs, a comment has none.
    source = b"# newdoc\nJo\tNN\n\n# 1\n# 1\tNN\n"
    expected = "# newdoc\nJo\tNN\tO\n\n# 1\n# 1\tNN\tB-X\n"
    assert write(tmp_path, "a.txt", source, [["O"], ["B-X"]], "test", **new_column) == expected
    # A type that was learned from JSON may contain spaces.
    assert write(tmp_path, "a.txt", b"Jo O\n", [["B-a b"]]) == "Jo B-a_b\n"
    # Sentences beyond a limit are left out.
    source = b"-DOCSTART- O\n\na O\nb O\n\n\n-DOCSTART- O\n\nc O\n"
    assert write(tmp_path, "a.txt", source, [["O", "B-X"]], max_eval_samples=1) == "-DOCSTART- O\n\na O\nb B-X\n\n\n"
    row, expected = b'{"tokens": ["a"], "tags": ["O"]}', '{"tokens": ["a"], "tags": ["B-X"]}'
    assert write(tmp_path, "a.json", row + b"\n" + row, [["B-X"]], max_eval_samples=1) == f"{expected}\n"


def test_json_has_other_tags(tmp_path):
    """Without tags, they become the last value."""
    rows = [
        {"id": 1.5, "ner_tags": ["B-X", "O"], "tokens": ["Zürich", "é"], "x": {"tags": []}},
        {"tokens": [], "ner_tags": []},
        {"tokens": ["a"], "tags": ["O"], "ner_tags": ["B-X"]},
    ]
    expected = [rows[0] | {"ner_tags": ["O", "B-é"]}, rows[1], rows[2] | {"ner_tags": ["B-Y"]}]
    tags = [["O", "B-é"], ["B-Y"]]
    source = "\ufeff\n" + "\r\n".join(map(json.dumps, rows))
    written = write(tmp_path, "dev.jsonl", source.encode(), tags)
    assert written.startswith("\ufeff") and "B-é" in written
    assert [json.loads(line) for line in written.removeprefix("\ufeff").splitlines()] == expected
    written = write(tmp_path, "dev.json", json.dumps(rows, ensure_ascii=False).encode(), tags)
    assert json.loads(written) == expected and "B-é" in written
    source = '{"tokens": ["a"]}\n{"tokens": ["b"], "ner_tags": null, "x": 1 }\n'
    expected = '{"tokens": ["a"], "ner_tags": ["O"]}\n{"tokens": ["b"], "ner_tags": ["B-X"], "x": 1}\n'
    assert write(tmp_path, "test.json", source.encode(), [["O"], ["B-X"]], "test") == expected


def test_a_dataset_becomes_json_lines(tmp_path):
    names = ["O", "B-X", "I-X"]
    rows = [{"ner_tags": [1, 0], "tokens": ["Jo", "ë"], "n": 3}, {"ner_tags": [0], "tokens": ["b"], "n": None}]
    dataset = Dataset.from_list(rows).cast_column("ner_tags", List(ClassLabel(names=names)))
    tagging = Tagging()
    split = tagging.read_splits({"validation": [dataset]})["validation"]
    file = write_split(tagging, split, tagging.list_references(split), tmp_path)
    # Class ids become names, so that the file can be read without the dataset.
    expected = [{**row, "ner_tags": [names[i] for i in row["ner_tags"]]} for row in rows]
    assert file.name == "eval_predictions.jsonl"
    assert [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] == expected


@pytest.mark.parametrize("scheme", SCHEMES)
def test_random_entities_survive_every_scheme(scheme):
    generator = random.Random(0)
    for _ in range(200):
        tags: list[str] = []
        while len(tags) < 12:
            kind, length = generator.choice(["O", "PER", "LOC", "PER-X"]), generator.randint(1, 3)
            tags += ["O"] if kind == "O" else [f"B-{kind}", *[f"I-{kind}"] * (length - 1)]
        written = encode_tags(decode_tags(tags), len(tags), scheme)
        assert written == convert_tags(tags, scheme) and all(TAG.fullmatch(tag) for tag in written)
        assert decode_tags(written) == decode_tags(tags)


def test_invalid_tags_are_read_as_conlleval_reads_them():
    assert decode_tags(["O", "I-LOC", "I-PER", "I-PER"]) == [("LOC", 1, 1), ("PER", 2, 3)]
    assert decode_tags(["B-PER", "I-LOC", "I-LOC"]) == [("PER", 0, 0), ("LOC", 1, 2)]
    # Most of the tags decide whether they mark entities.
    assert are_entity_tags(["O", "B-X", "B_X"]) and not are_entity_tags(["NN", "VB", "DT", "S", "I-X"])
