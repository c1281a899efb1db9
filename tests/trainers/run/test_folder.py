"""The output folder of a run: what may be overwritten, and which checkpoint is resumed."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import forked
import pytest
import torch
from damage import damage
from synthetic import make_trainer
from transformers import TrainerState, TrainingArguments

from snugbert.errors import InputError
from snugbert.progress import format_bytes
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.run.checkpoints import UNFINISHED_CHECKPOINT, find_newest_checkpoint, list_checkpoints, publish
from snugbert.trainers.run.folder import check_disk_space, check_output_dir, remove_run


def write_checkpoint(folder: Path, step: int) -> str:
    """A checkpoint with its manifest."""
    unfinished, checkpoint = folder / UNFINISHED_CHECKPOINT / f"checkpoint-{step}", folder / f"checkpoint-{step}"
    unfinished.mkdir(parents=True)
    (unfinished / "optimizer.pt").write_text("moments")
    TrainerState(global_step=step).save_to_json(str(unfinished / "trainer_state.json"))
    publish(unfinished, checkpoint)
    unfinished.parent.rmdir()
    return str(checkpoint)


def arguments(folder, resume: str | None = None, overwrite: bool = False) -> FineTuningArguments:
    args = FineTuningArguments(output_dir=str(folder), use_cpu=True, overwrite_output_dir=overwrite)
    args.resume_from_checkpoint = resume
    return args


def test_the_newest_checkpoint_is_resumed(tmp_path):
    """With nothing to resume, not even a first checkpoint that a killed run left, the same command starts a run."""
    write_checkpoint(tmp_path / "run", 9)
    newest = write_checkpoint(tmp_path / "run", 10)
    assert check_output_dir(arguments(tmp_path / "run", "true")) == newest
    (tmp_path / "new" / UNFINISHED_CHECKPOINT / "checkpoint-1").mkdir(parents=True)
    for resume in (None, "true"):
        assert check_output_dir(arguments(tmp_path / "new", resume)) is None


def test_a_run_is_not_overwritten_by_accident(tmp_path):
    write_checkpoint(tmp_path, 10)
    (tmp_path / UNFINISHED_CHECKPOINT).mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "generator").mkdir()
    (tmp_path / "generator/config.json").touch()
    with pytest.raises(InputError, match="already contains a run"):
        check_output_dir(arguments(tmp_path))
    with pytest.raises(InputError, match=r"checkpoint-11 contains no manifest"):
        check_output_dir(arguments(tmp_path, str(tmp_path / "checkpoint-11")))
    assert check_output_dir(arguments(tmp_path, overwrite=True)) is None
    remove_run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "generator"}
    (tmp_path / "config.json").touch()  # of the discriminator. The next model may have no generator.
    remove_run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "config.json"}


def test_resuming_from_another_folder_does_not_replace_a_run(tmp_path):
    for name in ("here", "there"):
        write_checkpoint(tmp_path / name, 10)
    with pytest.raises(InputError, match=f"{tmp_path}/here already contains a run"):
        check_output_dir(arguments(tmp_path / "here", str(tmp_path / "there/checkpoint-10")))


# --- damaged checkpoints ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with dropout and two checkpoints."""
    folder = tmp_path_factory.mktemp("run")
    make_trainer(folder, max_steps=2, save_steps=1, dropout=0.1).train()
    return folder


DAMAGES = [
    ("optimizer.pt", "half", "does not match manifest"),
    ("rng_state.pth", "missing", "cannot be read: No such file"),
    ("manifest.json", "{}", "is damaged"),
    ("manifest.json", "half", "is not JSON"),
    ("manifest.json", "a path", "the name '/etc/passwd' points outside the folder"),
    ("model.safetensors", "six bytes", "does not match manifest"),
]


