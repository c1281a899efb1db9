"""Tokens, FLOPs and seconds of training up to the checkpoints of a run of `pretraining_ladder.py`."""

import json
from pathlib import Path

from snugbert.trainers.pretraining.data_settings import RECORD_NAME


def read_costs(checkpoint: Path) -> dict[str, float]:
    """Reads the costs up to a checkpoint of `snugbert pretrain`."""
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
    """Reads the costs up to each step that `pretraining_run.py` logs."""
    lines = [json.loads(line) for line in (output_dir / "stock.jsonl").read_text().splitlines()]
    return {line["step"]: {name: line[name] for name in ("step", "tokens", "flops", "seconds")} for line in lines}
