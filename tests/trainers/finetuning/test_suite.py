"""All tasks of GLUE in one command: the table, the files for the leaderboard, interrupted suites."""

import json
import logging
import re
import shutil
from collections.abc import Iterable
from itertools import islice, repeat
from pathlib import Path

import pytest
from glue_examples import LARGER, NO_FILES, WORDS, arguments, read_predictions, sentences
from markdown_tables import cells

from snugbert.cli.main import run_command
from snugbert.errors import InputError
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.suite import make_task_arguments

pytestmark = pytest.mark.usefixtures("one_thread")


def write_tsv(file: Path, number: int, header: bool = True, **columns: Iterable[object]) -> None:
    """Writes the first `number` rows."""
    lines = [*([list(columns)] if header else []), *islice(zip(*columns.values(), strict=False), number)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))


@pytest.fixture
def glue_folder(tmp_path) -> Path:
    """CoLA, MNLI with the diagnostic set, and QQP, in the format of gluebenchmark.com.

    The test examples are the first of dev, so that predictions can be compared with labels.
    """
    folder = tmp_path / "glue_data"
    digits, names = {"cheerful": 1, "gloomy": 0}, {"cheerful": "entailment", "gloomy": "contradiction"}
    for split, number, seed in (("train", 160, 1), ("dev", 30, 2), ("test", 30, 2)):
        rows = sentences(number, seed)
        texts, ids, same = [row["sentence"] for row in rows], range(number), repeat("it was")
        one_or_zero, gold = ([kinds[row["label"]] for row in rows] for kinds in (digits, names))
        duplicate, inference = {"is_duplicate": one_or_zero}, {"label1": repeat("x"), "gold_label": gold}
        if split == "test":
            duplicate, inference = {}, {}
            write_tsv(folder / "CoLA/test.tsv", 30, index=ids, sentence=texts)
        else:
            columns = {"source": repeat("x"), "label": one_or_zero, "star": repeat(""), "sentence": texts}
            write_tsv(folder / f"CoLA/{split}.tsv", 16, header=False, **columns)
        write_tsv(folder / f"QQP/{split}.tsv", 17, id=ids, question1=texts, question2=same, **duplicate)
        for suffix, part in [("", 160)] if split == "train" else [("_matched", 30), ("_mismatched", 7)]:
            columns = {"index": ids, "sentence1": texts, "sentence2": same, **inference}
            write_tsv(folder / f"MNLI/{split}{suffix}.tsv", part, **columns)
    texts = [f"a {word} plot" for label in WORDS for word in WORDS[label]]
    gold = [names[label] for label in WORDS for _ in WORDS[label]]
    columns = {"Premise": texts, "Hypothesis": repeat("it was"), "Label": gold}
    write_tsv(folder / "diagnostic/diagnostic-full.tsv", 6, **columns)
    # It comes before the usual file, because it has labels.
    write_tsv(folder / "MNLI/diagnostic.tsv", 6, index=range(6), sentence1=texts, sentence2=repeat("it was"))
    return folder


