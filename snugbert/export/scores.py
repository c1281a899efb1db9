"""Scores a model, run by any engine, on a validation file, as `snugbert glue`, `ner` and `squad` do.

Shapes: N examples, L tokens.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from transformers import PreTrainedTokenizerBase

from snugbert.checkpoints.comparing import Run
from snugbert.checkpoints.reading import Checkpoint
from snugbert.data.tables import read_rows
from snugbert.errors import InputError
from snugbert.export.texts import pad
from snugbert.files import check_unicode
from snugbert.tasks.base import FineTuningTask
from snugbert.tasks.classification import make_task as make_glue_task
from snugbert.tasks.classification_arguments import GlueDataArguments
from snugbert.tasks.question_answering import make_task as make_squad_task
from snugbert.tasks.question_answering_arguments import SquadDataArguments
from snugbert.tasks.tagging import make_task as make_ner_task
from snugbert.tasks.tagging_arguments import NerDataArguments
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments

BATCH_SIZE = 32
TASKS: dict[str, tuple[type, Callable[..., FineTuningTask]]] = {
    "ForSequenceClassification": (GlueDataArguments, make_glue_task),
    "ForTokenClassification": (NerDataArguments, make_ner_task),
    "ForQuestionAnswering": (SquadDataArguments, make_squad_task),
}
SCORED_HEADS = ("Model", *TASKS)
Embed = Callable[[Run, list[str]], np.ndarray]
Score = Callable[[Run], dict[str, float]]


def make_score(
    checkpoint: Checkpoint,
    folder: Path,
    file: Path,
    tokenizer: PreTrainedTokenizerBase,
    names: list[str],
    embed: Embed | None = None,
    **data: Any,
) -> Score:
    """Returns a function that scores a model.

    Args:
        checkpoint: the original model. Its head is one of `SCORED_HEADS`. Encoders are scored as embedding models: the
            rank correlation of cosine similarities with scores of pairs, as on STS-B.
        folder: the model in a form that the fine-tuning commands open. Only tokenizer and configuration are read.
        file: labeled examples, as for `snugbert glue`, `ner` or `squad`; for encoders, rows with sentence1, sentence2
            and score.
        tokenizer: the model's tokenizer.
        names: the inputs of the model.
        embed: returns the embeddings of texts, *shape* (N, size). Only for encoders.
        data: more data arguments of the task, such as `task_name`.

    Raises:
        InputError: the examples cannot be used, or have other labels than the model.
    """
    data = {name: value for name, value in data.items() if value}
    head = checkpoint.head
    fields = TASKS[head][0].__dataclass_fields__ if head in TASKS else {}  # type: ignore[attr-defined]
    if unknown := [name for name in data if name not in fields]:
        raise InputError(f"--{unknown[0]} does not apply to {head}. Remove it.")
    if embed is not None:
        return _make_similarity_score(file, embed)
    arguments, make_task = TASKS[head]
    with TemporaryDirectory() as temporary:  # the training arguments need a folder
        training = FineTuningArguments(output_dir=temporary, do_eval=True, use_cpu=True, report_to="none")
        model_args = FineTunedModelArguments(model_name_or_path=str(folder))
        task = make_task(model_args, arguments(validation_file=str(file), **data), training)
    validation = task.validation_set
    assert validation is not None
    if validation.score is None:
        raise InputError(f"--validation_file: {file} has no labels.")
    labels = 2 if head == "ForQuestionAnswering" else len(task.labels or [""])
    if labels != checkpoint.config.num_labels:
        raise InputError(f"--validation_file: {file} has {labels} labels, the model {checkpoint.config.num_labels}.")
    score, main_metrics = validation.score, validation.training_metrics

    def score_run(run: Run) -> dict[str, float]:
        metrics = score(validation.decode(_compute_logits(run, validation.features, tokenizer, names)))
        return {name: metrics[name] for name in main_metrics or metrics if name in metrics}

    return score_run


def _compute_logits(run: Run, features: Any, tokenizer: PreTrainedTokenizerBase, names: list[str]) -> Any:
    """Runs a model on features in batches of similar length. Returns logits in their order, as FineTuningTrainer does.

    Logits of tokens are padded to the longest input with zeros: (N, L, ...) each.
    """
    rows = [{name: row[name] for name in names} for row in features]
    order = np.argsort([-len(row["input_ids"]) for row in rows], kind="stable")
    length = len(rows[order[0]]["input_ids"])
    outputs: dict[str, np.ndarray] = {}
    for chosen in np.split(order, range(BATCH_SIZE, len(order), BATCH_SIZE)):
        batch = pad([rows[index] for index in chosen], tokenizer, names)
        for name, values in run(batch).items():
            per_token = values.shape[1:2] == batch["input_ids"].shape[1:] and (name != "logits" or values.ndim == 3)
            shape = (len(rows), length, *values.shape[2:]) if per_token else (len(rows), *values.shape[1:])
            padded = outputs.setdefault(name, np.zeros(shape, np.float32))
            padded[(chosen, slice(values.shape[1])) if per_token else chosen] = values
    if "logits" in outputs:
        return outputs["logits"]
    return outputs["start_logits"], outputs["end_logits"]


def _make_similarity_score(file: Path, embed: Embed) -> Score:
    columns: dict[str, list[Any]] = {"sentence1": [], "sentence2": [], "score": []}
    for row, values in read_rows(file):
        for name, column in columns.items():
            if values.get(name) is None:
                raise InputError(f"{file}, row {row}: no {name!r}. Expected sentence1, sentence2 and score.")
            column.append(
                values[name] if name == "score" else check_unicode(str(values[name]), f"{file}, row {row}: {name}")
            )
    try:
        scores = [float(score) for score in columns["score"]]
    except (ValueError, TypeError) as error:
        raise InputError(f"{file}: the scores must be numbers ({error}).") from error

    def score(run: Run) -> dict[str, float]:
        first, second = (embed(run, columns[name]) for name in ("sentence1", "sentence2"))
        norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        cosines = (first * second).sum(axis=1) / np.maximum(norms, 1e-12)
        return {"spearman": float(spearmanr(cosines, scores).statistic)}

    return score
