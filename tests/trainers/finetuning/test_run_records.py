"""The output folder of a sweep: what may be continued or replaced, and what may be published."""

import dataclasses
import json

import pytest
from finetuning_examples import arguments, prepare_counting

from snugbert.errors import InputError
from snugbert.tasks.task_arguments import GlueDataArguments
from snugbert.trainers.finetuning import sweep
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments
from snugbert.trainers.finetuning.prepare_task import collect_data_settings
from snugbert.trainers.finetuning.run_records import prepare_folders

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def test_replacing_a_sweep_removes_only_what_sweeps_write(tokenizer, tmp_path):
    settings = {"sweep": "fixed", "max_steps": 1}
    sweep.run_sweep(prepare_counting(tokenizer), arguments(tmp_path, **settings))
    (run,) = (tmp_path / "runs").iterdir()
    for name in ("my_adapter.safetensors", "checkpoint-notes.txt"):
        (run / name).write_text("mine")
    (run / "checkpoint-notes").mkdir()
    sweep.run_sweep(prepare_counting(tokenizer), arguments(tmp_path, **settings, seeds=2))  # continues
    assert {"my_adapter.safetensors", "checkpoint-notes.txt", "checkpoint-notes"} <= {f.name for f in run.iterdir()}
    assert not list(run.glob("model*.safetensors"))

    theirs = tmp_path / "runs" / "batch-32_rate-3e-05_epochs-2_seed-1" / "results.json"
    mine = ("checkpoint-notes/a", "my_results.json", "eval_my_learning_curve.png", "cola/checkpoint-notes/a", "cola/a")
    mine += ("runs/mine/results.json", "runs/mine/model.safetensors", "runs/mine/checkpoint-1/a", "runs/batch-mine/a")
    for file in (*(tmp_path / name for name in mine), theirs):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    args = arguments(tmp_path, **settings, overwrite_output_dir=True)
    sweep.run_sweep(prepare_counting(tokenizer), args)
    prepare_folders("suite", {}, [tmp_path, tmp_path / "cola"], continues=False)  # as a suite does
    assert all((tmp_path / name).read_text() == "mine" for name in mine) and not theirs.exists()
    assert not (tmp_path / "results.json").exists() and not list((tmp_path / "runs").glob("batch-*_seed-*"))


def test_a_sweep_that_was_refused_may_be_corrected(tokenizer, tmp_path):
    with pytest.raises(InputError, match=r"--freeze_layers 99 is too large\. The model has \d+ layers?"):
        sweep.run_sweep(prepare_counting(tokenizer), arguments(tmp_path / "run", sweep="fixed", freeze_layers=99))
    sweep.run_sweep(prepare_counting(tokenizer), arguments(tmp_path / "run", sweep="fixed", max_steps=1))
    assert (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ("reinit_layers: [0, 99, 1]", "--reinit_layers 99 is too large"),
        ("freeze_layers: {low: 0, high: 99}, weight_decay: [0.1, 0.2]", "--freeze_layers 99 is too large"),
        ("freeze_layers: [0, 2], reinit_layers: [0, 2]", "--freeze_layers 2 and --reinit_layers 2 overlap"),
        ("lr_scheduler_type: [linear, cosine_with_min_lr]", "One of min_lr or min_lr_rate should be set"),
    ],
)
def test_a_value_that_does_not_fit_stops_a_sweep_at_once(settings, error, tokenizer, tmp_path):
    (tmp_path / "search.yaml").write_text(f"settings: {{{settings}}}")
    for dry_run in (False, True):
        args = arguments(tmp_path / "run", sweep=str(tmp_path / "search.yaml"), max_steps=1, dry_run=dry_run)
        with pytest.raises(InputError, match=error):
            sweep.run_sweep(prepare_counting(tokenizer), args)
    assert not (tmp_path / "run").exists()


def test_results_contain_no_local_paths(tokenizer, tmp_path):
    checkpoint = tmp_path / "secret" / "pretrained"
    checkpoint.mkdir(parents=True)
    model_args = FineTunedModelArguments(model_name_or_path=str(checkpoint))
    task = dataclasses.replace(prepare_counting(tokenizer), model_args=model_args)
    task.settings = collect_data_settings(GlueDataArguments(dataset_name=str(tmp_path / "secret")))
    folder = tmp_path / "run"
    given = {"seeds": 2, "max_steps": 1, "load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1}
    sweep.run_sweep(task, arguments(folder, **given, save_strategy="steps", save_steps=1))
    files = [file for file in folder.rglob("*") if file.suffix in (".json", ".md", ".jsonl")]
    assert {"plan.json", "results.json", "README.md", "trainer_state.json"} <= {file.name for file in files}
    assert [file.name for file in files if str(tmp_path) in file.read_text(encoding="utf-8")] == []
    assert json.loads((folder / "results.json").read_text())["model"] == "pretrained"
    other = FineTunedModelArguments(model_name_or_path=str(tmp_path / "secret"))
    with pytest.raises(InputError, match="\n  --model_name_or_path "):
        sweep.run_sweep(
            dataclasses.replace(task, model_args=other),
            arguments(folder, **given, save_strategy="steps", save_steps=1),
        )
