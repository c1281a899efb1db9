"""Resumed runs of `snugbert pretrain`: changed settings and data, and a checkpoint of another model."""

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


@pytest.mark.slow
def test_resuming_with_other_data_is_refused_without_a_flag(small_run, tmp_path, capsys):
    text = tmp_path / "text"
    text.mkdir()
    lines = small_run["train_file"].read_text()
    for name in ("a", "b"):
        (text / f"{name}.txt").write_text(lines)
    small_run = small_run | {"train_file": text / "*.txt", "validation_file": None, "save_steps": 4, "max_steps": 4}
    run(small_run, output_dir=tmp_path / "run")
    resume = {"output_dir": tmp_path / "run", "resume_from_checkpoint": "true", "max_steps": 6}

    def refusal(**more) -> str:
        assert run(small_run | resume, **more) == 2
        error = capsys.readouterr().err.rpartition("snugbert pretrain: error: ")[2]
        assert "--allow_changed_data" in error
        return error

    text.rename(tmp_path / "moved")  # moving the whole folder is allowed
    assert run(small_run | resume | {"train_file": tmp_path / "moved/*.txt", "max_steps": 4}) == 0
    (tmp_path / "moved").rename(text)
    assert "short_seq_prob" in refusal(short_seq_prob=0.2)
    assert "batch" in refusal(per_device_train_batch_size=8)
    (text / "b.txt").write_text(lines.replace("w0a", "w0b"))
    changed = refusal()
    assert "b.txt" in changed and "a.txt" not in changed
    # Accumulating the same batch in smaller parts is not a change.
    more = {"allow_changed_data": "true", "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    assert run(small_run | resume, **more) == 0
    (changed,) = re.findall(r"\| changed on resume \| (.*) \|", (tmp_path / "run/README.md").read_text())
    assert re.search(r"after step 4: .*; text \S*b.txt was .*; after step 4: 6 steps instead of 4", changed)


def test_changed_settings_are_refused_before_text_is_prepared(small_run, with_checkpoint, monkeypatch, capsys):
    monkeypatch.setattr("snugbert.trainers.pretraining.pretrain.load_corpora", None)
    resume = {"resume_from_checkpoint": "true", "output_dir": with_checkpoint, "max_steps": 6}
    # Otherwise, the card would name other weights than the run started from.
    other_weights = {"config_name": None, "model_name_or_path": with_checkpoint / "checkpoint-4"}
    for changes, message in (
        ({"config_name": "mini"}, "hidden_size 128 256"),
        ({"bigram_init": "true"}, "--bigram_init false true"),
        (other_weights, '--model_name_or_path "random weights" "checkpoint-4"'),
    ):
        assert run(small_run | resume | changes) == 2
        error = capsys.readouterr().err
        assert f"{with_checkpoint}/checkpoint-4 has other settings.\n" in error
        assert message in [" ".join(line.split()) for line in error.splitlines()]


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
