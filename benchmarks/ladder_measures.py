"""What `pretraining_ladder.py` measures: the costs of a run, and its scores on text and on minimal pairs."""

import argparse
import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from side_by_side import choose_device
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from snugbert.cli.model_arguments import ModelArguments
from snugbert.data.documents import match_files
from snugbert.evaluation.evaluation_arguments import HeldOutTextArguments
from snugbert.evaluation.held_out_text import score_text
from snugbert.evaluation.masked_models import load_masked_model
from snugbert.evaluation.minimal_pairs import BAD, GOOD, MinimalPair, read_pairs, score_pairs
from snugbert.trainers.pretraining.pretraining_trainer import RECORD_NAME


def measure(checkpoints: Sequence[Path], has_pairs: bool, args: argparse.Namespace) -> dict[str, Any]:
    """Scores the checkpoints of a run.

    Args:
        checkpoints: ordered by step.
        has_pairs: whether the recipe trains on sentence pairs.
        args: the arguments of `pretraining_ladder.py`.

    Returns:
        `points`: costs and metrics of each checkpoint. The values of the last one are also entries of the run itself.
        With sentence pairs, `nsp_accuracy` and `pairs_mlm_loss` are the metrics on pairs. `minimal_pairs`: the number
        of pairs, the accuracy and the phenomena, see [`score_pairs`].
    """
    points = [read_costs(path) | score_checkpoint(path, False, args) for path in checkpoints]
    run: dict[str, Any] = points[-1] | {"points": points}
    if has_pairs:
        on_pairs = score_checkpoint(checkpoints[-1], True, args)
        run |= {"pairs_mlm_loss": on_pairs["mlm_loss"], "nsp_accuracy": on_pairs["nsp_accuracy"]}
    if args.pairs_file:
        model, tokenizer = load_checkpoint(checkpoints[-1], False, args)
        pairs = select_pairs(read_pairs(match_files(args.pairs_file), GOOD, BAD), args.pairs_per_file)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=args.bf16):
            scores = score_pairs(model, tokenizer, pairs)
        run["minimal_pairs"] = {name: scores[name] for name in ("pairs", "accuracy", "phenomena")}
    return run


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


def score_checkpoint(checkpoint: Path, on_pairs: bool, args: argparse.Namespace) -> dict[str, float]:
    """Returns the metrics of a checkpoint on held-out text, the baseline's, and the number of parameters."""
    model, tokenizer = load_checkpoint(checkpoint, on_pairs, args)
    text = HeldOutTextArguments(
        train_file=args.train_file,
        validation_file=args.validation_file,
        no_nsp=not on_pairs,
        max_seq_length=args.max_seq_length,
        max_eval_samples=args.max_eval_samples,
    )
    scores = score_text(model, tokenizer, text, cache_dir=str(args.output_dir / "cache"))
    baselines = {f"unigram_{name}": value for name, value in scores["baselines"].items()}
    return scores["metrics"] | baselines | {"parameters": model.num_parameters()}


def load_checkpoint(
    checkpoint: Path, with_pairs: bool, args: argparse.Namespace
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a checkpoint with its masked token head, and with its next-sentence head if `with_pairs`."""
    model, tokenizer = load_masked_model(ModelArguments(model_name_or_path=str(checkpoint)), with_pairs)
    return model.to(choose_device(args.use_cpu)), tokenizer  # type: ignore[arg-type]


def select_pairs(pairs: Sequence[MinimalPair], pairs_per_file: int | None) -> list[MinimalPair]:
    """Selects this many pairs of each file, evenly spread over the file. None, or a small file: all of its pairs."""
    selected = []
    for _, group in groupby(pairs, key=lambda pair: pair.file):
        in_file = list(group)
        count = min(pairs_per_file or len(in_file), len(in_file))
        selected += [in_file[number * len(in_file) // count] for number in range(count)]
    return selected
