"""Cuts contexts into windows that a model can read, and finds the answer to each question from the model's logits.

A context is tokenized once, even for several questions. A window is the question and a part of its context.

The score of a span is the start logit of its first token plus the end logit of its last token. The best span of all
windows is the answer (Devlin et al., 2018, section 4.2). Every span is compared. The original release (`run_squad.py`)
and transformers' `utils_qa.py` combine only the 20 best starts and the 20 best ends of a window, question tokens
included. If none of these form a span, they find no answer.

Shapes in comments: N windows of L tokens; n windows in a batch with at most C tokens of context.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
from datasets import Dataset
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import logsumexp
from transformers import PreTrainedTokenizerBase

from snugbert.data.squad import Question
from snugbert.errors import InputError
from snugbert.tasks.base import Features
from snugbert.tasks.windows import find_max_context, make_inputs, split_into_spans

logger = logging.getLogger(__name__)

# The odds of "no answer" for a context without tokens: above any threshold. JSON cannot represent infinity.
SURELY_NULL = float(np.finfo(np.float32).max)
WINDOWS_PER_BATCH = 500  # 20 starts with 30 ends each take 2.4 MB, which stay in the processor's cache


# --- windows ----------------------------------------------------------------------------------------------------


@dataclass
class ContextWindows(Features):
    """N windows, and the position of their tokens in the contexts.

    Attributes:
        inputs: N rows of model inputs. For training, also start_positions and end_positions.
        question_indices: the question of each window. The windows of a question are adjacent and in order. int32,
            *Shape:* (N,)
        context_offsets: the position in the window of its first context token. int32, *Shape:* (N,)
        char_starts: for each window, the first character in the context of each context token. *Shape:* (tokens,) each
        char_ends: likewise, the end of each context token, exclusive.
        max_context: likewise, whether no other window has more context around the token.
    """

    question_indices: np.ndarray
    context_offsets: np.ndarray
    char_starts: list[np.ndarray]
    char_ends: list[np.ndarray]
    max_context: list[np.ndarray]


class _TokenizedText(NamedTuple):
    """Token ids of a text, and start and end character of each token. *Shape:* (tokens,) each"""

    ids: np.ndarray
    char_starts: np.ndarray
    char_ends: np.ndarray


def make_windows(
    questions: Sequence[Question],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
    training: bool = False,
) -> ContextWindows:
    """Cuts the contexts of questions into windows: [CLS] question [SEP] part of the context [SEP].

    The special tokens are those of the tokenizer's pairs. RoBERTa has two separators after the question.

    Args:
        questions: at least one. A context without tokens makes one window with an empty part.
        tokenizer: a fast tokenizer whose pairs begin with [CLS].
        max_seq_length: maximum tokens of a window.
        doc_stride: tokens that a window shares with the previous one, as in `run_qa.py`. In the original release's
            `run_squad.py` it is the step between windows instead.
        max_query_length: maximum tokens of a question. Longer questions are truncated, with a warning.
        training: add start_positions and end_positions, the first and last token of the question's first answer. In a
            window without the whole answer both are 0, the position of [CLS].

    Raises:
        InputError: next to the longest question, a window has room for at most `doc_stride` tokens of context.
    """
    queries = _tokenize([question.question for question in questions], tokenizer)
    long = [question for question, query in zip(questions, queries, strict=True) if len(query.ids) > max_query_length]
    if long:
        message = "Questions truncated to %d tokens (max_query_length): %d. The first: %s."
        logger.warning(message, max_query_length, len(long), long[0].row or long[0].id)
    longest = max(len(query.ids[:max_query_length]) for query in queries)
    check_room(tokenizer, max_seq_length, doc_stride, longest)
    before, between, after = _find_special_tokens(tokenizer)
    contexts = list(dict.fromkeys(question.context for question in questions))
    tokenized = dict(zip(contexts, _tokenize(contexts, tokenizer), strict=True))

    token_ids: list[tuple[np.ndarray, np.ndarray]] = []  # of each window: before the context, and from there on
    question_indices: list[int] = []
    char_starts: list[np.ndarray] = []
    char_ends: list[np.ndarray] = []
    max_context: list[np.ndarray] = []
    answer_positions: list[tuple[int, int]] = []
    for index, (question, query) in enumerate(zip(questions, queries, strict=True)):
        text = tokenized[question.context]
        query_ids = np.concatenate([before, query.ids[:max_query_length], between])
        spans = split_into_spans(len(text.ids), max_seq_length - len(query_ids) - len(after), doc_stride)
        first, last = _find_answer_tokens(question, text)
        for begin, end in spans:
            token_ids.append((query_ids, np.concatenate([text.ids[begin:end], after])))
            question_indices.append(index)
            char_starts.append(text.char_starts[begin:end])
            char_ends.append(text.char_ends[begin:end])
            shift = len(query_ids) - begin
            answer_positions.append((first + shift, last + shift) if begin <= first <= last < end else (0, 0))
        max_context += find_max_context(spans)
    columns = make_inputs(token_ids, tokenizer.model_input_names)
    if training:
        columns["start_positions"], columns["end_positions"] = map(pa.array, np.array(answer_positions, np.int32).T)
    return ContextWindows(
        inputs=Dataset.from_dict(columns),
        question_indices=np.array(question_indices, np.int32),
        context_offsets=np.array([len(query_ids) for query_ids, _ in token_ids], np.int32),
        char_starts=char_starts,
        char_ends=char_ends,
        max_context=max_context,
    )


def _find_special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int], list[int]]:
    """Returns the ids of the special tokens before, between and after the texts of a pair."""
    encoding = tokenizer("a", "b")
    ids, texts = encoding["input_ids"], encoding.sequence_ids()
    first, second = (slice(texts.index(text), len(texts) - texts[::-1].index(text)) for text in (0, 1))
    return ids[: first.start], ids[first.stop : second.start], ids[second.stop :]


def check_room(tokenizer: PreTrainedTokenizerBase, max_seq_length: int, doc_stride: int, question: int = 1) -> int:
    """Checks that a window has room for more context than it shares with its neighbor.

    Args:
        tokenizer: the tokenizer of the windows.
        max_seq_length: maximum tokens of a window.
        doc_stride: tokens that neighboring windows share.
        question: tokens of the question.

    Returns:
        The maximum tokens of a question.

    Raises:
        InputError: there is no room.
    """
    special = sum(map(len, _find_special_tokens(tokenizer)))
    left = max(max_seq_length - special - question, 0)
    if left <= doc_stride:
        raise InputError(
            f"max_seq_length {max_seq_length}: a question of {question} tokens leaves {left} for the context. "
            f"This must exceed doc_stride ({doc_stride}). Increase max_seq_length or decrease doc_stride."
        )
    return question + left - doc_stride - 1


def _tokenize(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[_TokenizedText]:
    # verbose=False: no warning about long texts, which are cut into windows.
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    tokenized = []
    for ids, mapping in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        characters = np.array(mapping, np.int32).reshape(-1, 2)
        tokenized.append(_TokenizedText(np.array(ids, np.int32), *characters.T.copy()))
    return tokenized


def _find_answer_tokens(question: Question, text: _TokenizedText) -> tuple[int, int]:
    """Returns the first and last token of the question's first answer, or (-1, -1) if it has none."""
    if not question.answers:
        return -1, -1
    start = question.answer_starts[0]
    first = int(np.searchsorted(text.char_ends, start, side="right"))
    last = int(np.searchsorted(text.char_starts, start + len(question.answers[0]), side="left")) - 1
    return first, last


