"""Reading sentences in every form and tagging scheme, and files that cannot be read."""

import json
import logging
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from conll import PARTS, all_tags, choose_labels, convert_tags, load_splits
from datasets import ClassLabel, Dataset, Features, List, Value

from snugbert.data.conll import Sentence
from snugbert.errors import InputError
from snugbert.tasks.tagged_sentences import BARE, SCHEMES, TagSplit, check_tags, decode_tags, encode_tags


def read(folder: Path, *texts: str, **arguments: object) -> dict[str, TagSplit]:
    """Reads a CoNLL file of each text, for training, validation and test."""
    for part, text in zip(PARTS, texts, strict=False):
        arguments[f"{part}_file"] = str(folder / f"{part}.txt")
        (folder / f"{part}.txt").write_text(text, encoding="utf-8")
    return load_splits(PARTS[: len(texts)], **arguments)


@pytest.fixture(scope="module")
def test_split(data_dir) -> TagSplit:
    """The test part of CoNLL-2003."""
    return load_splits(("test",), test_file=str(data_dir / "conll2003/test.txt.gz"))["test"]


def test_conll_2003_as_published(test_split):
    """Tjong Kim Sang and De Meulder (2003), tables 1 and 2. They count -DOCSTART- lines as sentences."""
    sentences = test_split.sentences
    documents = len({sentence.document for sentence in sentences})
    assert (documents, len(sentences) + documents) == (231, 3684)
    assert sum(len(sentence.words) for sentence in sentences) == 46435
    kinds = Counter(kind for tags in all_tags(test_split) for kind, _, _ in decode_tags(tags))
    assert kinds == {"LOC": 1668, "MISC": 702, "ORG": 1661, "PER": 1617}
    expected = "O B-LOC I-LOC B-MISC I-MISC B-ORG I-ORG B-PER I-PER".split()
    assert choose_labels({"train": test_split}, ["LABEL_0"]) == expected


def test_json_lines_and_datasets_give_the_same_sentences(test_split, data_dir, tmp_path):
    split = load_splits(("test",), test_file=str(data_dir / "conll2003" / "test.jsonl.gz"))["test"]
    assert [sentence[:2] for sentence in split.sentences] == [s[:2] for s in test_split.sentences]
    assert [s.document for s in split.sentences] == [s.document for s in test_split.sentences]

    names = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
    features = Features({"words": List(Value("string")), "ner": List(ClassLabel(names=names))})
    rows = [{"words": sentence.words, "ner": sentence.tags} for sentence in split.sentences[:100]]
    (tmp_path / "data").mkdir()
    Dataset.from_list(rows, features=features).to_parquet(tmp_path / "data" / "validation.parquet")
    arguments = {"text_column_name": "words", "label_column_name": "ner", "dataset_name": str(tmp_path / "data")}
    again = load_splits(("validation",), str(tmp_path / "cache"), **arguments)["validation"]
    assert [sentence[:2] for sentence in again.sentences] == [sentence[:2] for sentence in split.sentences[:100]]
    # The checkpoint's labels keep their order, whatever the order of the dataset's classes.
    splits = {"train": split}
    assert choose_labels(splits, names) == names and choose_labels(splits, names[:3])[1:3] == ["B-LOC", "I-LOC"]


def test_columns_documents_and_compressed_files(tmp_path, caplog):
    text = "-DOCSTART- -X- O\n\n\u00a0Jo\u00a0 N B-PER\n  Li   N   I-PER \n\n\n'  '' O\n-DOCSTART- -X- O\r\na N O\r\n"
    sentences = read(tmp_path, text)["train"].sentences
    assert sentences == [
        Sentence(["\u00a0Jo\u00a0", "Li"], ["B-PER", "I-PER"], 3, 0),  # a no-break space can be part of a word
        Sentence(["'"], ["O"], 7, 0),
        Sentence(["a"], ["O"], 9, 1),
    ]
    tabs = re.sub(" +", "\t", text.replace("  Li   N   I-PER ", "Li N I-PER"))
    assert read(tmp_path, tabs)["train"].sentences == sentences
    (tmp_path / "a.zst").write_bytes(pa.compress(text.encode(), "zstd", asbytes=True))
    assert load_splits(("train",), train_file=str(tmp_path / "a.zst"))["train"].sentences == sentences
    # Words can be in the second column and tags in the first. A test file can lack tags.
    swapped = {"text_column_name": "2", "label_column_name": "1"}
    splits = read(tmp_path, "B-PER Jo 7\nO a 8\n\nO b 9\n", **swapped, max_train_samples=1)
    assert splits["train"].sentences == [Sentence(["Jo", "a"], ["B-PER", "O"], 1, None)]
    words = read(tmp_path, "Jo B-PER\n", "a O\n", "Jo\na\n\nb\n")["test"].sentences
    assert words == [Sentence(["Jo", "a"], None, 1, None), Sentence(["b"], None, 4, None)]
    (tmp_path / "empty.jsonl").write_text('{"tokens": [], "tags": []}\n{"tokens": ["a"], "tags": ["B-X"]}')
    splits = load_splits(("train",), train_file=str(tmp_path / "empty.jsonl"))
    assert splits["train"].sentences == [Sentence(["a"], ["B-X"], 2)]
    assert "skipped sentences without words: 1, the first in row 1" in caplog.text


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ("# text = im Haus\n1-2\tim\tO\n1\tin\tO\n2.1\tx\tO\n3\tHaus\tB-LOC\n\n", True),
        ("1 2 B-PER\n\nthe first O\n", False),  # only one sentence is numbers
        ("1\n2\n", False),  # there is no other column
    ],
)
def test_a_first_column_of_numbers_gets_a_warning(tmp_path, caplog, text, warns):
    (tmp_path / "test.txt").write_text(text)
    load_splits(("test",), test_file=str(tmp_path / "test.txt"))
    message = "test.txt: the first column, read as words, has only numbers. If the words are in column 2, set "
    assert (message + "--text_column_name 2." in caplog.text) == warns
    caplog.clear()
    load_splits(("test",), test_file=str(tmp_path / "test.txt"), text_column_name="1")  # the user chose it
    assert "only numbers" not in caplog.text


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_recognized_with_and_without_types(scheme, test_split, caplog):
    caplog.set_level(logging.INFO, logger="snugbert")
    tags = all_tags(test_split)[:500]
    converted = [convert_tags(row, scheme) for row in tags]
    split = replace(test_split, sentences=[Sentence(row, row, 1) for row in converted])
    assert check_tags({"test": split}, "auto", "stop") == scheme and all_tags(split) == tags
    assert caplog.messages[-1].startswith(f"tagging scheme: {scheme.upper()}")
    assert [encode_tags(decode_tags(row), len(row), scheme) for row in tags] == converted
    # One sentence without types, in which no entities of two types are neighbors
    single = [re.sub("-.*", "-ENTITY", tag) for row in tags for tag in [*row, "O"]]
    bare = [tag[0] for tag in convert_tags(single, scheme)]
    split = TagSplit("test", "s", [Sentence(bare, bare, 1)], types=frozenset(bare))
    assert check_tags({"test": split}, "auto", "repair") == scheme + BARE
    assert split.sentences[0].tags == single and split.types == {"ENTITY"}
    assert f"{scheme.upper()} without types" in caplog.text and "The type is called ENTITY." in caplog.text


