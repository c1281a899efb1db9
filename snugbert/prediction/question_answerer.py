"""`QuestionAnswerer` extracts answers from texts of any length, as transformers 4's question answering pipeline did.

    answerer = QuestionAnswerer("out-squad")
    answerer(question="Who wrote it?", context="It was written by Ada in 1843.")
    {"score": 0.97, "start": 18, "end": 21, "answer": "Ada"}

A long text is read in overlapping windows. Windows of similar length share a batch. SnugBERT gets packed batches,
without padding.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.errors import InputError
from snugbert.families.loading import load_tokenizer
from snugbert.prediction.predictor import Predictor
from snugbert.tasks.question_answering import QuestionAnswering


class QuestionAnswerer:
    """Answers questions with parts of a text.

    Args:
        model: a model with a question answering head, such as the output of `snugbert squad`: a folder, a Hub name or
            a model object, which is switched to evaluation mode.
        tokenizer: a tokenizer, or its folder or Hub name. Default: the tokenizer in the model's folder.
        device: the device to run on. Default: an accelerator if there is one. A model object stays on its device.
        batch_size: windows per batch if all have `max_seq_length` tokens. A batch of shorter windows has more of them.
        max_seq_length: maximum tokens of a window, limited by the model and the tokenizer.
        doc_stride: tokens that neighboring windows share. Default: 128, or a third of a window below 256 tokens.
        max_query_length: maximum tokens of a question.
        cuda_graphs: whether, on a GPU, calls with at least 3 batches pad them to a few sizes and run CUDA graphs.
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
        if isinstance(model, PreTrainedModel) and device is not None:
            model.to(device)  # type: ignore[arg-type]
        self._predictor = Predictor(
            model,
            tokenizer,
            QuestionAnswering(max_seq_length=max_seq_length, doc_stride=doc_stride, max_query_length=max_query_length),
            max_seq_length=max_seq_length,
            cuda_graphs=cuda_graphs,
            device=device,
        )
        self.model, self.tokenizer = self._predictor.model, self._predictor.tokenizer
        if self.tokenizer("a", "b")["input_ids"][0] != self.tokenizer.cls_token_id:
            raise ValueError(
                f"`tokenizer`: pairs of a {type(self.tokenizer).__name__} do not begin with [CLS], whose logits score "
                '"no answer". Use the model\'s own tokenizer.'
            )
        self.max_seq_length: int = self._predictor.task.max_length
        self.doc_stride: int = self._predictor.task.args.doc_stride
        self.batch_size = batch_size
        self._predictor.max_batch_tokens = batch_size * self.max_seq_length

    def __call__(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        top_k: int = 1,
        handle_impossible_answer: bool = False,
        max_answer_len: int = 30,
    ) -> Any:
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
        """
        questions = [question] if isinstance(question, str) else list(question)
        contexts = [context] * len(questions) if isinstance(context, str) else list(context)
        if len(contexts) != len(questions):
            raise ValueError(
                f"`context`: expected one text or {len(questions)}, one per question, not {len(contexts)}."
            )
        task = self._predictor.task.copy(
            n_best_size=top_k, max_answer_length=max_answer_len, version_2_with_negative=handle_impossible_answer
        )
        task.use_tokenizer(self.tokenizer, self.max_seq_length)
        examples = []
        for asked, text in zip(questions, contexts, strict=True):
            try:
                row = {"question": asked, "context": text}
                examples.append(self._predictor.task.read(row, ("question", "context")))
            except InputError as error:
                raise InputError(f"{asked!r}: {error}") from error
        if not examples:
            return []
        split = task.make_split(examples)
        windows = task.encode(split)
        answers = task.decode(self._predictor.run(windows), split, windows)
        found = [[answer.extract(candidate) for candidate in answer.n_best[:top_k]] for answer in answers]
        results = [candidates[0] for candidates in found] if top_k == 1 else found
        return results[0] if isinstance(question, str) else results
