"""Windows of questions and contexts, and spans of texts, compared with simple references."""

import json
import logging
import random

import pytest
from family_checkpoints import write_tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from snugbert.data.squad import Question, read_questions
from snugbert.errors import InputError
from snugbert.families_snugbert import FAMILY_TYPES
from snugbert.tasks.question_windows import find_max_context, make_question_windows, split_into_spans


def run_qa_features(question: Question, tokenizer: PreTrainedTokenizerBase, length: int, overlap: int) -> list[dict]:
    """Windows and answer positions of a question from the tokenizer's own truncation, token by token."""
    encoded = tokenizer(
        question.question,
        question.context,
        truncation="only_second",
        max_length=length,
        stride=overlap,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    features = []
    for window, offsets in enumerate(encoded["offset_mapping"]):
        context = [token for token, segment in enumerate(encoded.sequence_ids(window)) if segment == 1]
        covered = []
        if question.answers:
            start, end = question.answer_starts[0], question.answer_starts[0] + len(question.answers[0])
            if offsets[context[0]][0] <= start and end <= offsets[context[-1]][1]:
                covered = [token for token in context if offsets[token][1] > start and offsets[token][0] < end]
        features.append(
            {
                **{name: encoded[name][window] for name in tokenizer.model_input_names},
                "start_positions": covered[0] if covered else 0,
                "end_positions": covered[-1] if covered else 0,
                "first": context[0],
                "offsets": [offsets[token] for token in context],
            }
        )
    return features


def check_is_max_context(spans: list[tuple[int, int]], window: int, position: int) -> bool:
    """The definition in the original release's run_squad.py. Spans are (first token, number of tokens)."""
    best_score, best_span = None, None
    for number, (start, length) in enumerate(spans):
        end = start + length - 1
        if position < start or position > end:
            continue
        score = min(position - start, end - position) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best_span = score, number
    return window == best_span


@pytest.mark.parametrize(
    ("family", "number", "length", "overlap"),
    [
        *((family, 20, 512, 100) for family in FAMILY_TYPES),
        *((None, 150, length, overlap) for length, overlap in ((384, 128), (128, 32), (96, 0))),
    ],
)
def test_windows_equal_the_tokenizers_truncation(family, number, length, overlap, data_dir, tokenizer, tmp_path):
    if family is not None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
        tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(tmp_path, family))
    file = data_dir / "squad" / "dev-v2.0-half.jsonl.gz"
    questions = random.Random(1).sample(read_questions(file, "dev"), number)
    windows = make_question_windows(questions, tokenizer, length, overlap, max_query_length=length, training=True)
    by_question = [run_qa_features(question, tokenizer, length, overlap) for question in questions]
    assert windows.question_indices.tolist() == [number for number, parts in enumerate(by_question) for _ in parts]
    expected = [feature for parts in by_question for feature in parts]
    assert windows.context_offsets.tolist() == [feature["first"] for feature in expected]
    names = [*tokenizer.model_input_names, "start_positions", "end_positions"]
    assert windows.inputs[:] == {name: [feature[name] for feature in expected] for name in names}
    for starts, ends, feature in zip(windows.char_starts, windows.char_ends, expected, strict=True):
        assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == feature["offsets"]
    assert sum(feature["start_positions"] > 0 for feature in expected) > number // 3


@pytest.mark.parametrize(
    ("tokens", "size", "overlap", "expected"),
    [
        (0, 5, 2, [(0, 0)]),
        (5, 5, 2, [(0, 5)]),
        (6, 5, 2, [(0, 5), (3, 6)]),
        (9, 5, 2, [(0, 5), (3, 8), (6, 9)]),
        (9, 3, 0, [(0, 3), (3, 6), (6, 9)]),
        (23, 9, 7, [(0, 9), (2, 11), (4, 13), (6, 15), (8, 17), (10, 19), (12, 21), (14, 23)]),
    ],
)
def test_spans_and_maximum_context(tokens, size, overlap, expected):
    spans = split_into_spans(tokens, size, overlap)
    assert spans == expected
    lengths = [(begin, end - begin) for begin, end in spans]
    for window, ((begin, end), best) in enumerate(zip(spans, find_max_context(spans), strict=True)):
        assert best.tolist() == [check_is_max_context(lengths, window, token) for token in range(begin, end)]


def test_unusual_questions(tokenizer, caplog):
    questions = [
        Question("0", "", "Anna slept."),
        Question("1", "Who slept?", " \n "),
        Question("2", "who " * 70, "Anna unbelievably slept.", ("believ",), (7,), row="dev.jsonl, row 3"),
    ]
    with caplog.at_level(logging.WARNING, logger="snugbert"):
        windows = make_question_windows(questions, tokenizer, training=True)
    assert "Questions truncated to 64 tokens (max_query_length): 1. The first: dev.jsonl, row 3." in caplog.text
    window_tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in windows.inputs["input_ids"]]
    assert window_tokens[0] == ["[CLS]", "[SEP]", "anna", "slept", ".", "[SEP]"]
    assert window_tokens[1] == ["[CLS]", "who", "slept", "?", "[SEP]", "[SEP]"]
    assert windows.inputs["token_type_ids"][1] == [0, 0, 0, 0, 0, 1]
    assert not any(map(len, (windows.char_starts[1], windows.char_ends[1], windows.max_context[1])))
    assert window_tokens[2][:66] == ["[CLS]", *["who"] * 64, "[SEP]"]
    # The answer is a part of a word: the sub-tokens that cover it.
    start, end = windows.inputs["start_positions"][2], windows.inputs["end_positions"][2]
    covered = "".join(window_tokens[2][start : end + 1]).replace("##", "")
    assert "believ" in covered and covered in "unbelievably"


def test_windows_without_room_for_context(tokenizer):
    question = Question("0", "Who slept?", "Anna slept.")
    with pytest.raises(InputError, match="max_seq_length 128: a question of 3 tokens leaves 122 for the context"):
        make_question_windows([question], tokenizer, max_seq_length=128)
    assert len(make_question_windows([question], tokenizer, max_seq_length=128, doc_stride=121).question_indices) == 1
