"""Reading minimal pairs, and their accuracies."""

import gzip
import json
import re

import numpy as np
import pytest
import torch
from masked_models import make_model

from snugbert.errors import InputError
from snugbert.evaluation.minimal_pairs import MinimalPair, read_pairs, score_pairs, summarize

COLUMNS = "sentence_good", "sentence_bad"


def test_files_of_all_formats_have_the_same_pairs(tmp_path):
    rows = [('It\'s "here".', "It here."), ("A, b.", "B, a.")]
    objects = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt", encoding="utf-8") as file:
        kinds = {"UID": "u", "linguistics_term": "t", "field": "f"}
        file.writelines(json.dumps(values | kinds) + "\n" for values in objects)
    (tmp_path / "b.json").write_text(json.dumps(objects))
    (tmp_path / "c.tsv").write_text("\n".join("\t".join(row) for row in [COLUMNS, *rows]))
    (tmp_path / "d.csv").write_text('bad,good\nIt here.,"It\'s ""here""."\n"B, a.","A, b."\n')
    read = [read_pairs([tmp_path / name], *COLUMNS) for name in ("a.jsonl.gz", "b.json", "c.tsv")]
    read.append(read_pairs([tmp_path / "d.csv"], "good", "bad"))
    assert all([pair[:2] for pair in pairs] == rows for pairs in read)
    assert [pairs[0][2:5] for pairs in read] == [("u", "t", "f"), *((name, name, None) for name in "bcd")]
    places = [("a.jsonl.gz", 1), ("a.jsonl.gz", 2), ("d.csv", 2), ("d.csv", 3)]
    assert [(pair.file.name, pair.row) for pair in read[0] + read[3]] == places


GOOD = '{"sentence_good": "A.", "sentence_bad": "B."}\n'


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", "", "no pairs"),
        ("a.jsonl", GOOD + '{"good": "A.", "sentence_bad": "B."}', "row 2: no sentence in column 'sentence_good'."),
        ("a.jsonl", GOOD + '{"sentence_good": 3, "sentence_bad": "B."}', "no sentence in column 'sentence_good'."),
        ("a.txt", "a\nb\nc\n", "a.txt, line 3: the next line must be the other sentence"),
        ("a.txt", "a\n\nb\n", "line 1: the next line must be the other sentence"),
    ],
)
def test_errors_name_the_file_and_the_row(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=re.escape(words)):
        read_pairs([tmp_path / name], *COLUMNS)


def test_means_over_paradigms_of_different_sizes(tmp_path):
    """Four pairs of paradigm a, one of b, two of c. a and b belong to the same phenomenon."""
    kinds = {"a": "island", "b": "island", "c": "c"}
    pairs = [MinimalPair("", "", name, kinds[name], None, tmp_path, row) for row, name in enumerate("aabaacc")]
    correct = np.array([[1, 0], [1, 0], [0, 1], [1, 1], [0, 0], [0, 1], [0, 1]], dtype=bool)
    results = summarize(pairs, correct)
    assert {name: list(group["accuracy"].values()) for name, group in results["paradigms"].items()} == {
        "a": [0.75, 0.25],
        "b": [0, 1],
        "c": [0, 1],
    }
    assert results["phenomena"] == {
        "c": {"paradigms": 1, "pairs": 2, "accuracy": {"original": 0, "within_word_l2r": 1}},
        "island": {"paradigms": 2, "pairs": 5, "accuracy": {"original": 0.375, "within_word_l2r": 0.625}},
    }
    assert results["accuracy"] == {"original": 0.25, "within_word_l2r": 0.75} and results["pairs"] == 7


def test_zorro(tmp_path):
    """Three pairs of phueb/Zorro, sentences/babyberta. The second sentence of each is the acceptable one."""
    for name, lines in (
        ("agreement_determiner_noun-between_neighbors", "this colors must be white .\nthis color must be white ."),
        ("island-effects-adjunct_island", "\nwho a .\na who .\n\nwho b .\nb who .\n"),
    ):
        (tmp_path / f"{name}.txt").write_text(lines)
    pairs = read_pairs(sorted(tmp_path.iterdir()), *COLUMNS)
    assert [(pair.good, pair.bad, pair.row) for pair in pairs] == [
        ("this color must be white .", "this colors must be white .", 1),
        ("a who .", "who a .", 2),
        ("b who .", "who b .", 5),
    ]
    assert [(pair.paradigm, pair.phenomenon) for pair in pairs[:2]] == [
        ("agreement_determiner_noun-between_neighbors", "agreement_determiner_noun"),
        ("island-effects-adjunct_island", "island-effects"),
    ]
    # Other files have the acceptable sentence first.
    reversed_pairs = read_pairs([tmp_path / "island-effects-adjunct_island.txt"], *COLUMNS[::-1])
    assert [pair.good for pair in reversed_pairs] == ["who a .", "who b ."]


def test_files_with_the_same_name_are_paradigms_of_their_own(tmp_path):
    files = [tmp_path / name for name in ("en/verbs.tsv", "de/verbs.tsv", "de/nouns.tsv", "a.jsonl")]
    for file in files[:3]:
        file.parent.mkdir(exist_ok=True)
        file.write_text("sentence_good\tsentence_bad\tUID\tfield\nA.\tB.\t\t\n")  # empty columns are missing columns
    files[3].write_text('{"sentence_good": "A.", "sentence_bad": "B.", "UID": 0, "field": 0}')
    pairs = read_pairs(files, *COLUMNS)
    assert [pair.paradigm for pair in pairs] == ["en/verbs.tsv", "de/verbs.tsv", "nouns", "0"]  # labels are texts
    assert [pair.field for pair in pairs] == [None] * 3 + ["0"]


def test_scores_that_are_not_finite(tmp_path):
    model, tokenizer = make_model("snugbert")
    torch.nn.init.constant_(model.get_output_embeddings().bias, torch.nan)
    with pytest.raises(InputError, match="NaN or infinite"):
        score_pairs(model, tokenizer, [MinimalPair("the cat", "the dog", "a", "a", None, tmp_path, 1)])
