"""A run that is killed again and again, and whose checkpoints are damaged, ends like an unkilled run."""

import signal

import pytest
from damage import damage
from torture import Kill, assert_same_end, make_arguments, make_material, start, torture

KILLS = [
    Kill(r"os.rename .*/part-.*\.index$"),  # the text is tokenized, but has no index
    Kill(r"os.rename .*\.examples$"),
    Kill(r"open .*checkpoint-4/tokenizer_config.json$"),
    Kill(r"os.rename .*/run/checkpoint-4$"),
    Kill(r"os.rename .*/run/checkpoint-8$", signal=signal.SIGTERM),
    Kill(r"os.rename .*_unfinished_checkpoint/checkpoint-4$"),
    Kill(r"open .*/metrics.jsonl$", nth=3, signal=signal.SIGINT),
    Kill(r"open .*/run/config.json$"),
]


@pytest.mark.slow
def test_a_run_that_is_killed_at_every_stage_ends_like_an_unkilled_run(tmp_path):
    """Text, table, first checkpoint, renaming and removing checkpoints, a step, the final model; one data worker.

    The corpus stores the words of BPE. Spans are masked, and the share of masked tokens falls.
    """
    make_material(tmp_path, documents=10, letters=True)
    straight, killed = (
        [*make_arguments(tmp_path, tmp_path / name, steps=20), "--masking", "spans", "--mlm_probability", "0.3:0.15"]
        for name in ("straight", "killed")
    )
    start(straight, None)
    for kill in KILLS:
        reached, _ = start([*killed, "--dataloader_num_workers", "1"], kill)
        assert reached is not None, f"{kill}: the run ended before"
    damage(tmp_path / "killed/run/checkpoint-20/optimizer.pt", "six bytes")
    _, messages = start(killed, None)
    assert "checkpoint-20" in messages and "optimizer.pt" in messages
    assert_same_end(tmp_path / "killed", tmp_path / "straight")


@pytest.mark.slow
@pytest.mark.long
def test_fifty_kills(tmp_path):
    """At random moments, with damage in between. Prints a line per kill."""
    torture(tmp_path, number=50, seed=1)
