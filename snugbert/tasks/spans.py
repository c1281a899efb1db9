"""Finds the answer to each question from the model's logits for its windows.

The score of a span is the start logit of its first token plus the end logit of its last token. The best span of all
windows is the answer (Devlin et al., 2018, section 4.2). Every span is compared. The original release (`run_squad.py`)
and transformers' `utils_qa.py` combine only the 20 best starts and the 20 best ends of a window, question tokens
included. If none of these form a span, they find no answer.

Shapes in comments: N windows of L tokens; n windows in a batch with at most C tokens of context.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import logsumexp, softmax

from snugbert.data.squad import Question
from snugbert.tasks.question_windows import ContextWindows

# The odds of "no answer" for a context without tokens: above any threshold. JSON cannot represent infinity.
SURELY_NULL = float(np.finfo(np.float32).max)
WINDOWS_PER_BATCH = 500  # with 20 starts and 30 ends each, the scores take 2.4 MB and fit in the cache


class Candidate(NamedTuple):
    """A possible answer. `_asdict()` is an entry of `nbest_predictions.json`."""

    text: str  # `context[start:end]`, or "" for "no answer"
    probability: float  # softmax of the scores over the question's candidates
    start_logit: float
    end_logit: float
    start: int  # in characters
    end: int

    @property
    def score(self) -> float:
        """The sum of both logits."""
        return self.start_logit + self.end_logit


NO_ANSWER = Candidate("", 0.0, 0.0, 0.0, 0, 0)


class Answer(NamedTuple):
    """The answer to a question."""

    text: str  # a part of the context, or "" for "no answer"
    null_odds: float | None  # score of "no answer" minus score of the best span. None without `version_2`
    best_span: str  # even if "no answer" scores higher. "" if the context has no tokens
    n_best: list[Candidate]  # at least one, best first
    log_total: float = math.nan  # sum of the logarithms of the softmax denominators of starts and of ends

    @property
    def chosen(self) -> Candidate:
        """The candidate whose text is the answer."""
        return next(candidate for candidate in self.n_best if candidate.text == self.text)

    def extract(self, candidate: Candidate) -> dict[str, Any]:
        """Returns a candidate as the predicted columns `score`, `start`, `end` and `answer`.

        The score is the probability that the answer starts at its first token times the probability that it ends at
        its last token. Both softmaxes run over [CLS] and the context tokens of all windows.
        """
        score = float(np.exp(candidate.score - self.log_total))
        return {"score": score, "start": candidate.start, "end": candidate.end, "answer": candidate.text}


def best_answers(
    questions: Sequence[Question],
    windows: ContextWindows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    version_2: bool = False,
    null_threshold: float = 0.0,
) -> list[Answer]:
    """Finds the best answer to each question.

    A span counts only in the window in which its first token has its maximum context, so no span counts twice. As in
    the original release, only the best of several spans with the same text is a candidate. Spans with equal scores are
    ordered by window, then by start, then by end.

    Args:
        windows: the windows of the questions, at least one for each.
        start_logits, end_logits: the model's logits. Only [CLS] and the context tokens are read. The values of padding
            do not matter. *Shape:* (N, L)
        n_best_size: candidates per question. With `version_2` the best span and "no answer" are always included.
        max_answer_length: maximum tokens of an answer.
        version_2: questions may have no answer, as in SQuAD v2.0. The score of "no answer" is the sum of both logits
            of [CLS] in the window with the lowest sum. So a question has no answer only if no window has an answer.
        null_threshold: the answer is "" if the odds of "no answer" exceed this value.

    If a context has no tokens, the answer is "", and with `version_2` the odds of "no answer" are [`SURELY_NULL`].
    """
    spans: list[list[Candidate]] = [[] for _ in questions]
    counts = np.bincount(windows.question_indices)
    pending, num_spans = np.arange(len(questions)), n_best_size
    while len(pending):
        incomplete = []
        borders = np.flatnonzero(np.diff(np.cumsum(counts[pending]) // WINDOWS_PER_BATCH)) + 1
        for batch in np.split(pending, borders):
            indices = np.flatnonzero(np.isin(windows.question_indices, batch))
            found = _find_best_spans(
                questions, windows, indices, start_logits, end_logits, num_spans, max_answer_length
            )
            for question, candidates in found:
                distinct = _remove_repeated_texts(candidates)
                spans[question] = distinct[:n_best_size]
                if len(distinct) < n_best_size and len(candidates) == num_spans:
                    incomplete.append(question)
        # Repeated texts left too few candidates for these questions. Search again with more spans.
        pending, num_spans = np.array(incomplete, np.int64), 4 * num_spans
    nulls = _score_no_answer(questions, windows, start_logits, end_logits) if version_2 else [None] * len(questions)
    totals = _log_sum_exp(windows, start_logits) + _log_sum_exp(windows, end_logits)
    return [
        _choose_answer(best, null, n_best_size, null_threshold)._replace(log_total=total)
        for best, null, total in zip(spans, nulls, totals.tolist(), strict=True)
    ]


def _find_best_spans(
    questions: Sequence[Question],
    windows: ContextWindows,
    window_indices: np.ndarray,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    num_spans: int,
    max_answer_length: int,
) -> Iterator[tuple[int, list[Candidate]]]:
    """Yields index and best spans, best first, of each question that has spans.

    `window_indices`: all windows of these questions. *Shape:* (n,)
    """
    lengths = np.array([len(windows.char_starts[i]) for i in window_indices])
    inside = np.arange(lengths.max(initial=1)) < lengths[:, None]  # [n, C]
    token_indices = np.where(inside, windows.context_offsets[window_indices, None] + np.arange(inside.shape[1]), 0)
    start, end = (
        np.where(inside, logits[window_indices[:, None], token_indices].astype(np.float64), -np.inf)
        for logits in (start_logits, end_logits)
    )
    valid = (np.maximum(start, end) < np.inf).all(axis=1)
    if not valid.all():
        index = windows.question_indices[window_indices[valid.argmin()]]
        raise ValueError(f"A logit for the context of question {questions[index].id} is NaN or infinite.")
    start[~_pad(windows.max_context, window_indices, inside).astype(bool)] = -np.inf

    width = min(max_answer_length, inside.shape[1])
    ends = sliding_window_view(np.pad(end, ((0, 0), (0, width - 1)), constant_values=-np.inf), width, axis=1)
    # The best `num_spans` spans begin at the `num_spans` starts whose best spans score highest.
    starts = np.argsort(-(start + ends.max(axis=2)), axis=1, kind="stable")[:, :num_spans]
    starts.sort(axis=1)
    window = np.arange(len(window_indices))[:, None]
    scores = (start[window, starts][:, :, None] + ends[window, starts]).reshape(len(window), -1)  # [n, starts x width]
    order = np.argsort(-scores, axis=1, kind="stable")[:, :num_spans]

    # From here on, all arrays have one value per span, in the same order.
    window, rank = np.nonzero(scores[window, order] > -np.inf)
    span = order[window, rank]
    first = starts[window, span // width]
    last = first + span % width
    question = windows.question_indices[window_indices[window]]
    by_question = np.lexsort((-scores[window, span], question))
    columns = (
        question,
        start[window, first],
        end[window, last],
        _pad(windows.char_starts, window_indices, inside)[window, first],
        _pad(windows.char_ends, window_indices, inside)[window, last],
    )
    table = zip(*(column[by_question].tolist() for column in columns), strict=True)
    for index, group in groupby(table, key=itemgetter(0)):
        context = questions[index].context
        candidates = [
            Candidate(context[char_start:char_end], 0.0, start_logit, end_logit, char_start, char_end)
            for _, start_logit, end_logit, char_start, char_end in islice(group, num_spans)
        ]
        yield index, candidates


def _pad(values: list[np.ndarray], window_indices: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Pads the values of some windows with zeros. `inside` marks their context tokens. *Shape:* (n, C)"""
    padded = np.zeros(inside.shape, np.int64)
    padded[inside] = np.concatenate([values[i] for i in window_indices])
    return padded


