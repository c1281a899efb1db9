"""Output folders in a store."""

import re
from functools import partial
from pathlib import Path

import pytest

from snugbert.errors import InputError
from snugbert.files import LOCK_NAME, lock_file
from snugbert.storage import inputs as staging
from snugbert.storage import uploads as remote_outputs
from snugbert.storage.uploads import RemoteOutput, choose_output, find_output, write_output


@pytest.fixture
def output(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "HF_HOME", str(tmp_path / "home"))
    return find_output(choose_output(f"{bucket.url}/model"))


def list_folder(folder) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_command_sees_the_folder_and_what_it_changes_is_uploaded(bucket, output, monkeypatch, capsys):
    order = []

    def record(name, real, *arguments):
        order.append(f"{name} {arguments[-1].rpartition('/')[2]}")
        real(*arguments)

    for name in ("upload", "remove"):
        monkeypatch.setattr(remote_outputs, name, partial(record, name, getattr(remote_outputs, name)))
    stored = bucket.folder / "model"
    (stored / "checkpoint-5").mkdir(parents=True)
    for name in ("config.json", "old.bin", "notes.txt", "checkpoint-5/optimizer.pt"):
        (stored / name).write_text("before")

    def command():
        found = {name for name in list_folder(output.folder) if not name.startswith("_")}
        assert found == {"config.json", "old.bin", "notes.txt"}
        (output.folder / "old.bin").unlink()
        for name in ("config.json", "weights.bin", "_unfinished", "results.json"):
            (output.folder / name).write_text("after")
        (stored / "added.txt").write_text("by somebody else")

    write_output(output, command)
    assert list_folder(stored) == {
        **dict.fromkeys(("notes.txt", "checkpoint-5/optimizer.pt"), "before"),
        **dict.fromkeys(("config.json", "weights.bin", "results.json"), "after"),
        "added.txt": "by somebody else",
    }
    # The old folder is marked as incomplete first, and the new one as complete last.
    assert order[:2] == ["remove config.json", "remove old.bin"]
    assert order[2:] == ["upload weights.bin", "upload config.json", "upload results.json", "remove _lock"]
    assert not list_folder(output.folder)
    assert capsys.readouterr().err == f"uploaded 3 files to {bucket.url}/model\n"


def test_after_a_failed_upload_the_message_names_the_local_folder(output, bucket, monkeypatch):
    def command():
        for name in ("a", "b", "config.json"):
            (output.folder / name).write_text("text")

    def fail(file, url):
        if url.endswith("/b"):
            raise InputError("no answer.")
        real(file, url)

    real, stored = remote_outputs.upload, bucket.folder / "model"
    with monkeypatch.context() as patch:
        patch.setattr(remote_outputs, "upload", fail)
        with pytest.raises(InputError, match=r"no answer. Or copy the folder .*, the whole output, to s3:") as caught:
            write_output(output, command)
    assert list_folder(stored) == {"a": "text"}
    write_output(output, command)
    kept = Path(re.search("folder (.*), the whole", str(caught.value))[1])
    assert list_folder(stored) == list_folder(kept) == dict.fromkeys(("a", "b", "config.json"), "text")


def test_a_second_process_is_refused_until_the_first_ends(bucket, tmp_path):
    here, elsewhere = (RemoteOutput(tmp_path / name / "run", f"{bucket.url}/run") for name in ("here", "elsewhere"))
    lock = bucket.folder / "run/_lock"
    with here.lock():
        with pytest.raises(
            InputError, match=r"process \d+ on .* is running in s3://.*/run\. .* remove s3://.*/run/_lock"
        ):
            with elsewhere.lock():
                pass
        killed = lock.read_bytes()
    assert not lock.exists()
    with elsewhere.lock():
        pass
    lock.parent.mkdir(exist_ok=True)
    lock.write_bytes(killed)
    with pytest.raises(InputError, match="is running in"), elsewhere.lock():
        pass
    with here.lock():  # the machine of the killed process
        pass
    with elsewhere.lock():
        pass


def test_a_command_and_a_run_do_not_write_one_folder(output, bucket, tmp_path):
    with RemoteOutput(tmp_path / "elsewhere/model", output.url).lock():
        with pytest.raises(InputError, match=r"is running in s3://.*/model\. Wait until that process ends"):
            write_output(output, lambda: None)
    output.claim()
    optimizer = output.folder / "checkpoint-5/optimizer.pt"
    optimizer.parent.mkdir()
    optimizer.write_text("of a run whose upload failed")
    with pytest.raises(InputError, match=r"/model: a run on this machine is not uploaded yet"):
        write_output(output, lambda: None)
    assert optimizer.exists()


def test_a_run_that_removes_its_local_files_keeps_its_lock(output):
    with lock_file(output.folder / LOCK_NAME):
        (output.folder / "file").touch()
        output.clear()
        assert [path.name for path in output.folder.iterdir()] == [LOCK_NAME]


def test_a_lost_store_does_not_hide_the_error_that_ended_the_run(bucket, tmp_path, monkeypatch, caplog):
    def fail(url):
        raise InputError("no answer.")

    with pytest.raises(ZeroDivisionError), RemoteOutput(tmp_path, f"{bucket.url}/run").lock():
        monkeypatch.setattr(remote_outputs, "remove", fail)
        raise ZeroDivisionError
    assert "stays locked for other machines. no answer." in caplog.text
