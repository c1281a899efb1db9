"""One run per output folder."""

import errno
import os
import platform
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import forked
import pytest
from finetuning_examples import HEADS, make_tokenizer, new_trainer
from synthetic import make_trainer

from snugbert import files
from snugbert.errors import InputError
from snugbert.trainers.run import folder as output_folder
from snugbert.trainers.run.folder import check_disk_space, lock_output_dir
from snugbert_cli import main as snugbert_command


def settings(folder: Path, should_save: bool = True) -> SimpleNamespace:
    return SimpleNamespace(output_dir=str(folder), should_save=should_save)


def lock_and_start_a_worker(folder: Path) -> None:
    with lock_output_dir(settings(folder)):
        if os.fork() != 0:
            (folder / "ready").touch()
        time.sleep(300)


@contextmanager
def run_with_a_worker(folder: Path) -> Iterator[forked.ForkedProcess]:
    """A process that holds the lock. Its child process, such as a data worker, lives until the end of the block."""
    process = forked.start(lock_and_start_a_worker, folder)
    deadline = time.monotonic() + forked.PATIENCE
    try:
        while not (folder / "ready").exists():
            assert time.monotonic() < deadline, process.stderr
            time.sleep(0.01)
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_a_second_run_is_refused_until_the_first_is_killed(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "new/run"
    make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "train.txt").write_text("w1 w2\nw3\n\nw4\nw5\n")
    files = f"--train_file {tmp_path / 'train'}.txt --output_dir {folder} --use_cpu true"
    model = f"--config_name tiny --tokenizer_name {tmp_path / 'tokenizer'}"
    with run_with_a_worker(folder) as process:
        message = f"process {process.pid} on {platform.node()} has locked {folder}/_lock. Wait until it ends"
        with monkeypatch.context() as patch:
            patch.setattr(output_folder, "LOCK_SECONDS", 0)
            for command in ("pretrain", "ner"):
                assert snugbert_command([command, *model.split(), *files.split()]) == 2
                assert message in capsys.readouterr().err, command
            trainer = new_trainer(HEADS[0], make_tokenizer(), folder, max_steps=1)
            for refused in (trainer, make_trainer(folder)):
                with pytest.raises(InputError, match="has locked"):
                    refused.train()
            assert not (folder / "metrics.jsonl").exists()
            with lock_output_dir(settings(folder, should_save=False)):  # a process that does not write
                pass
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        trainer.train()
    # The killed run left its file. The next one locked it, and removed it.
    assert [file.name for file in folder.iterdir()] == ["ready"]


def test_a_run_may_take_its_lock_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with lock_output_dir(settings(tmp_path / "run")), lock_output_dir(settings(Path("run"))):
        pass
    with run_with_a_worker(tmp_path / "run"):  # both were released
        pass


def test_a_lock_on_a_removed_file_is_no_lock(tmp_path, monkeypatch):
    """A run ends between the moments when the next one opens its file and locks it. A third run makes a new file."""
    flock, taken = files.fcntl.flock, []

    def others_were_faster(descriptor, operation):
        if not taken:
            (tmp_path / "_lock").unlink()
            taken.append(os.open(tmp_path / "_lock", os.O_RDWR | os.O_CREAT))
            flock(taken[0], operation)
        flock(descriptor, operation)

    monkeypatch.setattr(files.fcntl, "flock", others_were_faster)
    monkeypatch.setattr(output_folder, "LOCK_SECONDS", 0)
    with pytest.raises(InputError, match="has locked"), lock_output_dir(settings(tmp_path)):
        pass
    os.close(taken[0])
    with lock_output_dir(settings(tmp_path)):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_a_warning(number, tmp_path, monkeypatch, caplog):
    def unsupported(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.fcntl, "flock", unsupported)
    (tmp_path / "_lock").write_text("process 123456789 on another machine")  # a killed run
    with lock_output_dir(settings(tmp_path)), lock_output_dir(settings(tmp_path)):
        assert (tmp_path / "_lock").read_text() == f"process {os.getpid()} on {platform.node()}"
    assert caplog.messages == [f"{tmp_path}: this file system has no locks. Make sure that no other run uses it."]


def refused_in_the_first_process(folder: Path) -> None:
    """The folder is locked, and then the disk is full. The other process may continue with neither."""
    output_folder.LOCK_SECONDS = 0
    shutil.disk_usage = lambda _: SimpleNamespace(total=10**12, free=0)
    trainer = make_trainer(folder, max_steps=1)
    with pytest.raises(InputError, match="has locked"):
        trainer.train()
    with pytest.raises(InputError, match="has 0B free"):
        check_disk_space(trainer.args, trainer.model.parameters())


def test_an_error_of_the_first_process_stops_all(tmp_path):
    with lock_output_dir(settings(tmp_path)):
        process = forked.run(refused_in_the_first_process, tmp_path, processes=2)
    assert process.returncode == 0, process.stderr
