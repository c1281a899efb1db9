"""One run per output folder."""

import os
import platform
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import forked
import pytest
from finetuning_examples import HEADS, make_tokenizer, new_trainer

from snugbert.errors import InputError
from snugbert.trainers import run_lock
from snugbert.trainers.run_lock import lock_output_dir
from snugbert_cli import main as snugbert_command


def settings(folder: Path, should_save: bool = True) -> SimpleNamespace:
    return SimpleNamespace(output_dir=str(folder), should_save=should_save)


def run_with_a_worker(folder: Path) -> None:
    """Locks the folder. Its child process, such as a data worker, outlives it."""
    with lock_output_dir(settings(folder)):
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        (folder / "ready").touch()
        time.sleep(60)


def test_a_second_run_is_refused_until_the_first_is_killed(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "new/run"
    process = forked.start(run_with_a_worker, folder)
    while not (folder / "ready").exists():
        time.sleep(0.01)
    make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "train.txt").write_text("w1 w2\nw3\n\nw4\nw5\n")
    (tmp_path / "train.json").write_text('{"data": []}')
    model = f"--config_name tiny --tokenizer_name {tmp_path / 'tokenizer'}"
    message = f"--output_dir: process {process.pid} on {platform.node()} is running in {folder}. Wait until it ends"
    with monkeypatch.context() as patch:
        patch.setattr(run_lock, "SECONDS", 0)
        for command, suffix in (("pretrain", "txt"), ("ner", "txt"), ("squad", "json"), ("glue", "json")):
            files = f"--train_file {tmp_path / 'train'}.{suffix} --output_dir {folder} --use_cpu true"
            assert snugbert_command([command, *model.split(), *files.split()]) == 2
            assert message in capsys.readouterr().err, command
        trainer = new_trainer(HEADS[0], make_tokenizer(), folder, max_steps=1)
        with pytest.raises(InputError, match="is running in"):
            trainer.train()
        with lock_output_dir(settings(folder, should_save=False)):  # a process that does not write
            pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    trainer.train()
    assert sorted(file.name for file in folder.iterdir()) == ["_lock", "ready"]


def test_a_run_may_take_its_lock_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with lock_output_dir(settings(tmp_path / "run")), lock_output_dir(settings(Path("run"))):
        pass
    process = forked.start(run_with_a_worker, tmp_path / "run")  # both were released
    while not (tmp_path / "run/ready").exists():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)


def test_a_run_that_writes_nothing_leaves_no_folder(tmp_path):
    with lock_output_dir(settings(tmp_path / "new")):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--output_dir: cannot write to .*file \(File exists\)\. Choose another"):
        with lock_output_dir(settings(tmp_path / "file")):
            pass
