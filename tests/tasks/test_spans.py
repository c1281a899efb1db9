"""Answers from the logits of windows, compared with a search through every span."""

import json
import math
import random
from operator import itemgetter

import numpy as np
import pytest

from snugbert import SnugBertTokenizer
from snugbert.data.squad import Question
from snugbert.tasks.question_windows import ContextWindows, make_question_windows
from snugbert.tasks.spans import SURELY_NULL, best_answers

WORDS = [f"{first}{second}" for first in "abcde" for second in "xyz"]
TOKENIZER = SnugBertTokenizer(
    vocab={word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "."])}
)


def make_questions(number: int, longest: int, seed: int) -> list[Question]:
    """Makes contexts of a few words, so that the same text occurs in many places. Some have no words."""
    chance = random.Random(seed)
    questions = []
    for i in range(number):
        words = [
            chance.choice(WORDS) + chance.choice(["", "", "s"])
            for _ in range(chance.randint(1, longest) if i % 9 else 0)
        ]
        context = "".join(word + chance.choice([" ", "  ", ". "]) for word in words)
        asked = " ".join(chance.choices(WORDS, k=chance.randint(1, 3)))
        questions.append(Question(id=f"q{i}", question=asked, context=context))
    return questions


def make_logits(windows: ContextWindows, seed: int, padding: float) -> tuple[np.ndarray, np.ndarray]:
    """Makes logits with many ties. Question tokens, which cannot be answers, have the highest."""
    generator = np.random.default_rng(seed)
    lengths = [len(ids) for ids in windows.inputs["input_ids"]]
    logits = generator.integers(-6, 7, (2, len(lengths), max(lengths))).astype(np.float32) / 2
    for window, length in enumerate(lengths):
        logits[:, window, 1 : windows.context_offsets[window]] = 99.0
        logits[:, window, length - 1] = 99.0  # [SEP]
        logits[:, window, length:] = padding
    return logits[0], logits[1]


def search_every_span(
    questions, windows, start_logits, end_logits, n_best_size, max_answer_length, version_2, threshold
):
    """The definition, span by span: (text, start, end, null odds, candidates as (text, logits, characters))."""
    results = []
    for number, question in enumerate(questions):
        spans, nulls = [], []
        for window in range(len(windows.question_indices)):
            if windows.question_indices[window] != number:
                continue
            nulls.append((float(start_logits[window, 0]), float(end_logits[window, 0])))
            first, tokens = int(windows.context_offsets[window]), len(windows.char_starts[window])
            for start in range(tokens):
                for end in range(start, tokens):
                    if end - start + 1 > max_answer_length or not windows.max_context[window][start]:
                        continue
                    begin, stop = int(windows.char_starts[window][start]), int(windows.char_ends[window][end])
                    scores = float(start_logits[window, first + start]), float(end_logits[window, first + end])
                    spans.append((question.context[begin:stop], *scores, begin, stop))
        spans.sort(key=lambda span: -(span[1] + span[2]))  # stable: ties keep this order
        texts, distinct = set(), []
        for span in spans:
            if span[0] not in texts:
                texts.add(span[0])
                distinct.append(span)
        candidates = distinct[:n_best_size]
        odds = None
        if version_2:
            null = ("", *min(nulls, key=sum), 0, 0) if nulls else ("", 0.0, 0.0, 0, 0)
            odds = sum(null[1:3]) - sum(distinct[0][1:3]) if distinct else SURELY_NULL
            candidates = sorted([*distinct, null], key=lambda span: -(span[1] + span[2]))[:n_best_size]
            candidates += [span for span in (*distinct[:1], null) if span not in candidates]
        elif not candidates:
            candidates = [("", 0.0, 0.0, 0, 0)]
        no_answer = not distinct or (odds is not None and odds > threshold)
        chosen = ("", 0, 0) if no_answer else itemgetter(0, 3, 4)(distinct[0])
        results.append((*chosen, odds, candidates))
    return results


@pytest.mark.parametrize(
    ("n_best_size", "max_answer_length", "version_2", "threshold", "padding"),
    [
        (20, 30, False, 0.0, math.nan),
        (20, 30, True, 0.0, -100.0),
        (3, 4, True, -3.5, math.inf),
        (1, 1, False, 0.0, -math.inf),
        (1, 2, True, 2.0, 99.0),
        (500, 100, True, 1.0, math.nan),
    ],
)
def test_every_span_is_compared(n_best_size, max_answer_length, version_2, threshold, padding):
    questions = make_questions(60, longest=60, seed=n_best_size)
    windows = make_question_windows(questions, TOKENIZER, max_seq_length=24, doc_stride=6)
    assert len(windows.question_indices) > 2 * len(questions) and not all(
        len(starts) for starts in windows.char_starts
    )
    logits = make_logits(windows, seed=n_best_size, padding=padding)
    expected = search_every_span(questions, windows, *logits, n_best_size, max_answer_length, version_2, threshold)
    answers = best_answers(questions, windows, *logits, n_best_size, max_answer_length, version_2, threshold)
    assert len(answers) == len(questions)
    for question, answer, (text, start, end, odds, candidates) in zip(questions, answers, expected, strict=True):
        assert (answer.text, answer.null_odds) == (text, odds)
        assert question.context[start:end] == answer.text
        assert [(c.text, c.start_logit, c.end_logit, c.start, c.end) for c in answer.n_best] == candidates
        weights = [math.exp(c.start_logit + c.end_logit) for c in answer.n_best]
        assert [c.probability for c in answer.n_best] == pytest.approx([w / sum(weights) for w in weights])
        assert answer.best_span == next((c.text for c in answer.n_best if c.text), "")
        json.dumps([c._asdict() for c in answer.n_best], allow_nan=False)
        json.dumps(answer.null_odds, allow_nan=False)


def test_logits_that_are_nan():
    questions = [Question(id="q", question="ax", context="ax ay az bx by")]
    windows = make_question_windows(questions, TOKENIZER, max_seq_length=8, doc_stride=2)  # two
    start, end = np.zeros((2, 2, 8))
    end[1, 0] = math.nan
    assert best_answers(questions, windows, start, end)[0].text  # [CLS] is not read in v1.1
    with pytest.raises(ValueError, match=r"A logit of \[CLS\] for question q is NaN or infinite"):
        best_answers(questions, windows, start, end, version_2=True)
    end[1, 4] = math.nan
    with pytest.raises(ValueError, match="A logit for the context of question q is NaN or infinite"):
        best_answers(questions, windows, start, end)
