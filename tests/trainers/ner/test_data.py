"""Every form and scheme of tags, and bad files."""

import gzip
import json
import logging
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from conll import PARTS, all_tags, converted
from datasets import ClassLabel, Dataset, Features, List, Value

from snugbert.entity_tags import SCHEMES, decode_tags, encode_tags
from snugbert.errors import InputError
from snugbert.trainers.ner.arguments import NerDataArguments
from snugbert.trainers.ner.data import NerSplit, Sentence, check_tags, choose_labels, load_splits

# Tjong Kim Sang and De Meulder (2003), tables 1 and 2: articles, sentences, tokens, LOC, MISC, ORG, PER. They count
# the -DOCSTART- lines among the sentences.
PUBLISHED = {
    "train": (946, 14987, 203621, 7140, 3438, 6321, 6600),
    "validation": (216, 3466, 51362, 1837, 922, 1341, 1842),
    "test": (231, 3684, 46435, 1668, 702, 1661, 1617),
}


def read(folder: Path, *texts: str, **arguments: object) -> dict[str, NerSplit]:
    """Reads a CoNLL file of each text, for training, validation and test."""
    for part, text in zip(PARTS, texts, strict=False):
        arguments[f"{part}_file"] = str(folder / f"{part}.txt")
        (folder / f"{part}.txt").write_text(text, encoding="utf-8")
    return load_splits(NerDataArguments(**arguments), PARTS[: len(texts)])


def test_conll_2003_as_published(conll):
    for part, (documents, blocks, words, *entities) in PUBLISHED.items():
        sentences = conll[part].sentences
        assert len({sentence.document for sentence in sentences}) == documents
        assert len(sentences) + documents == blocks
        assert sum(len(sentence.words) for sentence in sentences) == words
        kinds = Counter(kind for tags in all_tags(conll[part]) for kind, _, _ in decode_tags(tags))
        assert [kinds[kind] for kind in ("LOC", "MISC", "ORG", "PER")] == entities
    assert choose_labels(conll, ["LABEL_0"]) == [
        "O", "B-LOC", "I-LOC", "B-MISC", "I-MISC", "B-ORG", "I-ORG", "B-PER", "I-PER",
    ]  # fmt: skip


def test_json_lines_and_data_sets_are_the_same(conll, data_dir, tmp_path):
    file = data_dir / "conll2003" / "valid.jsonl.gz"
    split = load_splits(NerDataArguments(validation_file=str(file)), None)["validation"]
    assert [sentence[:2] for sentence in split.sentences] == [s[:2] for s in conll["validation"].sentences]
    assert [s.document for s in split.sentences] == [s.document for s in conll["validation"].sentences]

    names = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
    features = Features({"words": List(Value("string")), "ner": List(ClassLabel(names=names))})
    rows = [{"words": sentence.words, "ner": sentence.tags} for sentence in split.sentences[:100]]
    (tmp_path / "data").mkdir()
    Dataset.from_list(rows, features=features).to_parquet(tmp_path / "data" / "validation.parquet")
    columns = {"text_column_name": "words", "label_column_name": "ner"}
    arguments = NerDataArguments(dataset_name=str(tmp_path / "data"), **columns)
    again = load_splits(arguments, ("validation",), cache_dir=str(tmp_path / "cache"))["validation"]
    assert [sentence[:2] for sentence in again.sentences] == [sentence[:2] for sentence in split.sentences[:100]]
    # In the order of the data set's classes or not, it is the checkpoint's labels that keep their order.
    splits = {"train": split}
    assert choose_labels(splits, names) == names and choose_labels(splits, names[:3])[1:3] == ["B-LOC", "I-LOC"]


def test_columns_documents_and_compressed_files(tmp_path):
    text = (
        "-DOCSTART- -X- O\n\n\u00a0Jo\u00a0 NN B-PER\n  Li   NN   I-PER \n\n\n'  '' O\n-DOCSTART- -X- O\r\na NN O\r\n"
    )
    sentences = read(tmp_path, text)["train"].sentences
    assert sentences == [
        Sentence(["\u00a0Jo\u00a0", "Li"], ["B-PER", "I-PER"], 3, 0),  # a no-break space may be a part of a word
        Sentence(["'"], ["O"], 7, 0),
        Sentence(["a"], ["O"], 9, 1),
    ]
    tabs = re.sub(" +", "\t", text.replace("  Li   NN   I-PER ", "Li NN I-PER"))
    assert read(tmp_path, tabs)["train"].sentences == sentences
    for name, data in (
        ("a.gz", gzip.compress(text.encode())),
        ("a.zst", pa.compress(text.encode(), "zstd", asbytes=True)),
    ):
        (tmp_path / name).write_bytes(data)
        splits = load_splits(NerDataArguments(train_file=str(tmp_path / name)), ("train",))
        assert splits["train"].sentences == sentences
    # Words in the second column, tags in the first; a test file may have no tags.
    swapped = {"text_column_name": "2", "label_column_name": "1"}
    splits = read(tmp_path, "B-PER Jo 7\nO a 8\n\nO b 9\n", **swapped, max_train_samples=1)
    assert splits["train"].sentences == [Sentence(["Jo", "a"], ["B-PER", "O"], 1, None)]
    words = read(tmp_path, "Jo B-PER\n", "a O\n", "Jo\na\n\nb\n")["test"].sentences
    assert words == [Sentence(["Jo", "a"], None, 1, None), Sentence(["b"], None, 4, None)]


