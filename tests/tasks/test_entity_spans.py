"""Entities as spans of characters: the forms of annotation tools, odd inputs, scores, and files of predictions."""

import json
import random

import numpy as np
import pandas
import pytest
from conll import all_tags, make_tagging
from family_checkpoints import write_tokenizer
from seqeval.metrics import classification_report
from transformers import AutoTokenizer

from snugbert.data.tables import make_source
from snugbert.errors import InputError
from snugbert.tasks.entity_spans import find_words, list_spans
from snugbert.tasks.evaluation_set import EvaluationSet
from snugbert.tasks.tagged_sentences import TagSplit, decode_tags
from snugbert.tasks.tagging import Tagging

TEXT = "😀 Ada Lovelace-King lives in Bonn."
SPANS = [[2, 19, "PER"], [29, 33, "LOC"]]
DICTS = [{"start": start, "end": end, "label": label} for start, end, label in SPANS]
NAMED = [{**each, "labels": [each["label"]], "text": TEXT[each["start"] : each["end"]]} for each in DICTS]
for each in NAMED:
    del each["label"]
TASK = {"data": {"text": TEXT}, "annotations": [{"result": [{"type": "labels", "value": each} for each in NAMED]}]}
FORMS = {
    "lists": {"text": TEXT, "entities": SPANS},
    "doccano": {"id": 1, "text": TEXT, "label": SPANS},
    "doccano with relations": {
        "text": TEXT,
        "entities": [{"start_offset": start, "end_offset": end, "label": label} for start, end, label in SPANS],
        "relations": [],
    },
    "prodigy": {"text": TEXT, "tokens": [{"text": "Ada"}], "spans": DICTS, "answer": "accept"},
    "spacy": {"text": TEXT, "ents": DICTS, "tokens": [{"id": 0}]},
    "label studio, minimal": {"text": TEXT, "label": NAMED},
    "label studio": {**TASK, "annotations": [{"was_cancelled": True, "result": []}, *TASK["annotations"]]},
    "own columns": {"content": TEXT, "marks": SPANS},
}


def read(rows, tokenizer, name: str = "train", **arguments) -> TagSplit:
    tagging = Tagging(**arguments)
    tagging.tokenizer = tokenizer
    return tagging.read_splits({name: [make_source(rows, "rows")]})[name]


def spans_of(split: TagSplit) -> list[list[list]]:
    return [
        [[each["start"], each["end"], each["label"]] for each in list_spans(text, decode_tags(tags), np.ones(99))]
        for text, tags in zip(split.texts, all_tags(split), strict=True)
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_list", [False, True])
def test_every_form_gives_the_same_entities(form, is_list, tokenizer, tmp_path):
    file = tmp_path / "train.json"
    file.write_text(json.dumps([FORMS[form]] if is_list else FORMS[form], indent=1 if is_list else None))
    own = {"text_column_name": "content", "label_column_name": "marks"} if form == "own columns" else {}
    split = read(file, tokenizer, **own)
    assert spans_of(split) == [SPANS]
    assert split.sentences[0].words == ["😀", "Ada", "Lovelace", "-", "King", "lives", "in", "Bonn", "."]
    assert split.types == {"PER", "LOC"}


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "deberta-v2"])
def test_spans_survive_the_words_of_every_tokenizer(family, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(tmp_path, family))
    row = {
        "text": "  go, the (good) ok!\nbad…",
        "entities": [[2, 4, "A"], [11, 15, "B"], [17, 19, "A"], [21, 24, "B"]],
    }
    assert spans_of(read([row], tokenizer)) == [row["entities"]]