def test_invalid_tags(tmp_path, caplog):
    good = "a O\nb B-PER\nc I-PER\n\nd B-LOC\n\n"
    bad = good + "d O\ne I-LOC\nf I-LOC\n\ng B-PER\nh I-LOC\n"
    message = r"validation.txt, line 8: tag 'I-LOC' is invalid in BIO here. .* 'B-LOC' \(2 such tags\)"
    with pytest.raises(InputError, match=message):
        read(tmp_path, good, bad)
    splits = read(tmp_path, good, bad, on_bad_tag="repair")
    assert all_tags(splits["validation"])[2:] == [["O", "B-LOC", "I-LOC"], ["B-PER", "B-LOC"]]
    assert "(2 such tags). All invalid tags are repaired." in caplog.messages[-1]
    iob1 = "a I-PER\nb I-PER\n\nc I-PER\nd B-PER\n"
    assert all_tags(read(tmp_path, iob1)["train"]) == [["B-PER", "I-PER"], ["B-PER", "B-PER"]]
    with pytest.raises(InputError, match=r"line 1: tag 'I-PER' is invalid in BIO here\. "):
        read(tmp_path, iob1, tag_scheme="bio")
    with pytest.raises(InputError, match="line 2: tag 'I-X' is invalid in IOBES"):
        read(tmp_path, "a B-X\nb I-X\n\nc S-X\n\nd B-X\ne E-X\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a O\nb\n", "train.txt, line 2: expected 2 columns as in line 1, found 1: 'b'"),
        ("a\nb\n", "train.txt, line 1: no column 2 in 'a'"),
        ("\n\n-DOCSTART- O\n\n", "train.txt: no sentences"),
        ("a O\nb B-X\nc NN\n", "train.txt, line 3: 'NN' is not an entity tag"),
        ("a NN\nb NN\n", "train.txt: no entities. All tags are NN. Check --label_column_name"),
        ([{"tokens": ["a"], "labels": ["O"]}], "no column 'ner_tags' or 'tags'. Columns: 'tokens', 'labels'. Set"),
        ([{"text": "a", "tags": ["O"]}], "row 1: no column 'tokens'. Columns: 'text', 'tags'. Set --text_column_name"),
        ([{"text": "a", "entities": []}], 'or "text" and "entities"'),
        ([{"tokens": "a b", "tags": ["O"]}], "row 1: expected a list of words in column 'tokens', found 'a b'"),
        ([{"tokens": ["a", "b"], "tags": ["O"]}], "row 1: expected 2 tags, one per word, in column 'tags', found ['O"),
        ([{"tokens": ["a"], "tags": ["O"]}, {"tokens": ["a"], "tags": None}], "row 2: expected 1 tag, one per word"),
        ([{"tokens": ["a"], "tags": [3]}], "found [3]. Tags are texts, or class ids of a dataset"),
    ],
)
def test_bad_files(content, words, tmp_path):
    is_text = isinstance(content, str)
    file = tmp_path / ("train.txt" if is_text else "train.jsonl")
    file.write_text(content if is_text else "\n".join(map(json.dumps, content)))
    with pytest.raises(InputError, match=re.escape(words)):
        choose_labels(load_splits(("train",), train_file=str(file)), [])


def test_repaired_tags_without_types(tmp_path):
    with pytest.raises(InputError, match="line 2: tag 'I' is invalid in BIO without types"):
        read(tmp_path, "a O\nb I\n\nc B\nd I\ne B\n")
    repaired = read(tmp_path, "a O\nb I\n\nc B\nd I\ne B\n", on_bad_tag="repair")["train"]
    assert all_tags(repaired) == [["O", "B-ENTITY"], ["B-ENTITY", "I-ENTITY", "B-ENTITY"]]
    # Chinese words, one character per line
    words = read(tmp_path, "a B\nb M\nc E\nd S\n", tag_scheme="bmes")["train"]
    assert all_tags(words) == [["B-ENTITY", "I-ENTITY", "I-ENTITY", "B-ENTITY"]]