# --- answers ----------------------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """A possible answer. `_asdict()` is an entry of `nbest_predictions.json`.

    Attributes:
        text: a part of the context, or "" for "no answer".
        probability: softmax of the scores over the question's candidates.
        start_logit, end_logit: the model's logits. Their sum is the score.
        start, end: characters of the context: `context[start:end]` is the text. Both are 0 for "no answer".
    """

    text: str
    probability: float
    start_logit: float
    end_logit: float
    start: int
    end: int

    @property
    def score(self) -> float:
        """The sum of both logits."""
        return self.start_logit + self.end_logit


NO_ANSWER = Candidate("", 0.0, 0.0, 0.0, 0, 0)


class ExtractedAnswer(TypedDict):
    """An answer that was extracted from a context.

    Attributes:
        score: the probability that the answer starts at its first token times the probability that it ends at its last
            token. Both softmaxes run over [CLS] and the context tokens of all windows.
        start, end: characters of the context: `context[start:end]` is the answer. Both are 0 if there is no answer.
        answer: the text of the answer.
    """

    score: float
    start: int
    end: int
    answer: str


class Answer(NamedTuple):
    """The answer to a question.

    Attributes:
        text: a part of the context, or "" for "no answer".
        null_odds: the score of "no answer" minus the score of the best span. None without `version_2`.
        best_span: the text of the best span, even if "no answer" scores higher. "" if the context has no tokens.
        n_best: at least one candidate, best first.
        log_total: the logarithm of the softmax denominators of the starts and of the ends, added up. The softmaxes run
            over [CLS] and the context tokens of all windows.
    """

    text: str
    null_odds: float | None
    best_span: str
    n_best: list[Candidate]
    log_total: float = math.nan

    @property
    def chosen(self) -> Candidate:
        """The candidate whose text is the answer."""
        return next(candidate for candidate in self.n_best if candidate.text == self.text)

    def extract(self, candidate: Candidate) -> ExtractedAnswer:
        """Returns a candidate as columns to predict."""
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
        questions: the questions with their contexts.
        windows: the windows of these questions, at least one for each.
        start_logits, end_logits: the model's logits. Only [CLS] and the context tokens are read; padding can hold
            anything. *Shape:* (N, L)
        n_best_size: candidates per question. Default: 20, as in the original release. With `version_2` the best span
            and "no answer" are always included.
        max_answer_length: maximum tokens of an answer. Default: 30, as in the original release.
        version_2: questions may have no answer, as in SQuAD v2.0. The score of "no answer" is the sum of both logits
            of [CLS], the minimum over the windows: a question has no answer only if no window has one.
        null_threshold: the answer is "" if the odds of "no answer" exceed this.

    Returns:
        One answer per question. If the context has no tokens, the answer is "", and with `version_2` its odds are
        [`SURELY_NULL`].

    Raises:
        ValueError: `n_best_size` or `max_answer_length` is not positive, the number of logits and windows differs, or
            a logit is NaN or infinite. The logit of a context token can be minus infinity.
    """
    if min(n_best_size, max_answer_length) < 1:
        raise ValueError(f"`n_best_size` {n_best_size} and `max_answer_length` {max_answer_length} must be positive.")
    if not len(start_logits) == len(end_logits) == len(windows.question_indices):
        raise ValueError(
            f"Expected logits of {len(windows.question_indices)} windows, but `start_logits` has {len(start_logits)} "
            f"and `end_logits` has {len(end_logits)}."
        )
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
    """Finds the best spans of some questions.

    Args:
        questions, windows, start_logits, end_logits, max_answer_length: see [`best_answers`].
        window_indices: all windows of these questions. *Shape:* (n,)
        num_spans: maximum spans per question.

    Yields:
        Index and spans, best first, of each question that has spans.
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
    """Computes the logarithm of each question's softmax denominator, over [CLS] and context tokens of all its windows.

    Args:
        windows: at least one for each question.
        logits: start or end logits. *Shape:* (N, L)

    Returns:
        *Shape:* (questions,)
    """
    token_indices = np.arange(logits.shape[1])
    first = windows.context_offsets
    end = first + [len(char_starts) for char_starts in windows.char_starts]
    included = (token_indices == 0) | ((token_indices >= first[:, None]) & (token_indices < end[:, None]))
    by_window = logsumexp(np.where(included, logits.astype(np.float64), -np.inf), axis=1)
    with np.errstate(invalid="ignore"):  # without `version_2`, the logits of [CLS] may be NaN
        return np.logaddexp.reduceat(by_window, np.flatnonzero(np.diff(windows.question_indices, prepend=-1)))


def _choose_answer(spans: list[Candidate], null: Candidate | None, n_best_size: int, null_threshold: float) -> Answer:
    """Chooses the answer to a question.

    Args:
        spans: the best spans, best first.
        null: the candidate "no answer". None if every question has an answer.
        n_best_size: maximum number of candidates.
        null_threshold: odds above which "no answer" is chosen.
    """
    listed, odds = spans or [NO_ANSWER], None
    if null is not None:
        rank = sum(span.score >= null.score for span in spans)
        # Always keep "no answer", and at least two candidates.
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
