"""The output folder of a run: what may be overwritten, and which checkpoint is resumed."""

import pytest
from transformers import TrainerState, TrainingArguments

from snugbert.errors import InputError
from snugbert.trainers.output_folder import check_output_dir, find_newest_checkpoint, list_run_files, remove_run


def write_checkpoint(folder, step: int, complete: bool = True) -> str:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "optimizer.pt").touch()
    if complete:
        TrainerState(global_step=step).save_to_json(str(checkpoint / "trainer_state.json"))
    return str(checkpoint)


def arguments(folder, resume: str | None = None) -> TrainingArguments:
    return TrainingArguments(str(folder), use_cpu=True, resume_from_checkpoint=resume)


def test_the_newest_complete_checkpoint_is_resumed(tmp_path, caplog):
    write_checkpoint(tmp_path, 9)
    newest = write_checkpoint(tmp_path, 10)
    write_checkpoint(tmp_path, 20, complete=False)
    assert str(find_newest_checkpoint(tmp_path)) == newest
    assert f"skipping {tmp_path / 'checkpoint-20'}, which is not a complete checkpoint" in caplog.text
    assert check_output_dir(arguments(tmp_path, "true"), overwrite=False) == newest
    # With nothing to resume, the same command starts a run.
    assert check_output_dir(arguments(tmp_path / "new", "true"), overwrite=False) is None


def test_a_run_is_not_overwritten_by_accident(tmp_path):
    write_checkpoint(tmp_path, 10)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match="already contains a run"):
        check_output_dir(arguments(tmp_path), overwrite=False)
    with pytest.raises(InputError, match="is not a complete checkpoint"):
        check_output_dir(arguments(tmp_path, str(tmp_path / "checkpoint-11")), overwrite=False)
    assert check_output_dir(arguments(tmp_path), overwrite=True) is None
    remove_run(tmp_path)
    assert list_run_files(tmp_path) == [] and (tmp_path / "notes.txt").exists()