@pytest.mark.slow
def test_an_interrupted_suite_continues(glue_folder, workshop, tmp_path, monkeypatch, caplog, capsys):
    output_dir = tmp_path / "out"
    asked = {"do_train": True, "do_eval": True, "do_predict": True, "save_steps": 15, "eval_strategy": "no"}
    command = arguments(workshop, output_dir, task_name="all", data_dir=glue_folder, **asked, **NO_FILES, **LARGER)
    training_step = FineTuningTrainer.training_step
    steps = []

    def noted(self, *args, **kwargs):
        steps.append((Path(self.args.output_dir).name, self.state.global_step))
        if steps[-1] == ("mnli", 17) and steps.count(("mnli", 17)) == 1:
            raise KeyboardInterrupt
        return training_step(self, *args, **kwargs)

    monkeypatch.setattr(FineTuningTrainer, "training_step", noted)
    with caplog.at_level(logging.WARNING, logger="snugbert"):
        with pytest.raises(KeyboardInterrupt):
            run_command("glue", command)
        run_command("glue", command)
    cola_steps, mnli_steps = [[step for name, step in steps if name == task] for task in ("cola", "mnli")]
    assert cola_steps == list(range(4))  # once
    assert mnli_steps == [*range(18), *range(15, 40)]  # continued from the checkpoint
    assert re.search(r"skipping SST-2\. Missing files: \S+/SST-2/train\.tsv, ", caplog.text)

    metrics = json.loads((output_dir / "results.json").read_text())
    assert list(metrics) == ["cola", "mnli", "qqp"]
    submission = {file.stem: file.read_text().splitlines() for file in (output_dir / "submission").iterdir()}
    lines = {"CoLA": 31, "MNLI-m": 31, "MNLI-mm": 8, "AX": 7, "QQP": 18}
    assert {name: len(rows) for name, rows in submission.items()} == lines
    gold = ["entailment", "contradiction"] * 15
    for name, set_name, number in (("MNLI-m", "eval", 30), ("MNLI-mm", "eval_mm", 7)):
        expected = [f"{i}\t{answer}" for i, answer in enumerate(gold[:number])]
        assert submission[name][1:] == expected and metrics["mnli"][set_name] == {"accuracy": 1.0}
        rows = read_predictions(output_dir / "mnli" / f"{set_name}_predictions.jsonl")
        assert [(row["premise"], row["hypothesis"], row["label"]) for row in rows] == [
            (row["sentence"], "it was", label) for row, label in zip(sentences(number, 2), gold, strict=False)
        ]
    gold = ["entailment"] * 3 + ["contradiction"] * 3
    assert submission["AX"][1:] == [f"{i}\t{answer}" for i, answer in enumerate(gold)]
    assert metrics["mnli"]["predict_ax"] == {"matthews_correlation": 1.0}

    capsys.readouterr()
    before = len(steps)
    run_command("glue", command)  # everything is done but the table
    assert (output_dir / "results.md").read_text() in capsys.readouterr().out and len(steps) == before
    with pytest.raises(InputError, match=r"cola.* has other settings\.\n.*\n(.*\n)*  --learning_rate "):
        run_command("glue", [*command, "--learning_rate", "1e-3"])
    capsys.readouterr()
    run_command("glue", [*command, "--learning_rate", "1e-4", "--overwrite_output_dir", "--dry_run"])
    plans = re.findall("^training    (.*),", capsys.readouterr().out, re.MULTILINE)
    assert plans == ["4 steps", "40 steps", "8 steps"]  # all from the beginning


@pytest.mark.slow
def test_the_suite_over_seeds(glue_folder, workshop, tmp_path, capsys):
    shutil.rmtree(glue_folder / "MNLI")
    some = {"task_name": "all", "data_dir": glue_folder, "seeds": 2, "max_steps": 4, **NO_FILES, **LARGER}
    command = arguments(workshop, tmp_path / "out", **some)
    run_command("glue", command)
    _, *tables = re.split("The best run of each task|Means over the seeds", capsys.readouterr().out)
    best, means = (dict(zip(*cells(table)[:2], strict=True)) for table in tables)
    all_scores = []
    for folder, task, metric in (("cola", "CoLA", "matthews_correlation"), ("qqp", "QQP", "f1")):
        results = json.loads((tmp_path / "out" / folder / "results.json").read_text())
        scores = results["sweep"]["best_setting"]["scores"]
        assert len(scores) == 2 and results["metrics"]["eval"][metric] == max(scores)
        assert (best[task], means[task]) == (f"{100 * max(scores):.1f}", f"{50 * sum(scores):.1f}")
        all_scores += scores
    average = 50 * (max(all_scores[:2]) + max(all_scores[2:]))
    assert best != means and float(best["average"]) == pytest.approx(average, abs=0.1)
    search = tmp_path / "search.yaml"
    for flag in ("class_weights", "distillation_weight"):
        search.write_text(f"settings: {{{flag}: [1.0]}}")
        with pytest.raises(InputError, match=f"--{flag}"):
            run_command("glue", [*command, "--sweep", str(search), "--overwrite_output_dir"])
        assert (tmp_path / "out" / "results.json").exists()  # a refused command removes nothing


def test_each_task_of_the_suite_has_a_name_on_the_hub(tmp_path):
    args = FineTuningArguments(output_dir=str(tmp_path / "suite"))
    assert make_task_arguments(args, "cola").hub_model_id == "suite-cola"
    args.hub_model_id = "me/glue"
    assert make_task_arguments(args, "rte").hub_model_id == "me/glue-rte"
