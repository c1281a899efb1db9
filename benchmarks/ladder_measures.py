"""What `pretraining_ladder.py` measures: the costs of a run, and its scores on text and on minimal pairs."""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from side_by_side import choose_device
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, PreTrainedModel, PreTrainedTokenizerBase

from snugbert.cli.model_arguments import ModelArguments
from snugbert.evaluation.held_out_text import score_examples
from snugbert.evaluation.minimal_pairs import MinimalPair, score_pairs
from snugbert.families.loading import load_config, load_model
from snugbert.files import step_of
from snugbert.trainers.pretraining.examples import PretrainingDataset
from snugbert.trainers.pretraining.pretraining_trainer import RECORD_NAME

EVAL_BATCH_SIZE = 64


@dataclass(frozen=True)
class Task:
    """What all runs of a recipe share.

    Attributes:
        tokenizer: the tokenizer.
        steps: steps of each run.
        sentences: validation examples of full sentences.
        pairs: validation examples of sentence pairs, if the recipe has pairs.
        tokens_per_character: of the validation text, without special tokens.
        unigram_loss: loss in nats of predicting tokens by their frequency in the training text.
        minimal_pairs: the minimal pairs to score.
    """

    tokenizer: PreTrainedTokenizerBase
    steps: int
    sentences: PretrainingDataset
    pairs: PretrainingDataset | None
    tokens_per_character: float
    unigram_loss: float
    minimal_pairs: Sequence[MinimalPair]

    def bits_per_character(self, loss: float) -> float:
        """Converts a loss in nats per token, as `snugbert evaluate` does."""
        return loss / math.log(2) * self.tokens_per_character


def select_pairs(pairs: Sequence[MinimalPair], pairs_per_file: int | None) -> list[MinimalPair]:
    """Selects this many pairs of each file, evenly spread over the file. None, or a small file: all of its pairs."""
    selected = []
    for _, group in groupby(pairs, key=lambda pair: pair.file):
        in_file = list(group)
        count = min(pairs_per_file or len(in_file), len(in_file))
        selected += [in_file[number * len(in_file) // count] for number in range(count)]
    return selected


# --- costs ------------------------------------------------------------------------------------------------------


def read_costs(checkpoint: Path) -> dict[str, float]:
    """Reads tokens, FLOPs and seconds of training up to a checkpoint of `snugbert pretrain`."""
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    record = state["stateful_callbacks"][RECORD_NAME]
    seconds, before = record["seconds"], 0  # since the last log line
    for line in state["log_history"]:
        if "tokens_per_second" in line:
            seconds += (line["tokens"] - before) / line["tokens_per_second"]
            before = line["tokens"]
    flops = record["totals"]["flops"] + record["sums"]["flops"]
    return {"step": state["global_step"], "tokens": state["num_input_tokens_seen"], "flops": flops, "seconds": seconds}


def read_stock_costs(output_dir: Path) -> dict[int, dict[str, float]]:
    """Reads tokens, FLOPs and seconds of training up to each step that `pretraining_run.py` logs."""
    lines = [json.loads(line) for line in (output_dir / "stock.jsonl").read_text().splitlines()]
    return {line["step"]: {name: line[name] for name in ("step", "tokens", "flops", "seconds")} for line in lines}


# --- scores -----------------------------------------------------------------------------------------------------


def measure(
    checkpoints: Sequence[Path], costs: Mapping[int, dict[str, float]], task: Task, args: argparse.Namespace
) -> dict[str, Any]:
    """Scores the checkpoints of a run.

    Args:
        checkpoints: ordered by step.
        costs: step -> tokens, FLOPs and seconds.
        task: what to score them on.
        args: `max_eval_samples`, `use_cpu`, and `bf16` for minimal pairs.

    Returns:
        `points`: costs and metrics of each checkpoint. The values of the last one are also entries of the run itself.
        With sentence pairs, `nsp_accuracy` and `pairs_mlm_loss` are the metrics on pairs. `minimal_pairs`: the number
        of pairs, the accuracy and the phenomena, see [`score_pairs`].
    """
    points = [costs[step_of(path)] | evaluate(path, task.sentences, task, args) for path in checkpoints]
    run: dict[str, Any] = points[-1] | {
        "unigram_mlm_loss": task.unigram_loss,
        "unigram_bits_per_character": task.bits_per_character(task.unigram_loss),
        "points": points,
    }
    if task.pairs is not None:
        on_pairs = evaluate(checkpoints[-1], task.pairs, task, args)
        run |= {"pairs_mlm_loss": on_pairs["mlm_loss"], "nsp_accuracy": on_pairs["nsp_accuracy"]}
    if task.minimal_pairs:
        model = load_checkpoint(AutoModelForMaskedLM, checkpoints[-1], task, args)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=args.bf16):
            scores = score_pairs(model, task.tokenizer, task.minimal_pairs)
        run["minimal_pairs"] = {name: scores[name] for name in ("pairs", "accuracy", "phenomena")}
    return run


def evaluate(checkpoint: Path, dataset: PretrainingDataset, task: Task, args: argparse.Namespace) -> dict[str, float]:
    """Returns the metrics of a checkpoint, as `snugbert evaluate` does, and its number of parameters."""
    auto_class = AutoModelForMaskedLM if dataset.objective == "mlm" else AutoModelForPreTraining
    model = load_checkpoint(auto_class, checkpoint, task, args)
    num_examples = min(len(dataset), args.max_eval_samples)
    metrics = score_examples(model, task.tokenizer, dataset, num_examples, EVAL_BATCH_SIZE)
    metrics["bits_per_character"] = task.bits_per_character(metrics["mlm_loss"])
    return metrics | {"parameters": model.num_parameters()}


def load_checkpoint(auto_class: Any, checkpoint: Path, task: Task, args: argparse.Namespace) -> PreTrainedModel:
    """Loads SnugBERT, or stock BERT as SnugBERT: the weights have the same names."""
    model_args = ModelArguments(model_name_or_path=str(checkpoint))
    model = load_model(auto_class, model_args, load_config(model_args, task.tokenizer))
    return model.to(choose_device(args.use_cpu))  # type: ignore[arg-type]
