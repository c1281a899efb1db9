"""Copies of inputs that URLs name."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from snugbert.cli.arguments import argument
from snugbert.cli.parser import parse_arguments
from snugbert.errors import InputError
from snugbert.storage import inputs as staging
from snugbert.storage import uploads as remote_outputs
from snugbert.storage.inputs import check_names, download_files, stage


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A new folder for the copies."""
    monkeypatch.setattr(staging, "HF_HOME", str(tmp_path / "home"))


def write(folder, **texts: str) -> None:
    for name, text in texts.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    time.sleep(0.02)  # rclone remembers sizes and times for a millisecond


def test_keys_of_objects_stay_below_the_local_folder(tmp_path):
    check_names(["a..b", "a/..b/c", ""], "s3://bucket")
    for name in ("/etc/passwd", "..", "../a", "a/../../b", "a/.."):
        with pytest.raises(InputError, match=re.escape(f"the name '{name}' points outside the folder")):
            download_files("s3://bucket", dict.fromkeys(["a", name]), tmp_path)


def test_a_file_is_copied_once_and_again_when_it_changes(bucket, monkeypatch, capsys):
    monkeypatch.setattr(staging, "LARGE", 0)
    write(bucket.folder, data__sst2__train="one")
    url = f"{bucket.url}/data/sst2/train"
    with ThreadPoolExecutor(4) as pool:  # as the processes of a machine
        copies = set(pool.map(lambda _: stage(url, "--train_file")[0], range(4)))
    (copy,) = copies
    assert copy.read_text() == "one" and copy.parts[-2:] == ("sst2", "train")
    assert capsys.readouterr().err == f"copying {url} (3B)\n"
    write(bucket.folder, data__sst2__train="two")
    (changed,) = stage(url, "--train_file")
    assert changed.read_text() == "two" and copy.read_text() == "one"


def test_a_folder_is_copied_without_checkpoints_and_again_when_it_changes(bucket, monkeypatch, capsys):
    write(bucket.folder, run__config="c1", run__weights="w", run__1_Pooling__config="p")
    write(bucket.folder, **{"run__checkpoint-5__optimizer": "large", "run___lock": "{}"})
    monkeypatch.setattr(staging, "LARGE", 3)
    (folder,) = stage(f"{bucket.url}/run", "--model_name_or_path")
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {"config", "weights", "1_Pooling/config"} and folder.name == "run"
    assert capsys.readouterr().err == f"copying {bucket.url}/run (4B)\n"
    write(bucket.folder, run__config="c2")
    (changed,) = stage(f"{bucket.url}/run/", "--model_name_or_path")
    assert (changed / "config").read_text() == "c2" and (folder / "config").read_text() == "c1"
    # A checkpoint to resume from keeps its optimizer.
    (checkpoint,) = stage(f"{bucket.url}/run/checkpoint-5", "--resume_from_checkpoint")
    assert (checkpoint / "optimizer").exists()
    # A folder of a run that wrote no model.
    write(bucket.folder, **{"killed__checkpoint-5__optimizer": "large"})
    with pytest.raises(InputError, match=r"--model_name_or_path: s3://.*/killed does not exist"):
        stage(f"{bucket.url}/killed", "--model_name_or_path")


def test_a_folder_that_changes_while_it_is_copied_is_refused(bucket, monkeypatch):
    write(bucket.folder, run__config="c1", run__weights="w1")
    real = staging.download_files

    def change_and_download(*args):
        write(bucket.folder, run__config="c2", run__weights="w2")
        real(*args)

    with monkeypatch.context() as patch, pytest.raises(InputError, match=r"/run/\w+ changed while it was read"):
        patch.setattr(staging, "download_files", change_and_download)
        stage(f"{bucket.url}/run", "--init")
    (folder,) = stage(f"{bucket.url}/run", "--init")
    assert [(folder / name).read_text() for name in ("config", "weights")] == ["c2", "w2"]


def test_arguments_get_local_paths(bucket, tmp_path):
    @dataclass
    class Arguments:
        train_file: list[str] = argument([], opens_urls=True)
        pairs_file: list[str] = field(default_factory=list)
        test_file: str | None = None
        output_dir: str | None = None
        output_file: str | None = None
        resume_from_checkpoint: str | None = None

    def parse(*argv: str) -> Arguments:
        return parse_arguments([Arguments], list(argv), "test")[0]

    local = tmp_path / "local.jsonl"
    local.touch()
    write(bucket.folder, a="1", b="2", **{"settings.yaml": f"test_file: {bucket.url}/a\n"})
    args = parse(
        "--config", f"{bucket.url}/settings.yaml", "--train_file", f"{bucket.url}/a", "--pairs_file", str(local)
    )
    assert (args.train_file, args.pairs_file, args.test_file[-2:]) == ([f"{bucket.url}/a"], [str(local)], "/a")
    args = parse("--pairs_file", f"{bucket.url}/[ab]", str(local))
    assert [name.rpartition("/")[2] for name in args.pairs_file] == ["a", "b", "local.jsonl"]
    assert len(parse("--pairs_file", f"{bucket.url}/?").pairs_file) == 2
    args = parse("--output_dir", f"{bucket.url}/run/", "--resume_from_checkpoint", f"{bucket.url}/run/checkpoint-5/")
    assert args.resume_from_checkpoint == f"{args.output_dir}/checkpoint-5" and "://" not in args.output_dir
    for argv, message in (
        (("--test_file", f"{bucket.url}/*"), r"--test_file: s3://.*/\* matches 3 files"),
        (("--test_file", f"{bucket.url}/c"), "--test_file: s3://.*/c does not exist"),
        (("--output_dir", "s3://"), "--output_dir: s3:// is incomplete. Use a URL like s3://bucket/folder"),
        (("--output_file", f"{bucket.url}/out/"), "--output_file: .*/out/ is incomplete"),
    ):
        with pytest.raises(InputError, match=message):
            parse(*argv)


def test_local_paths_have_no_credentials():
    folder = remote_outputs.choose_output("memory://name:secret@host/run?key=secret")
    assert "secret" not in str(folder) and str(remote_outputs.find_output(folder)) == "memory://host/run"
