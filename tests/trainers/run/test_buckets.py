"""Commands whose files are all in a bucket: killed, resumed on other machines, refused, and without network."""

import os
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import forked
import fsspec
import pytest
from pretraining_command import run

from snugbert.errors import InputError
from snugbert.storage import inputs as staging
from snugbert.storage import uploads as remote_outputs
from snugbert.storage.uploads import RemoteOutput, choose_output, find_output
from snugbert.trainers.run.checkpoints import (
    check_checkpoint,
    publish,
    remove_checkpoints,
    write_manifest,
)
from snugbert.trainers.run.folder import run_in_store
from snugbert_cli import main as snugbert_command


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch) -> Path:
    """The home of a new machine."""
    monkeypatch.setattr(staging, "HF_HOME", str(tmp_path / "machine"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "machine"
    assert not list(tmp_path.glob("*:*"))  # no local folder `s3:`


@pytest.fixture
def in_bucket(small_run, bucket) -> dict:
    """The arguments of a run with everything but its text in the bucket."""
    shutil.copytree(small_run["tokenizer_name"], bucket.folder / "tok")
    more = {"validation_file": None, "tokenizer_name": f"{bucket.url}/tok", "save_steps": 4}
    return small_run | more | {"output_dir": f"{bucket.url}/runs/run", "resume_from_checkpoint": "true"}


def list_files(folder: Path) -> set[str]:
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {name for name in files if not re.search(r"(^|/)(_|events)", name)}


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def pretrain_until_killed(arguments: dict, home: Path) -> None:
    """Runs on a machine with this home until the second manifest is about to be uploaded."""
    staging.HF_HOME = str(home)
    upload, manifests = remote_outputs.upload, []

    def upload_or_die(file, url):
        manifests.extend([url] if url.endswith("manifest.json") else [])
        if len(manifests) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        upload(file, url)

    remote_outputs.upload = upload_or_die
    run(arguments)


@pytest.mark.slow
def test_a_killed_run_resumes_on_an_empty_machine(in_bucket, bucket, tmp_path, capsys):
    """It ends bit for bit like an unkilled run. The half-uploaded checkpoint is skipped (composer#3376)."""
    in_bucket |= {"max_steps": 4, "save_steps": 2}
    assert run(in_bucket | {"output_dir": tmp_path / "straight"}) == 0
    killed = forked.start(pretrain_until_killed, in_bucket, tmp_path / "first")
    assert killed.wait() == -signal.SIGKILL, killed.stderr
    stored = bucket.folder / "runs/run"
    (complete,) = (path.parent.name for path in stored.glob("checkpoint-*/manifest.json"))

    assert run(in_bucket) == 2
    assert f"If that process was killed, remove {bucket.url}/runs/run/_lock." in capsys.readouterr().err
    (stored / "_lock").unlink()

    assert run(in_bucket) == 0
    out, err = capsys.readouterr()
    assert f"after {complete}" in out and re.search(rf"uploaded \d+ files to {bucket.url}/runs/run\n", err)
    assert weights(stored) == weights(tmp_path / "straight")
    assert list_files(stored) == list_files(tmp_path / "straight")
    assert {path.name for path in stored.glob("_*")} == {"_writer"}
    for file in bucket.folder.rglob("*"):
        assert file.is_dir() or not re.search(rf"{tmp_path}|SECRET".encode(), file.read_bytes()), file


@pytest.mark.slow
def test_a_run_in_a_bucket_is_protected_like_a_local_one(in_bucket, bucket, machine, capsys):
    in_bucket |= {"save_total_limit": 2, "max_steps": 3, "save_steps": 1}
    stored = bucket.folder / "runs/run"
    assert run(in_bucket) == 0
    assert {path.name for path in stored.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-3"}
    assert run(in_bucket, dry_run="true") == 0
    assert not list(machine.glob("snugbert/outputs/*/*/*"))
    assert run(in_bucket, resume_from_checkpoint="false") == 2
    assert "/run already contains a run" in capsys.readouterr().err
    expected = weights(stored)
    shutil.copytree(stored / "checkpoint-2", bucket.folder / "kept/checkpoint-2")
    assert run(in_bucket, resume_from_checkpoint=None, overwrite_output_dir="true", max_steps=1, save_steps=1) == 0
    assert {path.name for path in stored.glob("checkpoint-*")} == {"checkpoint-1"}
    in_bucket |= {"output_dir": f"{bucket.url}/runs/other"}
    assert run(in_bucket, resume_from_checkpoint=f"{bucket.url}/kept/checkpoint-2/") == 0
    assert weights(bucket.folder / "runs/other") == expected


def write_checkpoint(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    for name, text in ({"trainer_state.json": "state"} | files).items():
        (folder / name).write_text(text)
    write_manifest(folder)
    return folder


def check_files(checkpoint: Path) -> None:
    with pytest.raises(InputError, match="contains only weights"):  # all files are complete
        check_checkpoint(checkpoint)


def test_a_refused_run_elsewhere_does_not_replace_newer_local_checkpoints(bucket, tmp_path):
    here, elsewhere = (RemoteOutput(tmp_path / name / "run", f"{bucket.url}/run") for name in ("here", "elsewhere"))

    def begin(output: RemoteOutput, step: int = 0) -> set[str]:
        with pytest.raises(InputError, match=r"^ended$"), run_in_store(output):
            found = {path.name for path in output.folder.glob("checkpoint-*")}
            if step:  # otherwise the arguments are refused
                output.claim()
                write_checkpoint(output.folder / f"checkpoint-{step}")
            raise InputError("ended")
        return found

    assert begin(here, 4) == begin(elsewhere) == set()
    assert begin(here) == {"checkpoint-4"}
    assert begin(elsewhere, 8) == begin(here) == set()


@pytest.mark.parametrize("replaces", [False, True])
def test_a_checkpoint_that_the_run_changes_while_it_is_uploaded_is_whole(replaces, bucket, monkeypatch):
    """The run removes or replaces it."""
    folder, stored = choose_output(f"{bucket.url}/run"), bucket.folder / "run"
    checkpoint, output = write_checkpoint(folder / "checkpoint-4", optimizer="old", model="old"), find_output(folder)
    write_checkpoint(folder / "checkpoint-best")  # a folder of the user
    change = partial(remove_checkpoints, [checkpoint])
    if replaces:
        new = write_checkpoint(folder / "_unfinished_checkpoint/checkpoint-4", model="new")
        change = partial(publish, new, checkpoint)
    real, changes = remote_outputs.upload, []
    with ThreadPoolExecutor() as pool:

        def upload_while_the_run_changes(file, url):
            real(file, url)
            if not changes:
                changes.append(pool.submit(change))
                wait(changes, timeout=0.5)

        monkeypatch.setattr(remote_outputs, "upload", upload_while_the_run_changes)
        output.upload_checkpoints()
    assert changes[0].result() is None
    check_files(stored / "checkpoint-4")
    output.upload_checkpoints()
    if replaces:
        check_files(stored / "checkpoint-4")
    files = {f"checkpoint-4/{name}" for name in ("model", "trainer_state.json", "manifest.json")}
    assert list_files(stored) == (files if replaces else set())


def test_the_last_checkpoint_stays_in_the_bucket_until_the_model_is_there(bucket, monkeypatch):
    folder, stored = choose_output(f"{bucket.url}/run"), bucket.folder / "run"
    checkpoint, output = write_checkpoint(folder / "checkpoint-4"), find_output(folder)
    output.upload_checkpoints()
    remove_checkpoints([checkpoint])
    (folder / "config.json").touch()
    with monkeypatch.context() as patch:
        patch.setattr(remote_outputs, "upload", fail_to_upload)
        with pytest.raises(InputError, match="no answer"):
            output.upload_run()
    check_files(stored / "checkpoint-4")
    output.upload_run()
    assert list_files(stored) == {"config.json"}


def fail_to_upload(file, url):
    raise InputError("no answer.")


@pytest.mark.slow
def test_training_goes_on_without_the_bucket(in_bucket, bucket, capsys, caplog, monkeypatch):
    in_bucket |= {"max_steps": 4, "save_steps": 2}
    stored = bucket.folder / "runs/run"
    with monkeypatch.context() as patch:
        patch.setattr(remote_outputs, "upload", fail_to_upload)
        assert run(in_bucket) == 2
    assert "no answer. The upload will be retried at the next checkpoint." in caplog.text
    assert not list(stored.glob("checkpoint-*/*")) and not (stored / "config.json").exists()
    assert run(in_bucket) == 0
    assert "after checkpoint-4" in capsys.readouterr().out
    assert {path.parent.name for path in stored.glob("*/manifest.json")} == {"checkpoint-2", "checkpoint-4"}
    assert (stored / "config.json").exists()


@pytest.mark.slow
def test_fine_tuning_and_what_follows_in_a_bucket(bucket, small_run, tmp_path, capsys, caplog, monkeypatch):
    url, folder = bucket.url, bucket.folder
    rows = [f"w{index % 2}a w{index % 2}b\t{index % 2}" for index in range(40)]
    (folder / "data").mkdir()
    for name in ("train", "dev"):
        (folder / f"data/{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]))
    shutil.copytree(small_run["tokenizer_name"], folder / "tok")

    def command(text: str) -> int:
        return snugbert_command(text.replace("BUCKET", url).split())

    data = "--train_file BUCKET/data/train.tsv --validation_file BUCKET/data/dev.tsv --use_cpu true"
    model = "--config_name tiny --tokenizer_name BUCKET/tok --max_steps 2"
    for machine in ("first", "other"):  # a finished run is not repeated on another machine
        monkeypatch.setattr(staging, "HF_HOME", str(tmp_path / machine))
        assert command(f"glue {model} {data} --seeds 2 --output_dir BUCKET/cls") == 0
    assert caplog.text.count("run 1 of 2") == 1
    assert {"results.json", "model.safetensors", "plan.json"} <= list_files(folder / "cls")

    predict = "predict --model_name_or_path BUCKET/cls --input_file BUCKET/data/d*.tsv --output_file BUCKET/out.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(remote_outputs, "upload", fail_to_upload)
        assert command(predict) == 2 and not (folder / "out.jsonl").exists()
    assert command(predict) == 0
    assert "continuing after 40 rows" in caplog.text
    assert (folder / "out.jsonl").read_text().count("\n") == 40
    assert command(predict) == 2

    assert command("export BUCKET/cls BUCKET/bert --to bert") == 0
    assert f"to {url}/bert\n" in capsys.readouterr().err
    text = f"--validation_file {small_run['validation_file']} --lines_are_sentences true"
    assert command(f"evaluate --config_name tiny --tokenizer_name BUCKET/tok {text} --output_dir BUCKET/scores") == 0
    assert (folder / "scores/results.json").exists()
    for file in folder.rglob("*"):
        assert file.is_dir() or str(tmp_path).encode() not in file.read_bytes(), file


def test_credentials_in_a_url_are_in_no_file_and_no_message(in_bucket, capsys, caplog):
    url = "memory://name:pa55word@host/run"
    store = fsspec.filesystem("memory")
    try:
        assert run(in_bucket, output_dir=url, max_steps=2, save_steps=1, resume_from_checkpoint="false") == 0
        files = store.find(url, detail=False)
        assert len(files) > 20
        assert not [file for file in files if b"pa55word" in store.cat_file(file)]
    finally:
        store.store.clear()
    assert "pa55word" not in str(capsys.readouterr()) + caplog.text
