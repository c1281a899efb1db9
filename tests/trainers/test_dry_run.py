"""`--dry_run`: what it prints, and that it changes nothing."""

import shutil
import tempfile
from pathlib import Path

import pytest
from glue_examples import VOCABULARY, arguments, sentences
from pretraining_command import run
from tables import write_csv

from snugbert import SnugBertTokenizer
from snugbert_cli import main as snugbert_command

pytestmark = pytest.mark.usefixtures("one_thread")


def read_plan(capsys) -> dict[str, str]:
    text = capsys.readouterr().out.rpartition("is unchanged.\n\n")[2]
    return {line[:12].strip(): line[12:] for line in text.splitlines()}


def list_files(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
def test_a_dry_run_of_pretraining_changes_nothing(small_run, tmp_path, capsys, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    small_run = small_run | {"save_steps": 4, "eval_strategy": "steps", "eval_steps": 3, "phases": "24:50%:mlm,40:50%"}
    folder = tmp_path / "with"
    assert run(small_run, output_dir=folder, dry_run="true") == 0
    plan = read_plan(capsys)
    assert not folder.exists()
    assert plan.keys() == {"phase 1", "phase 2", "memory", "time"}
    assert plan["phase 1"].startswith("4 steps, ") and plan["phase 2"].endswith(" s each")
    assert run(small_run, output_dir=folder) == 0
    shutil.rmtree(folder / "checkpoint-8")
    before = list_files(folder)
    capsys.readouterr()
    assert run(small_run, output_dir=folder, dry_run="true") == 2  # as the run itself
    assert "already contains a run" in capsys.readouterr().err
    assert run(small_run, output_dir=folder, dry_run="true", resume_from_checkpoint="true") == 0
    plan = read_plan(capsys)
    for number, name in ((0, "phase 1"), (4, "phase 2")):
        assert plan[name].startswith(f"4 steps, {number} left after {folder / 'checkpoint-4'}, ")
    for changed in ({"mlm_probability": 0.3}, {"learning_rate": 0.3}):  # as the run itself
        assert run(small_run | changed, output_dir=folder, dry_run="true", resume_from_checkpoint="true") == 2
    assert list_files(folder) == before and not any(temporary.iterdir())


def test_a_dry_run_of_fine_tuning_changes_nothing(tmp_path, capsys):
    SnugBertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)}).save_pretrained(tmp_path / "tokenizer")
    for seed, name in enumerate(("train", "dev", "test")):
        write_csv(tmp_path / f"{name}.csv", sentences(96, seed))
    more = {"test_file": tmp_path / "test.csv", "num_train_epochs": 2, "gradient_accumulation_steps": 2}
    command = ["glue", *arguments(tmp_path, tmp_path / "run", **more, per_device_train_batch_size=8), "--dry_run"]
    assert snugbert_command(command) == 0
    plan = read_plan(capsys)
    assert not (tmp_path / "run").exists()
    assert plan.keys() == {"training", "memory", "time"}
    assert plan["training"].startswith("12 steps, ") and plan["time"].startswith("about ")
    assert snugbert_command([*command, "--seeds", "3", "--early_stopping_patience", "1", "--calibrate"]) == 0
    assert read_plan(capsys)["runs"].startswith("3, about ")
    assert not (tmp_path / "run").exists()
