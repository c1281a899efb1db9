"""`QuestionAnswerer` extracts answers from texts of any length, as transformers 4's question answering pipeline did.

    answerer = QuestionAnswerer("out-squad")
    answerer(question="Who wrote it?", context="It was written by Ada in 1843.")
    {"score": 0.97, "start": 18, "end": 21, "answer": "Ada"}

A long text is read in overlapping windows. Windows of similar length share a batch. SnugBERT gets packed batches,
without padding.

Shapes in comments: N windows of at most L tokens.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, overload

import numpy as np
import torch
from scipy.special import logsumexp
from transformers import (
    AutoModelForQuestionAnswering,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from snugbert.checkpoints.loading import load_config, load_model, load_tokenizer, max_tokens
from snugbert.checkpoints.model_arguments import ModelArguments, TokenizerArguments
from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.cuda_graphs import CudaGraphs
from snugbert.data.packed_batches import SnugBertDataCollatorWithPacking
from snugbert.data.row_sizes import choose_prediction_multiple
from snugbert.tasks.question_windows import ContextWindows, Question, make_windows
from snugbert.tasks.spans import best_answers


class ExtractedAnswer(TypedDict):
    """An answer that [`QuestionAnswerer`] extracted from a context."""

    score: float
    start: int
    end: int
    answer: str


class QuestionAnswerer:
    """Answers questions with parts of a text.

    Args:
        model: folder or Hub name of a model with a question answering head, such as the output of `snugbert squad`. A
            BERT checkpoint runs as SnugBERT, in float32. Or a model, which is switched to evaluation mode.
        tokenizer: a tokenizer, or its folder or Hub name. Default: the tokenizer in the model's folder.
        device: the device to run on. Default: an accelerator if there is one. A model object stays on its device.
        batch_size: windows per batch.
        max_seq_length: maximum tokens of a window, limited by the model and the tokenizer.
        doc_stride: tokens that neighboring windows share. Default: 128, but at most a third of a window.
        max_query_length: maximum tokens of a question.
        cuda_graphs: whether calls with at least 3 batches fill them up to a few sizes on a GPU, and run them as CUDA
            graphs.

    Raises:
        ValueError: the model or the tokenizer cannot be loaded, the model has no question answering head, or the
            tokenizer does not encode pairs like BERT's tokenizer.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        tokenizer: str | Path | PreTrainedTokenizerBase | None = None,
        device: str | torch.device | None = None,
        batch_size: int = 32,
        max_seq_length: int = 384,
        doc_stride: int | None = None,
        max_query_length: int = 64,
        cuda_graphs: bool = True,
    ):
        if isinstance(tokenizer, (str, Path)):
            tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=str(tokenizer)))
        if isinstance(model, (str, Path)):
            model, tokenizer = _load(str(model), tokenizer)
            if device is None:
                device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
        elif "QuestionAnswering" not in type(model).__name__:  # the naming convention of transformers
            raise ValueError(f"`model`: a {type(model).__name__} has no question answering head.")
        if tokenizer is None:
            raise ValueError("`tokenizer` is missing. Pass the tokenizer of the model.")
        self.model = (model if device is None else model.to(device)).eval()  # type: ignore[arg-type]
        self._graphs = CudaGraphs(self._forward, self.model) if cuda_graphs else None
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.max_seq_length = min(max_seq_length, max_tokens(model, tokenizer))
        self.doc_stride = min(128, self.max_seq_length // 3) if doc_stride is None else doc_stride
        self.max_query_length = max_query_length
        if tokenizer("a", "b")["input_ids"][0] != tokenizer.cls_token_id:
            raise ValueError(
                f"`tokenizer`: pairs of a {type(tokenizer).__name__} do not begin with [CLS], whose logits score "
                '"no answer". Use the model\'s own tokenizer.'
            )

    @overload
    def __call__(
        self,
        question: str,
        context: str,
        top_k: Literal[1] = 1,
        handle_impossible_answer: bool = False,
        max_answer_len: int = 30,
    ) -> ExtractedAnswer: ...

    @overload
    def __call__(
        self,
        question: list[str] | tuple[str, ...],
        context: str | Sequence[str],
        top_k: Literal[1] = 1,
        handle_impossible_answer: bool = False,
        max_answer_len: int = 30,
    ) -> list[ExtractedAnswer]: ...

    @overload
    def __call__(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        top_k: int = 1,
        handle_impossible_answer: bool = False,
        max_answer_len: int = 30,
    ) -> ExtractedAnswer | list[ExtractedAnswer] | list[list[ExtractedAnswer]]: ...

    def __call__(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        top_k: int = 1,
        handle_impossible_answer: bool = False,
        max_answer_len: int = 30,
    ) -> ExtractedAnswer | list[ExtractedAnswer] | list[list[ExtractedAnswer]]:
        """Answers one or several questions.

        Args:
            question: a question, or a sequence of questions.
            context: the text to extract the answer from. For several questions, one text for all or one for each.
            top_k: maximum number of answers to a question, with different texts.
            handle_impossible_answer: allow the answer "", which means that the context does not answer the question.
                Use it only with a model that was trained on such questions (SQuAD v2.0).
            max_answer_len: maximum tokens of an answer.

        Returns:
            A dict. With `top_k` above 1, a list of dicts, best first. For a sequence of questions, a list with the
            result of each question. The dict contains

            - score: the probability that the answer starts at its first token times the probability that it ends at
              its last token. Both softmaxes run over [CLS] and the context tokens of all windows.
            - start, end: characters: `context[start:end]` is the answer. Both are 0 if there is no answer.
            - answer: the text of the answer.

        Raises:
            ValueError: a question or context has no words, a question is longer than `max_query_length` or leaves no
                room for context in a window, the numbers of questions and contexts differ, or `top_k` or
                `max_answer_len` is below 1.
        """
        questions = [question] if isinstance(question, str) else list(question)
        contexts = [context] * len(questions) if isinstance(context, str) else list(context)
        if len(contexts) != len(questions):
            raise ValueError(
                f"`context`: expected one text or {len(questions)}, one per question, not {len(contexts)}."
            )
        if min(top_k, max_answer_len) < 1:
            raise ValueError(f"`top_k` {top_k} and `max_answer_len` {max_answer_len} must be at least 1.")
        if not questions:
            return []
        self._check_questions(questions)
        windows = self._make_windows(questions, contexts)
        for index, char_starts in zip(windows.question_indices.tolist(), windows.char_starts, strict=True):
            if not len(char_starts):
                raise ValueError(f"The context of question {questions[index]!r} has no words: {contexts[index]!r}.")
        start_logits, end_logits = self._compute_logits(windows)
        answers = best_answers(
            _make_questions(questions, contexts),
            windows,
            start_logits,
            end_logits,
            n_best_size=top_k,
            max_answer_length=max_answer_len,
            version_2=handle_impossible_answer,
        )
        totals = _log_sum_exp(windows, start_logits) + _log_sum_exp(windows, end_logits)
        found: list[list[ExtractedAnswer]] = [
            [
                {
                    "score": float(np.exp(candidate.score - total)),
                    "start": candidate.start,
                    "end": candidate.end,
                    "answer": candidate.text,
                }
                for candidate in answer.n_best[:top_k]
            ]
            for answer, total in zip(answers, totals, strict=True)
        ]
        results = [candidates[0] for candidates in found] if top_k == 1 else found
        return results[0] if isinstance(question, str) else results

    def _check_questions(self, questions: list[str]) -> None:
        encoded = self.tokenizer(questions, add_special_tokens=False, verbose=False)
        for question, ids in zip(questions, encoded["input_ids"], strict=True):
            if not ids:
                raise ValueError(f"The question {question!r} has no words.")
            if len(ids) > self.max_query_length:
                limit = f"{self.max_query_length} (`max_query_length`)"
                raise ValueError(f"The question {question!r} has {len(ids)} tokens. The limit is {limit}.")

    def _make_windows(self, questions: list[str], contexts: list[str]) -> ContextWindows:
        pairs = _make_questions(questions, contexts)
        return make_windows(pairs, self.tokenizer, self.max_seq_length, self.doc_stride, self.max_query_length)

    @torch.inference_mode()
    def _compute_logits(self, windows: ContextWindows) -> tuple[np.ndarray, np.ndarray]:
        """Computes start and end logits, with zeros after the end of a window. *Shape:* (N, L) each"""
        packs = isinstance(self.model.config, SnugBertConfig)
        # Padding on the left would shift the tokens.
        pad = partial(self.tokenizer.pad, padding_side="right", return_tensors="pt")
        collate: Callable[..., Any] = pad
        lengths = np.array([len(ids) for ids in windows.features["input_ids"]])
        all_logits = np.zeros((2, len(lengths), lengths.max()))
        order = np.argsort(-lengths, kind="stable")
        batches = np.split(order, range(self.batch_size, len(order), self.batch_size))
        forward: Callable[..., torch.Tensor] = self._forward
        if packs:
            collate = SnugBertDataCollatorWithPacking()
        if packs and self._graphs is not None:
            multiple = choose_prediction_multiple(self.model, self.batch_size * self.max_seq_length, len(batches))
            if self._graphs.model is not self.model:
                self._graphs = CudaGraphs(self._forward, self.model)
            if multiple is not None:
                collate, forward = SnugBertDataCollatorWithPacking(multiple, self.batch_size), self._graphs
        for batch in batches:
            inputs = {
                name: value.to(self.model.device) if isinstance(value, torch.Tensor) else value
                for name, value in collate([windows.features[i] for i in batch.tolist()]).items()
            }
            logits = forward(inputs)
            tokens = lengths[batch].sum()  # without the padding of filled rows
            # [2, tokens of the batch]
            packed = logits[:, 0, :tokens] if packs else logits[:, inputs["attention_mask"] != 0]
            padded = np.zeros((2, len(batch), all_logits.shape[2]))
            padded[:, np.arange(all_logits.shape[2]) < lengths[batch, None]] = packed.cpu().numpy()
            all_logits[:, batch] = padded
        return all_logits[0], all_logits[1]

    def _forward(self, batch: dict[str, Any]) -> torch.Tensor:
        outputs = self.model(**batch)
        return torch.stack((outputs.start_logits, outputs.end_logits)).float()


def _load(name: str, tokenizer: PreTrainedTokenizerBase | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    args = ModelArguments(model_name_or_path=name)
    tokenizer = tokenizer or load_tokenizer(args)
    config = load_config(args, tokenizer)
    return load_model(AutoModelForQuestionAnswering, args, config, trained=True), tokenizer


def _make_questions(questions: list[str], contexts: list[str]) -> list[Question]:
    pairs = zip(questions, contexts, strict=True)
    return [Question(id=repr(question), question=question, context=context) for question, context in pairs]


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
    by_window = logsumexp(np.where(included, logits, -np.inf), axis=1)
    return np.logaddexp.reduceat(by_window, np.flatnonzero(np.diff(windows.question_indices, prepend=-1)))
