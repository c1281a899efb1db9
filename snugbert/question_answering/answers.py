"""The model's scores of the windows -> an answer to each question, cut out of its context.

The score of a span is that of its first token as a start plus that of its last token as an end, and the best span of
all windows is the answer (Devlin et al., 2018, section 4.2). Every span is weighed. The original release
(`run_squad.py`) and transformers' `utils_qa.py` weigh the 20 best starts with the 20 best ends of a window, the
question's own tokens among them; where none of these go together they find nothing.

Shapes in comments: N windows of L columns; n windows of a batch, with at most C tokens of context.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from snugbert.question_answering.windows import ContextWindows, Question

# The odds of a context without a token: "no answer" whatever the threshold. JSON has no infinity.
SURELY_NULL = float(np.finfo(np.float32).max)
WINDOWS_AT_ONCE = 500  # the scores of 20 starts with 30 ends each take 2.4 MB and stay in the cache


class Candidate(NamedTuple):
    """A possible answer; `_asdict()` is an entry of `nbest_predictions.json`.

    Attributes:
        text: words of the context; "" for "no answer".
        probability: softmax of the scores over the candidates of a question.
        start_logit, end_logit: the model's two scores; their sum is the candidate's.
        start, end: characters, `context[start:end]` is the text; 0 and 0 for "no answer".
    """

    text: str
    probability: float
    start_logit: float
    end_logit: float
    start: int
    end: int

    @property
    def score(self) -> float:
        """Sum of both scores."""
        return self.start_logit + self.end_logit


NO_ANSWER = Candidate("", 0.0, 0.0, 0.0, 0, 0)


class Answer(NamedTuple):
    """The answer to a question.

    Attributes:
        text: words of the context; "" for "no answer".
        null_odds: the score of "no answer" minus that of the best span; None without `version_2`.
        best_span: the text of the best span, whatever the odds of "no answer"; "" if the context has no tokens.
        n_best: the candidates, best first; at least one.
    """

    text: str
    null_odds: float | None
    best_span: str
    n_best: list[Candidate]


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
    """Finds the answers.

    A span begins with a token that has its maximum context in the window, so no span is found in two windows. As in
    the original release, only the best of spans with the same text is a candidate. Of spans with equal scores, that
    of the earlier window comes first, then the one that begins, then the one that ends earlier.

    Args:
        questions: their contexts are looked at.
        windows: of these questions.
        start_logits, end_logits: the model's scores. Only those of the first token, [CLS], and of the context are
            read; padding may hold anything. *Shape:* (N, L)
        n_best_size: candidates of a question; 20 in the original release. In v2.0 the best span and "no answer" are
            always among them.
        max_answer_length: tokens of the longest answer; 30 in the original release.
        version_2: questions may have no answer, as in SQuAD v2.0. The score of "no answer" is the sum of both scores
            of [CLS], the least of all windows: a question has no answer if every window says so.
        null_threshold: the answer is "" if the odds of "no answer" are more than this.

    Returns:
        One for each question. If its context has no tokens: "", in v2.0 with the odds [`SURELY_NULL`].

    Raises:
        ValueError: `n_best_size` or `max_answer_length` is not positive, the rows are not as many as the windows, or a
            score is NaN or infinite; that of a token of the context may be minus infinity.
    """
    if min(n_best_size, max_answer_length) < 1:
        raise ValueError(f"`n_best_size` {n_best_size} and `max_answer_length` {max_answer_length} must be positive.")
    if not len(start_logits) == len(end_logits) == len(windows.question):
        raise ValueError(
            f"There are {len(windows.question)} windows, but {len(start_logits)} and {len(end_logits)} rows of scores."
        )
    spans: list[list[Candidate]] = [[] for _ in questions]
    counts = np.bincount(windows.question, minlength=len(questions))
    pending, wanted = np.flatnonzero(counts), n_best_size
    while len(pending):
        short = []
        borders = np.flatnonzero(np.diff(np.cumsum(counts[pending]) // WINDOWS_AT_ONCE)) + 1
        for batch in np.split(pending, borders):
            rows = np.flatnonzero(np.isin(windows.question, batch))
            found = _best_spans(questions, windows, rows, start_logits, end_logits, wanted, max_answer_length)
            for question, candidates in found:
                distinct = _distinct(candidates)
                spans[question] = distinct[:n_best_size]
                if len(distinct) < n_best_size and len(candidates) == wanted:
                    short.append(question)
        # Texts that occur again have taken the places of others: for these questions, further down the list.
        pending, wanted = np.array(short, np.int64), 4 * wanted
    if not version_2:
        return [_answer(best, None, n_best_size, null_threshold) for best in spans]
    nulls = _null_answers(questions, windows, start_logits, end_logits)
    return [
        _answer(best, nulls.get(number, NO_ANSWER), n_best_size, null_threshold) for number, best in enumerate(spans)
    ]


def _best_spans(
    questions: Sequence[Question],
    windows: ContextWindows,
    rows: np.ndarray,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    wanted: int,
    max_answer_length: int,
) -> Iterator[tuple[int, list[Candidate]]]:
    """The best spans of some questions.

    Args:
        questions, windows, start_logits, end_logits, max_answer_length: as in [`best_answers`].
        rows: all windows of these questions. *Shape:* (n,)
        wanted: how many spans of each question.

    Yields:
        The question's number and its spans, best first, for each that has any.
    """
    lengths = np.array([len(windows.starts[row]) for row in rows])
    inside = np.arange(lengths.max(initial=1)) < lengths[:, None]  # [n, C]
    columns = np.where(inside, windows.first[rows, None] + np.arange(inside.shape[1]), 0)
    start, end = (
        np.where(inside, logits[rows[:, None], columns].astype(np.float64), -np.inf)
        for logits in (start_logits, end_logits)
    )
    numbers = (np.maximum(start, end) < np.inf).all(axis=1)
    if not numbers.all():
        number = windows.question[rows[numbers.argmin()]]
        raise ValueError(f"A score of the context of question {questions[number].id} is no number.")
    start[~_padded(windows.max_context, rows, inside).astype(bool)] = -np.inf

    width = min(max_answer_length, inside.shape[1])
    ends = sliding_window_view(np.pad(end, ((0, 0), (0, width - 1)), constant_values=-np.inf), width, axis=1)
    # A span among the best `wanted` begins with one of the `wanted` starts whose own best span is best.
    starts = np.argsort(-(start + ends.max(axis=2)), axis=1, kind="stable")[:, :wanted]
    starts.sort(axis=1)
    window = np.arange(len(rows))[:, None]
    scores = (start[window, starts][:, :, None] + ends[window, starts]).reshape(len(rows), -1)  # [n, starts x width]
    order = np.argsort(-scores, axis=1, kind="stable")[:, :wanted]

    window, rank = np.nonzero(scores[window, order] > -np.inf)
    span = order[window, rank]  # one a span from here on, in this order
    first = starts[window, span // width]
    last = first + span % width
    question = windows.question[rows[window]]
    by_question = np.lexsort((-scores[window, span], question))
    values = (
        question,
        start[window, first],
        end[window, last],
        _padded(windows.starts, rows, inside)[window, first],
        _padded(windows.ends, rows, inside)[window, last],
    )
    table = zip(*(column[by_question].tolist() for column in values), strict=True)
    for number, group in groupby(table, key=itemgetter(0)):
        context = questions[number].context
        candidates = [
            Candidate(context[begin:behind], 0.0, start_logit, end_logit, begin, behind)
            for _, start_logit, end_logit, begin, behind in islice(group, wanted)
        ]
        yield number, candidates


def _padded(values: list[np.ndarray], rows: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """The values of some windows, with zeros where a window has no token; -> [n, C]."""
    padded = np.zeros(inside.shape, np.int64)
    padded[inside] = np.concatenate([values[row] for row in rows])
    return padded


def _distinct(candidates: list[Candidate]) -> list[Candidate]:
    """The first candidate of each text; tokens that cover no characters make none."""
    by_text: dict[str, Candidate] = {}
    for candidate in candidates:
        by_text.setdefault(candidate.text, candidate)
    by_text.pop("", None)
    return list(by_text.values())


def _null_answers(
    questions: Sequence[Question], windows: ContextWindows, start_logits: np.ndarray, end_logits: np.ndarray
) -> dict[int, Candidate]:
    """By number of the question, "no answer" with the scores of [CLS] in the window that is least in favour of it."""
    answers: dict[int, Candidate] = {}
    for number, start, end in zip(
        windows.question.tolist(), start_logits[:, 0].tolist(), end_logits[:, 0].tolist(), strict=True
    ):
        if not start + end < np.inf:
            raise ValueError(f"A score of [CLS] for question {questions[number].id} is no number.")
        if number not in answers or start + end < answers[number].score:
            answers[number] = NO_ANSWER._replace(start_logit=start, end_logit=end)
    return answers


def _answer(spans: list[Candidate], null: Candidate | None, n_best_size: int, null_threshold: float) -> Answer:
    """The answer to a question.

    Args:
        spans: the best spans, best first.
        null: "no answer"; None where every question has one.
        n_best_size: how many of all these are candidates.
        null_threshold: the odds from which on "no answer" is the answer.
    """
    listed, odds = spans or [NO_ANSWER], None
    if null is not None:
        rank = sum(span.score >= null.score for span in spans)
        # The last one counts though it be "no answer", the second though it be the only span.
        listed = [*spans[:rank], null, *spans[rank:]][: max(n_best_size, rank + 1, 2)]
        odds = null.score - spans[0].score if spans else SURELY_NULL
    weights = np.exp([candidate.score - listed[0].score for candidate in listed])
    n_best = [
        Candidate(candidate.text, probability, *candidate[2:])
        for candidate, probability in zip(listed, (weights / weights.sum()).tolist(), strict=True)
    ]
    is_null = not spans or (odds is not None and odds > null_threshold)
    return Answer(
        text="" if is_null else spans[0].text,
        null_odds=odds,
        best_span=spans[0].text if spans else "",
        n_best=n_best,
    )