@pytest.mark.parametrize(("name", "how", "problem"), DAMAGES)
def test_a_damaged_checkpoint_is_skipped(name, how, problem, run, tmp_path, caplog):
    """The warning names the file. So does the error if the checkpoint is passed explicitly."""
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    damaged = tmp_path / "checkpoint-2"
    damage(damaged / name, how)
    assert check_output_dir(arguments(tmp_path, "true")) == str(tmp_path / "checkpoint-1")
    with pytest.raises(InputError, match=f"--resume_from_checkpoint: .*{damaged / name}.* {problem}") as error:
        check_output_dir(arguments(tmp_path, str(damaged)))
    assert "\n" not in str(error.value) and str(error.value).split(": ", 1)[1].split(" Resume")[0] in caplog.text


def test_a_run_without_optimizer_does_not_start_again(tmp_path, caplog):
    """Its weights were saved on purpose (--save_only_model)."""
    make_trainer(tmp_path, max_steps=2, save_steps=1, save_only_model=True).train()
    with pytest.raises(InputError, match="contains a run, but no complete checkpoint"):
        check_output_dir(arguments(tmp_path, "true"))
    checkpoint = tmp_path / "checkpoint-2"
    assert f"{checkpoint} contains only weights" in caplog.text and f"--model_name_or_path {checkpoint}" in caplog.text


# --- replaced and moved checkpoints -----------------------------------------------------------------------------


def test_a_kill_while_a_checkpoint_is_replaced_loses_nothing(run, tmp_path):
    """The old checkpoint was moved away, and the new one has not got its name."""
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    newest = list_checkpoints(tmp_path)[-1]
    shutil.copytree(newest, tmp_path / UNFINISHED_CHECKPOINT / newest.name)
    newest.rename(tmp_path / UNFINISHED_CHECKPOINT / f"replaced-{newest.name}")
    assert find_newest_checkpoint(tmp_path) == newest


# --- free space for checkpoints -----------------------------------------------------------------------------------

WEIGHTS = 4 * 10**7  # bytes
CHECKPOINT = 3 * WEIGHTS  # with AdamW's moments


def check_space(folder, monkeypatch, free, **settings):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10**12, free=free))
    args = TrainingArguments(str(folder / "new/run"), use_cpu=True, **settings)
    check_disk_space(args, [torch.nn.Parameter(torch.zeros(10**7))])


def test_a_disk_without_space_for_a_checkpoint_is_refused(tmp_path, monkeypatch):
    """A run that replaces another is not refused."""
    for settings, least in (
        ({}, CHECKPOINT),
        ({"save_only_model": True}, WEIGHTS),
        ({"optim": "adafactor"}, WEIGHTS),
        ({"save_strategy": "no"}, WEIGHTS),
    ):
        check_space(tmp_path, monkeypatch, least, **settings)
        with pytest.raises(InputError, match=f"{tmp_path} has .* free, but .* takes {format_bytes(least)}\\."):
            check_space(tmp_path, monkeypatch, least - 1, **settings)
    (tmp_path / "new/run/checkpoint-1").mkdir(parents=True)
    check_space(tmp_path, monkeypatch, 0)


def resume_on_a_machine(folder: Path) -> None:
    """One of two machines. They resume from a shared folder. From folders of their own, they are refused."""
    os.environ["LOCAL_RANK"] = "0"
    shared, own = folder / "shared", folder / f"machine-{os.environ['RANK']}"
    if os.environ["RANK"] == "0":
        write_checkpoint(shared, 3)
        write_checkpoint(own, 3)
    assert check_output_dir(arguments(shared, "true")) == str(shared / "checkpoint-3")
    for resume in ("true", str(own / "checkpoint-3")):
        with pytest.raises(InputError, match=r"checkpoint-3 of the first machine is missing on .*share, or a bucket"):
            check_output_dir(arguments(own, resume))


@pytest.mark.slow
def test_machines_need_a_shared_folder(tmp_path):
    process = forked.run(resume_on_a_machine, tmp_path, processes=2)
    assert process.returncode == 0, process.stderr