def _remove_repeated_texts(candidates: list[Candidate]) -> list[Candidate]:
    """Keeps the first candidate of each text, and drops empty texts (tokens without characters)."""
    by_text: dict[str, Candidate] = {}
    for candidate in candidates:
        by_text.setdefault(candidate.text, candidate)
    by_text.pop("", None)
    return list(by_text.values())


def _score_no_answer(
    questions: Sequence[Question], windows: ContextWindows, start_logits: np.ndarray, end_logits: np.ndarray
) -> list[Candidate]:
    """Returns "no answer" for each question, with the [CLS] logits from the window with the lowest sum."""
    answers: dict[int, Candidate] = {}
    for index, start, end in zip(
        windows.question_indices.tolist(), start_logits[:, 0].tolist(), end_logits[:, 0].tolist(), strict=True
    ):
        if not start + end < np.inf:
            raise ValueError(f"A logit of [CLS] for question {questions[index].id} is NaN or infinite.")
        if index not in answers or start + end < answers[index].score:
            answers[index] = NO_ANSWER._replace(start_logit=start, end_logit=end)
    return list(answers.values())


def _log_sum_exp(windows: ContextWindows, logits: np.ndarray) -> np.ndarray:
    """Returns the log of each question's softmax denominator, (questions,), over [CLS] and context of all windows."""
    token_indices = np.arange(logits.shape[1])
    first = windows.context_offsets
    end = first + [len(char_starts) for char_starts in windows.char_starts]
    included = (token_indices == 0) | ((token_indices >= first[:, None]) & (token_indices < end[:, None]))
    by_window = logsumexp(np.where(included, logits.astype(np.float64), -np.inf), axis=1)
    with np.errstate(invalid="ignore"):  # without `version_2`, the logits of [CLS] may be NaN
        return np.logaddexp.reduceat(by_window, np.flatnonzero(np.diff(windows.question_indices, prepend=-1)))


def _choose_answer(spans: list[Candidate], null: Candidate | None, n_best_size: int, null_threshold: float) -> Answer:
    listed, odds = spans or [NO_ANSWER], None
    if null is not None:
        rank = sum(span.score >= null.score for span in spans)
        # Always keep "no answer", and at least two candidates.
        listed = [*spans[:rank], null, *spans[rank:]][: max(n_best_size, rank + 1, 2)]
        odds = null.score - spans[0].score if spans else SURELY_NULL
    probabilities = softmax([candidate.score for candidate in listed]).tolist()
    n_best = [candidate._replace(probability=each) for candidate, each in zip(listed, probabilities, strict=True)]
    is_null = not spans or (odds is not None and odds > null_threshold)
    best = spans[0].text if spans else ""
    return Answer("" if is_null else best, odds, best, n_best)
