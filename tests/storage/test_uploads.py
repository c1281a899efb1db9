"""Output folders in a store."""

from pathlib import Path

import pytest

from snugbert.errors import InputError
from snugbert.storage import inputs as staging
from snugbert.storage import owner as store_lock
from snugbert.storage import uploads as remote_outputs
from snugbert.storage.uploads import RemoteOutput, choose_output, find_output, hold_store_lock, write_output


@pytest.fixture
def output(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(store_lock, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(store_lock, "BEAT_SECONDS", 0.1)
    return find_output(choose_output(f"{bucket.url}/model"))


def list_folder(folder) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_command_sees_the_folder_and_what_it_changes_is_uploaded(bucket, output, monkeypatch):
    order = []
    for name in ("upload", "remove"):
        real = getattr(remote_outputs, name)
        monkeypatch.setattr(
            remote_outputs, name, lambda *args, real=real, name=name: (order.append((name, args[-1])), real(*args))[1]
        )
    stored = bucket.folder / "model"
    (stored / "checkpoint-5").mkdir(parents=True)
    for name in ("config.json", "old.bin", "notes.txt", "checkpoint-5/optimizer.pt"):
        (stored / name).write_text("before")

    def command():
        own = {"_owner", "_stored.json", "_lock"}
        assert set(list_folder(output.folder)) - own == {"config.json", "old.bin", "notes.txt"}
        (output.folder / "old.bin").unlink()
        for name in ("config.json", "weights.bin", "_unfinished", "results.json"):
            (output.folder / name).write_text("after")

    write_output(output, "command", command)
    assert list_folder(stored) == {
        **dict.fromkeys(("notes.txt", "checkpoint-5/optimizer.pt"), "before"),
        **dict.fromkeys(("config.json", "weights.bin", "results.json"), "after"),
    }
    # The old folder is marked as incomplete first, and the new one as complete last.
    shown = [f"{name} {url.rpartition('/')[2]}" for name, url in order]
    removed, uploaded = shown[:3], shown[3:]
    assert set(removed) == {"remove old.bin", "remove config.json", "remove results.json"}
    assert uploaded == ["upload weights.bin", "upload config.json", "upload results.json"]
    assert not output.folder.exists()


def test_after_a_failed_upload_the_same_command_uploads_the_rest(output, bucket, monkeypatch):
    def command():
        runs.append(1)
        for name in ("a", "b", "config.json"):
            (output.folder / name).write_text("text")

    def fail(file, url):
        if url.endswith("/b"):
            raise InputError("no answer")
        uploads.append(url.rpartition("/")[2])
        real(file, url)

    runs, uploads, real = [], [], remote_outputs.upload
    with monkeypatch.context() as patch, pytest.raises(InputError, match="no answer"):
        patch.setattr(remote_outputs, "upload", fail)
        write_output(output, "command", command)
    assert list_folder(bucket.folder / "model") == {"a": "text"} and len(runs) == 1
    monkeypatch.setattr(remote_outputs, "upload", lambda file, url: (uploads.append(url[-1]), real(file, url)))
    write_output(output, "command", command)
    assert list_folder(bucket.folder / "model").keys() == {"a", "b", "config.json"} and len(runs) == 1
    assert uploads == ["a", "b", "n"]
    write_output(output, "another command", command)
    assert len(runs) == 2


def test_a_command_and_a_run_do_not_write_one_folder(output, bucket, tmp_path):
    with hold_store_lock(RemoteOutput(tmp_path / "elsewhere/model", output.url)):
        with pytest.raises(InputError, match=r"is running in s3://.*/model\. Wait until that process ends"):
            write_output(output, "command", lambda: None)
    optimizer = output.folder / "checkpoint-5/optimizer.pt"
    optimizer.parent.mkdir()
    optimizer.write_text("of a run whose upload failed")
    with pytest.raises(InputError, match=r"/model: a run has checkpoints on this machine that may not be uploaded"):
        write_output(output, "command", lambda: None)
    assert optimizer.exists()


def test_a_folder_of_other_data_is_not_downloaded(output, bucket, monkeypatch):
    monkeypatch.setattr(remote_outputs, "MOST_BYTES", 10)
    (bucket.folder / "model").mkdir()
    (bucket.folder / "model/text.parquet").write_text("much text")
    write_output(output, "command", lambda: None)
    (bucket.folder / "model/more.parquet").write_text("more text")
    with pytest.raises(InputError, match=r"/model contains 2 other files \(18B\). Choose another folder"):
        write_output(output, "command", lambda: None)


def test_a_kill_between_local_removals_removes_nothing_from_the_store(output, bucket, monkeypatch):
    def glob_and_die(folder, pattern, glob=Path.glob):
        yield from (path for path in glob(folder, pattern) if not path.name.startswith("_"))
        raise KeyboardInterrupt

    def command():
        (output.folder / "config.json").write_text("text")

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(output, "download", lambda: None)  # it removes files, too
        patch.setattr(Path, "glob", glob_and_die)
        write_output(output, "command", command)
    write_output(output, "command", command)
    assert list_folder(bucket.folder / "model") == {"config.json": "text"}
