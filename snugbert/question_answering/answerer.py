"""Questions on texts of any length -> answers cut out of them: what transformers' question answering pipeline was.

    answerer = QuestionAnswerer("out-squad")
    answerer(question="Who wrote it?", context="It was written by Ada in 1843.")
    {"score": 0.97, "start": 18, "end": 21, "answer": "Ada"}

A text that is too long is read in windows that overlap. Windows of similar length share a batch, and SnugBERT gets it
packed, without padding.

Shapes in comments: N windows of at most L tokens.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from transformers import (
    AutoModelForQuestionAnswering,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.models import ModelArguments, TokenizerArguments, load_config, load_model, load_tokenizer
from snugbert.packed_batches import SnugBertDataCollatorWithPacking
from snugbert.question_answering.answers import best_answers
from snugbert.question_answering.windows import ContextWindows, Question, make_windows


class QuestionAnswerer:
    """A model that answers questions on texts with words of the texts.

    Args:
        model: folder or Hub name of a model with a head for question answering, as `snugbert squad` makes it. A BERT
            runs as SnugBERT, in float32. Or a model, which is put into evaluation mode.
        tokenizer: the model's, or a folder or name of it; default: that of the model's folder.
        device: where the model is to run; default: an accelerator if there is one, and for a model that is handed over
            the device it is on.
        batch_size: windows the model reads at once.
        max_seq_length: most tokens of a window, or as many as the model takes.
        doc_stride: tokens that neighbouring windows have in common; default: 128, a third of a window at most.
        max_query_length: most tokens of a question.

    Raises:
        ValueError: the model or the tokenizer cannot be opened, the model has no head for question answering, or the
            tokenizer does not make pairs as BERT's does.
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
    ):
        if isinstance(tokenizer, (str, Path)):
            tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=str(tokenizer)))
        if isinstance(model, (str, Path)):
            model, tokenizer = _load(str(model), tokenizer)
            if device is None:
                device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
        elif "QuestionAnswering" not in type(model).__name__:  # so do transformers know these models
            raise ValueError(f"A {type(model).__name__} has no head for question answering.")
        if tokenizer is None:
            raise ValueError("A model that is handed over needs its `tokenizer`.")
        self.model = (model if device is None else model.to(device)).eval()  # type: ignore[arg-type]
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.max_seq_length = min(max_seq_length, model.config.max_position_embeddings, tokenizer.model_max_length)
        self.doc_stride = min(128, self.max_seq_length // 3) if doc_stride is None else doc_stride
        self.max_query_length = max_query_length
        if self._windows(["a"], ["b"]).features["input_ids"][0] != tokenizer("a", "b")["input_ids"]:
            raise ValueError(
                f"A {type(tokenizer).__name__} makes other pairs than [CLS] question [SEP] context [SEP]."
            )

    def __call__(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        top_k: int = 1,
        handle_impossible_answer: bool = False,
        max_answer_len: int = 30,
    ) -> Any:
        """Answers questions.

        Args:
            question: a question, or several.
            context: the text to look for the answer in; for several questions one for all, or as many texts.
            top_k: how many answers to a question, of different texts; fewer where there are no more.
            handle_impossible_answer: "" may be an answer: the text does not tell. Only a model that was trained on
                such questions (SQuAD v2.0) knows.
            max_answer_len: tokens of the longest answer.

        Returns:
            A dict, for `top_k` above 1 a list of dicts, best first, and for a sequence of questions a list of these:

            - score: probability of the answer's first token as a start times that of its last token as an end. Both
              are softmaxes over the tokens of the text, in all windows, and [CLS].
            - start, end: characters, `context[start:end]` is the answer; 0 and 0 if there is none.
            - answer: its text.

        Raises:
            ValueError: a question or a text without a word, a question longer than `max_query_length` or so long that
                a window has no room beside it, not as many texts as questions, `top_k` or `max_answer_len` below 1.
        """
        questions = [question] if isinstance(question, str) else list(question)
        contexts = [context] * len(questions) if isinstance(context, str) else list(context)
        if len(contexts) != len(questions):
            raise ValueError(f"There are {len(questions)} questions, but {len(contexts)} contexts.")
        if min(top_k, max_answer_len) < 1:
            raise ValueError(f"`top_k` {top_k} and `max_answer_len` {max_answer_len} must be at least 1.")
        if not questions:
            return []
        self._check_questions(questions)
        windows = self._windows(questions, contexts)
        for number, starts in zip(windows.question.tolist(), windows.starts, strict=True):
            if not len(starts):
                raise ValueError(
                    f"The context of question {questions[number]!r} holds no words: {contexts[number]!r}."
                )
        start_logits, end_logits = self._logits(windows)
        answers = best_answers(
            _as_squad(questions, contexts),
            windows,
            start_logits,
            end_logits,
            n_best_size=top_k,
            max_answer_length=max_answer_len,
            version_2=handle_impossible_answer,
        )
        totals = _log_totals(windows, start_logits) + _log_totals(windows, end_logits)
        found = [
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
                raise ValueError(f"There is no word in the question {question!r}.")
            if len(ids) > self.max_query_length:
                raise ValueError(
                    f"A question has {len(ids)} tokens, more than `max_query_length` {self.max_query_length}: "
                    f"{question!r}"
                )

    def _windows(self, questions: list[str], contexts: list[str]) -> ContextWindows:
        return make_windows(
            _as_squad(questions, contexts), self.tokenizer, self.max_seq_length, self.doc_stride, self.max_query_length
        )

    @torch.inference_mode()
    def _logits(self, windows: ContextWindows) -> tuple[np.ndarray, np.ndarray]:
        """Scores of the tokens as starts and as ends, zeros behind a window; [N, L] each."""
        packs = isinstance(self.model.config, SnugBertConfig)
        # Padding on the left would move the positions of the tokens.
        pad = partial(self.tokenizer.pad, padding_side="right", return_tensors="pt")
        collate: Callable[..., Any] = SnugBertDataCollatorWithPacking() if packs else pad
        lengths = np.array([len(ids) for ids in windows.features["input_ids"]])
        scores = np.zeros((2, len(lengths), lengths.max()))
        rows = np.argsort(-lengths, kind="stable")
        for batch in np.split(rows, range(self.batch_size, len(rows), self.batch_size)):
            inputs = {
                name: value.to(self.model.device) if isinstance(value, torch.Tensor) else value
                for name, value in collate([windows.features[row] for row in batch.tolist()]).items()
            }
            outputs = self.model(**inputs)
            logits = torch.stack((outputs.start_logits, outputs.end_logits)).float()
            tokens = logits[:, 0] if packs else logits[:, inputs["attention_mask"] != 0]  # those of the batch in a row
            of_batch = np.zeros((2, len(batch), scores.shape[2]))
            of_batch[:, np.arange(scores.shape[2]) < lengths[batch, None]] = tokens.cpu().numpy()
            scores[:, batch] = of_batch
        return scores[0], scores[1]


def _load(name: str, tokenizer: PreTrainedTokenizerBase | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    args = ModelArguments(model_name_or_path=name)
    tokenizer = tokenizer or load_tokenizer(args)
    config = load_config(args, tokenizer)
    return load_model(AutoModelForQuestionAnswering, args, config, trained=True), tokenizer


def _as_squad(questions: list[str], contexts: list[str]) -> list[Question]:
    pairs = zip(questions, contexts, strict=True)
    return [Question(id=repr(question), question=question, context=context) for question, context in pairs]


def _log_totals(windows: ContextWindows, logits: np.ndarray) -> np.ndarray:
    """Logarithm of what a question's softmax divides by: that of [CLS] and the context's tokens in all its windows.

    Args:
        windows: of the questions, each of which has some.
        logits: of the starts or of the ends. *Shape:* (N, L)

    Returns:
        *Shape:* (questions,)
    """
    column = np.arange(logits.shape[1])
    behind = windows.first + [len(starts) for starts in windows.starts]
    counts = (column == 0) | ((column >= windows.first[:, None]) & (column < behind[:, None]))
    of_windows = logsumexp(np.where(counts, logits, -np.inf), axis=1)
    return np.logaddexp.reduceat(of_windows, np.flatnonzero(np.diff(windows.question, prepend=-1)))
