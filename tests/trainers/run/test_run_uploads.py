"""Uploads to the Hub, during pretraining and at its end."""

import os
from concurrent.futures import Future
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from huggingface_hub.utils import filter_repo_objects
from synthetic import make_trainer

from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer


def start_push(self, token=None, private=None) -> None:
    self.hub_model_id, self.push_in_progress = "someone/something", None


@pytest.mark.parametrize(
    ("settings", "electra", "folders"),
    [
        ({"hub_strategy": "checkpoint"}, True, ["", "last-checkpoint", "", "last-checkpoint", ""]),
        ({"hub_strategy": "all_checkpoints"}, False, ["", "checkpoint-1", "", "checkpoint-2", ""]),
        ({"hub_strategy": "end"}, False, [""]),
        ({"push_to_hub": False}, False, [""]),
    ],
)
def test_checkpoints_are_uploaded_when_they_are_complete(settings, folders, electra, tmp_path, monkeypatch):
    """With the card and the plot of the run, and without the arguments of the trainer, which logs contain, too."""
    uploads = []
    private = {"SST-2.tsv", "predict_null_odds.json", "predict_results.txt", "eval_predictions.jsonl"}
    for name in ("events.out.tfevents.1", *private):
        (tmp_path / name).touch()

    def upload(self, *, folder_path, path_in_repo="", ignore_patterns=(), run_as_future=False, **kwargs):
        files = [path.relative_to(folder_path).as_posix() for path in Path(folder_path).rglob("*") if path.is_file()]
        uploads.append((path_in_repo, set(filter_repo_objects(files, ignore_patterns=ignore_patterns))))
        done: Future = Future()
        done.set_result(None)
        return done

    monkeypatch.setattr(PretrainingTrainer, "init_hf_repo", start_push)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    options = {"push_to_hub": True, "max_steps": 2, "save_steps": 1, "save_total_limit": 1}
    trainer = make_trainer(tmp_path, electra=electra, **options | settings)
    trainer.train()
    trainer.push_to_hub()
    assert [folder for folder, _ in uploads] == folders
    models = {"model.safetensors", *["generator/model.safetensors"] * electra}
    for folder, files in uploads:
        assert models <= files and not {"training_args.bin", "events.out.tfevents.1", *private} & files
        assert ({"manifest.json", "optimizer.pt"} <= files) == bool(folder)
        assert ("README.md" in files) == ("training.png" in files) == (not folder)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("_")]