# Entities, then the message without `--on_bad_tag repair`, then the spans with it. None: always refused.
ODD = [
    ([[2, 5, "A"], [2, 5, "A"]], "", [[2, 5, "A"]]),  # twice
    ([[1, 6, "A"]], "", [[2, 5, "A"]]),  # with spaces around it
    ([], "no entities", []),
    ([[3, 5, "A"]], r"\[3, 5, 'A'\], 'da', begins or ends inside a word: 'Ada'", [[2, 5, "A"]]),
    ([[2, 8, "A"]], "'Ada Lo', begins or ends inside a word: 'Ada Lovelace'", [[2, 14, "A"]]),
    ([[2, 4, "A"], [4, 5, "B"]], r"inside a word: 'Ada'. Such spans: 2", [[2, 5, "A"]]),
    ([[2, 6, "A"], [4, 9, "B"]], r"entities \[2, 6, 'A'\] and \[4, 9, 'B'\] overlap.* GLiNER", None),
    ([[2, 5, "A"], [2, 5, "B"]], "overlap", None),
    ([[2, 14, "A"], [6, 14, "B"]], "overlap", None),
    ([[30, 99, "A"]], "does not match the text: it is 'onn.'", []),
    ([[-4, 5, "A"]], "does not match the text", []),
    ([[2, -1, "A"]], "does not match the text", []),
    ([[5, 2, "A"]], "does not match the text: it is ''", []),
    ([[4, 4, "A"]], "does not match the text", []),
    ([[5, 6, "A"]], "does not match the text: it is ' '", []),
    ([{"start": 2, "end": 5, "label": "A", "text": "Bob"}], "it is 'Ada', not 'Bob'", []),
    ([{"start": 2, "end": 5, "labels": ["A", "B"]}], "overlap", None),
    ([[2, 5, "A"], {"start": 2, "end": 5, "label": "A", "text": "Ada"}], "", [[2, 5, "A"]]),
    ([{"start": 2, "end": 5}], "is not an entity", None),
    ([{"start": "2", "end": 5, "label": "A"}], "is not an entity", None),
    ([[2, 5]], "is not an entity", None),
    ([["Ada", "A", 3]], "is not an entity", None),
    ([[2, 5, ""]], "is not an entity", None),
    (["B-A"], "'B-A' is not an entity", None),
    ("PER", "no list of entities in 'entities' or 'spans'", None),
    (None, "row 1: no list of entities", None),
]


@pytest.mark.parametrize(("entities", "message", "repaired"), ODD)
def test_odd_entities(entities, message, repaired, tokenizer, tmp_path, caplog):
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps({"text": TEXT, "entities": entities}))
    if message and message != "no entities":
        with pytest.raises(InputError, match=message):
            read(file, tokenizer)
    if repaired is None:
        with pytest.raises(InputError, match=message):
            read(file, tokenizer, on_bad_tag="repair")
    else:
        assert spans_of(read(file, tokenizer, on_bad_tag="repair")) == [repaired]
        assert ("extended to whole words" in caplog.text) == (message not in ("", "no entities"))


def test_shifted_offsets_are_not_repaired(tokenizer, tmp_path):
    """Suffixes are repaired: one end fits."""
    file = tmp_path / "train.jsonl"
    file.write_text(12 * (json.dumps({"text": TEXT, "entities": [[3, 8, "A"]]}) + "\n"))
    with pytest.raises(InputError, match=r"Such spans: 12 of 12. Offsets count characters from 0"):
        read(file, tokenizer, on_bad_tag="repair")
    file.write_text(12 * (json.dumps({"text": TEXT, "entities": [[2, 4, "A"]]}) + "\n"))
    assert spans_of(read(file, tokenizer, on_bad_tag="repair")) == 12 * [[[2, 5, "A"]]]


def test_examples_without_annotations_or_words_are_left_out_or_predicted(tokenizer, caplog):
    rows = [{"text": "Ada", "spans": [], "answer": answer} for answer in ("reject", "accept", "ignore")]
    split = read([*rows, {"text": " \n", "spans": [], "answer": "accept"}], tokenizer)
    assert [sentence.row for sentence in split.sentences] == [2] and len(split.texts) == 1
    assert "left out rows that were rejected, ignored or not annotated: 2" in caplog.text
    assert "skipped sentences without words: 1" in caplog.text
    rows = [TASK, {**TASK, "annotations": []}, {**TASK, "annotations": [{"was_cancelled": True, "result": []}]}]
    assert len(read(rows, tokenizer).sentences) == 1 and "not annotated: 2" in caplog.text
    assert len(read(rows, tokenizer, "test").sentences) == 3
    frame = pandas.DataFrame([FORMS["lists"]] * 2)
    assert spans_of(read(frame, tokenizer)) == [SPANS, SPANS]