def test_every_scheme_is_recognized_and_stands_for_the_same_entities(conll, caplog):
    caplog.set_level(logging.INFO, logger="snugbert")
    split = conll["test"]
    for scheme in SCHEMES:
        told = split._replace(sentences=[s._replace(tags=converted(s.tags, scheme)) for s in split.sentences])
        checked = check_tags({"test": told}, "auto", "stop")["test"]
        assert caplog.messages[-1].startswith(f"the tags are in the scheme {scheme.upper()}")
        assert checked.sentences == split.sentences and checked.scheme == scheme
        assert [encode_tags(decode_tags(tags), len(tags), scheme) for tags in all_tags(split)] == all_tags(told)


def test_broken_tags(tmp_path, caplog):
    good = "a O\nb B-PER\nc I-PER\n\nd B-LOC\n\n"
    with pytest.raises(
        InputError, match=r"validation.txt, line 8: the tag 'I-LOC' behind 'O' breaks the scheme BIO, "
    ):
        read(tmp_path, good, good + "d O\ne I-LOC\nf I-LOC\n\ng B-PER\nh I-LOC\n")
    with pytest.raises(
        InputError, match=r"takes it for 'B-LOC' \(2 such tags\). Correct them, or .*--on_bad_tag repair"
    ):
        read(tmp_path, good, good + "d O\ne I-LOC\nf I-LOC\n\ng B-PER\nh I-LOC\n")
    splits = read(tmp_path, good, good + "d O\ne I-LOC\nf I-LOC\n\ng B-PER\nh I-LOC\n", on_bad_tag="repair")
    assert all_tags(splits["validation"])[2:] == [["O", "B-LOC", "I-LOC"], ["B-PER", "B-LOC"]]
    assert "(2 such tags), and so it is read" in caplog.messages[-1]
    # What is right in one scheme is wrong in another.
    iob1 = "a I-PER\nb I-PER\n\nc I-PER\nd B-PER\n"
    assert all_tags(read(tmp_path, iob1)["train"]) == [["B-PER", "I-PER"], ["B-PER", "B-PER"]]
    with pytest.raises(InputError, match="line 1: the tag 'I-PER' at the start of a sentence breaks the scheme BIO; "):
        read(tmp_path, iob1, tag_scheme="bio")
    with pytest.raises(InputError, match="line 2: the tag 'I-X' behind 'B-X' breaks the scheme IOBES, which fits "):
        read(tmp_path, "a B-X\nb I-X\n\nc S-X\n\nd B-X\ne E-X\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a O\nb\n", r"train.txt, line 2: 1 column, 'b', and line 1 has 2; every line needs the same"),
        ("a O\n\nb x O\n", r"train.txt, line 3: 3 columns, 'b x O', and line 1 has 2"),
        ("a\nb\n", r"train.txt, line 1: 1 column, 'a', but column 2 is needed"),
        ("\n\n-DOCSTART- O\n\n", r"train.txt holds no sentences"),
        ("", r"train.txt holds no sentences"),
        ("a O\nb O\n", r"train.txt: every tag is O; nothing to learn"),
        ("a O\nb NN\n", r"train.txt, line 2: 'NN' is no tag of an entity; .*--label_column_name"),
        ("a B-\n", r"train.txt, line 1: 'B-' is no tag of an entity"),
        ("a\tO\t\n", r"train.txt, line 1: '' is no tag of an entity"),
    ],
)
def test_bad_files(text, message, tmp_path):
    with pytest.raises(InputError, match=message):
        choose_labels(read(tmp_path, text), [])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"tokens": ["a"], "labels": ["O"]}],
            "row 1: no column 'ner_tags' or 'tags' among tokens, labels; name the ",
        ),
        ([{"text": "a", "tags": ["O"]}], "row 1: no column 'tokens' among text, tags; .*--text_column_name"),
        ([{"tokens": "a b", "tags": ["O"]}], "row 1: column 'tokens' must hold a list of words, not 'a b'"),
        (
            [{"tokens": ["a", "b"], "tags": ["O"]}],
            "row 1: column 'tags' must hold a tag for each of the 2 words, not 1",
        ),
        ([{"tokens": ["a"], "tags": ["O"]}, {"tokens": ["a"], "tags": None}], "row 2: no tags in column 'tags'"),
        ([{"tokens": ["a"], "tags": [3]}], "row 1: the tags in column 'tags' are not text, and nothing says what"),
        ([{"tokens": [], "tags": []}], "train.jsonl holds no sentences"),
    ],
)
def test_bad_rows(rows, message, tmp_path):
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match=message):
        load_splits(NerDataArguments(train_file=str(tmp_path / "train.jsonl")), ("train",))


def test_sentences_without_words_are_left_out(tmp_path, caplog):
    rows = [{"tokens": [], "tags": []}, {"tokens": ["a"], "tags": ["B-X"]}, {"tokens": [], "tags": []}]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sentences = load_splits(NerDataArguments(train_file=str(tmp_path / "train.jsonl")), ("train",))["train"].sentences
    assert sentences == [Sentence(["a"], ["B-X"], 2)]
    assert "2 sentences without words are left out; the first is row 1" in caplog.text
