"""Resumed runs of `snugbert pretrain`: changed settings and data, damaged and forged checkpoints."""

import json
import re
import shutil

import pytest
import torch
from pretraining_command import run

from snugbert.trainers.run.checkpoints import write_manifest


@pytest.fixture(scope="module")
def with_checkpoint(small_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    assert run(small_run | {"validation_file": None}, output_dir=folder, save_steps=4, max_steps=4) == 0
    return folder


def test_resuming_with_other_data_is_refused_without_a_flag(small_run, tmp_path, capsys):
    text = tmp_path / "text"
    text.mkdir()
    lines = small_run["train_file"].read_text()
    for name in ("a", "b"):
        (text / f"{name}.txt").write_text(lines)
    small_run = small_run | {"train_file": text / "*.txt", "validation_file": None, "save_steps": 4, "max_steps": 4}
    run(small_run, output_dir=tmp_path / "run")
    capsys.readouterr()
    resume = {"output_dir": tmp_path / "run", "resume_from_checkpoint": "true", "max_steps": 6}

    def refusal(**more) -> str:
        assert run(small_run | resume, **more) == 2
        error = capsys.readouterr().err.rpartition("snugbert pretrain: error: ")[2]
        assert "--allow_changed_data" in error
        return error

    (tmp_path / "run/eval_results.json").write_text("{}")  # of an earlier start
    text.rename(tmp_path / "moved")  # moving the whole folder is allowed
    assert run(small_run | resume | {"train_file": tmp_path / "moved/*.txt", "max_steps": 4}) == 0
    assert "README.md" in (printed := capsys.readouterr().out) and "eval_results.json" not in printed
    (tmp_path / "moved").rename(text)
    table = tmp_path / "run/epochs/table.unfinished"  # of a killed run
    table.parent.mkdir()
    table.touch()
    assert "short_seq_prob" in refusal(short_seq_prob=0.2)
    assert not table.exists()
    assert "seed" in refusal(data_seed=7)
    assert "batch" in refusal(per_device_train_batch_size=8)
    (text / "b.txt").write_text(lines.replace("w0a", "w0b"))
    changed = refusal()
    assert "b.txt" in changed and "a.txt" not in changed
    (text / "b.txt").unlink()
    missing = refusal()
    assert any("b.txt" in line and line.endswith("-") for line in missing.splitlines())
    assert run(small_run | resume, allow_changed_data="true") == 0
    # Accumulating the same batch in smaller parts is not a change.
    more = {"allow_changed_data": "true", "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    assert run(small_run | resume | {"max_steps": 8}, **more) == 0
    (changed,) = re.findall(r"\| changed on resume \| (.*) \|", (tmp_path / "run/README.md").read_text())
    steps = "6 steps instead of 4"
    more_steps = "8 steps instead of 6"
    assert re.fullmatch(
        rf'after step 4: order of the text was .*; text \S*b.txt was "\w+" and is null; '
        rf"after step 4: {steps}; .*{more_steps}",
        changed,
    )


def test_changed_settings_are_refused_before_text_is_prepared(small_run, with_checkpoint, monkeypatch, capsys):
    monkeypatch.setattr("snugbert.trainers.pretraining.pretrain.load_corpora", None)
    resume = {"resume_from_checkpoint": "true", "output_dir": with_checkpoint, "max_steps": 6}
    # Otherwise, the card would name other weights than the run started from.
    other_weights = {"config_name": None, "model_name_or_path": with_checkpoint / "checkpoint-4"}
    for changes, message in (
        ({"config_name": "mini"}, "hidden_size 128 256"),
        ({"config_overrides": "hidden_dropout_prob=0.0"}, "hidden_dropout_prob 0.1 0.0"),
        ({"learning_rate": 5e-4}, "--learning_rate 0.0001 0.0005"),
        ({"bigram_init": "true"}, "--bigram_init false true"),
        (other_weights, '--model_name_or_path "random weights" "checkpoint-4"'),
    ):
        assert run(small_run | resume | changes) == 2
        error = capsys.readouterr().err
        assert f"{with_checkpoint}/checkpoint-4 has other settings.\n" in error
        assert message in [" ".join(line.split()) for line in error.splitlines()]
    assert run(small_run | resume | {"max_steps": 3}) == 2
    assert "checkpoint-4 has taken 4 steps, more than the 3 steps of this run" in capsys.readouterr().err


def test_an_optimizer_of_other_shapes_is_a_short_error(small_run, with_checkpoint, tmp_path, capfd):
    folder = shutil.copytree(with_checkpoint, tmp_path / "run")
    file = folder / "checkpoint-4/optimizer.pt"
    state = torch.load(file, weights_only=True)
    values = next(iter(state["state"].values()))
    values["exp_avg"] = values["exp_avg"].flatten()[:3].clone()  # a fused optimizer would write beyond these numbers
    torch.save(state, file)
    write_manifest(folder / "checkpoint-4")
    more = {"validation_file": None, "resume_from_checkpoint": "true", "max_steps": 6}
    assert run(small_run | more, output_dir=folder) == 2
    *_, line = capfd.readouterr().err.splitlines()
    assert "checkpoint-4" in line and "optimizer.pt" in line and "exp_avg has shape [3]" in line


def test_the_best_checkpoint_is_found_after_moving_the_folder(small_run, tmp_path):
    """The best checkpoint, here the first, and the newest one are kept."""
    best = {"load_best_model_at_end": "true", "metric_for_best_model": "loss", "eval_strategy": "steps"}
    best |= {"eval_steps": 2, "save_steps": 2, "save_total_limit": 1, "greater_is_better": "true"}
    assert run(small_run | best, output_dir=tmp_path / "before") == 0
    (tmp_path / "before/checkpoint-2-notes").mkdir()  # Trainer would remove it at the end of training
    (tmp_path / "before").rename(tmp_path / "now")
    more = {"resume_from_checkpoint": "true", "max_steps": 10}
    assert run(small_run | best | more, output_dir=tmp_path / "now") == 0
    state = json.loads((tmp_path / "now/trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == "checkpoint-2"
    kept = {path.name for path in (tmp_path / "now").glob("checkpoint-*")}
    assert kept == {"checkpoint-2", "checkpoint-2-notes", "checkpoint-10"} and not (tmp_path / "before").exists()


def test_a_run_resumes_from_its_newest_whole_checkpoint(small_run, tmp_path, caplog):
    run(small_run, output_dir=tmp_path, save_steps=4)
    (tmp_path / "checkpoint-8/trainer_state.json").unlink()
    more = {"resume_from_checkpoint": "true", "max_steps": 10}
    assert run(small_run, output_dir=tmp_path, **more) == 0
    assert "checkpoint-8/trainer_state.json cannot be read" in caplog.text
    state = json.loads((tmp_path / "trainer_state.json").read_text())
    assert state["global_step"] == 10
    assert [line["step"] for line in state["log_history"] if "loss" in line] == [2, 4, 6, 8, 10]


def test_the_same_command_starts_and_resumes(small_run, tmp_path, capsys):
    """For jobs that may be stopped at any time. A finished run without checkpoints is not started again."""
    more = {"resume_from_checkpoint": "true", "save_steps": 4, "output_dir": tmp_path}
    assert run(small_run, **more, max_steps=4) == 0
    capsys.readouterr()
    assert run(small_run, **more) == 0
    output = capsys.readouterr().out
    assert re.search(r"Trained 8 steps\. The steps after checkpoint-4 took \d+ s\.\n", output)
    assert ("training.png" in output) == (tmp_path / "training.png").exists()
    assert json.loads((tmp_path / "trainer_state.json").read_text())["global_step"] == 8
    for checkpoint in tmp_path.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    assert run(small_run, **more) == 2
    assert "contains a run, but no complete checkpoint" in capsys.readouterr().err