def test_f1_equals_seqeval_on_the_same_data_as_conll(part, labels, tokenizer):
    """The tokenizer splits words such as U.S. further, which must not change the score of entities."""
    generator = random.Random(0)
    noisy = [[generator.choice(labels) if generator.random() < 0.1 else tag for tag in row] for row in all_tags(part)]

    def to_rows(tags):
        rows = []
        for sentence, row in zip(part.sentences, tags, strict=True):
            ends = np.cumsum([len(word) + 1 for word in sentence.words]) - 1
            starts = [end - len(word) for word, end in zip(sentence.words, ends, strict=True)]
            spans = [{"start": starts[i], "end": ends[j], "label": kind} for kind, i, j in decode_tags(row)]
            rows.append({"text": " ".join(sentence.words), "entities": spans})
        return rows

    references, predictions = (read(to_rows(tags), tokenizer, "validation") for tags in (all_tags(part), noisy))
    assert len(references.sentences[0].words) >= len(part.sentences[0].words)
    tagging = make_tagging(labels, tokenizer)
    evaluation_set = EvaluationSet(tagging, references)
    found = evaluation_set.score(tagging.pair(all_tags(references), all_tags(predictions))[1])
    report = classification_report(all_tags(part), noisy, output_dict=True, zero_division=0)
    for kind, prefix in {"micro avg": "", **{kind: f"{kind}_" for kind in ("PER", "LOC", "ORG", "MISC")}}.items():
        expected = [report[kind][name] for name in ("precision", "recall", "f1-score")]
        assert [found[f"{prefix}{name}"] for name in ("precision", "recall", "f1")] == expected
    assert 0.3 < found["f1"] < 0.9


def test_predictions_are_spans_with_label_and_score_and_can_be_read_again(tokenizer, tmp_path):
    rows = [{"id": 7, "text": TEXT, "spans": DICTS, "label": "news"}, {"id": 8, "text": "Bonn", "label": None}]
    source = tmp_path / "test.jsonl"
    source.write_text("\n".join(json.dumps(row) for row in rows))
    tagging = make_tagging(["O", "B-LOC", "I-LOC", "B-PER", "I-PER"], tokenizer, test_file=str(source))
    split = tagging.read_splits(tagging.find_sources(None))["test"]
    assert not split.labeled
    evaluation_set = EvaluationSet(tagging, split)
    logits = np.random.default_rng(0).normal(size=(2, 20, 5))
    answers = evaluation_set.decode(logits)
    evaluation_set.write(answers, tmp_path)
    lines = (tmp_path / "predictions.jsonl").read_text().splitlines()
    written = [json.loads(line) for line in lines]
    columns = [each["entities"] for each in tagging.to_columns(split, answers)]
    assert written == [rows[0] | {"spans": columns[0]}, rows[1] | {"label": columns[1]}]
    assert all(each["text"] == TEXT[each["start"] : each["end"]] and 0 < each["score"] < 1 for each in columns[0])
    again = read(tmp_path / "predictions.jsonl", tokenizer)
    assert spans_of(again) == [[[each["start"], each["end"], each["label"]] for each in row] for row in columns]


def test_characters_without_tokens_and_scripts_without_spaces(tokenizer, tmp_path):
    text = " Cafe\u0301 ❤\ufe0f Ada\u200b 3.90 東京 don't\x00."
    words = [text[start:end] for start, end in find_words(text, tokenizer).words]
    assert words == ["Cafe\u0301", "❤\ufe0f", "Ada\u200b", "3", ".", "90", "東", "京", "don", "'", "t", "."]
    roberta = AutoTokenizer.from_pretrained(write_tokenizer(tmp_path, "roberta"))
    assert spans_of(read([{"text": "go 東京に", "entities": [[3, 5, "A"]]}], roberta)) == [[[3, 5, "A"]]]
