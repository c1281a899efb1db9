"""Whole training runs: without dropout, SnugBERT and stock BERT learn the same."""

import json
import re
import subprocess

import pytest
from markdown_tables import cells
from parity import without_padding
from transformers import BertForQuestionAnswering

from snugbert_cli import main as snugbert_command

pytestmark = pytest.mark.long


def test_both_sides_of_a_pretraining_run_learn_the_same(data_dir, minilm, tmp_path, monkeypatch, capsys):
    import pretraining_run

    text = str(data_dir / "sample_text/sample_text.txt")
    argv = ["--train_file", text, "--validation_file", text, "--tokenizer_name", str(minilm), "--config_name", "tiny"]
    argv += ["--config_overrides", "hidden_dropout_prob=0,attention_probs_dropout_prob=0", "--max_seq_length", "32"]
    argv += ["--max_steps", "4", "--eval_steps", "2", "--logging_steps", "1", "--per_device_train_batch_size", "8"]
    argv += ["--max_eval_samples", "20", "--learning_rate", "1e-3", "--use_cpu", "--output_dir", str(tmp_path)]
    # In this process.
    monkeypatch.setattr(pretraining_run.subprocess, "run", lambda command, check: pretraining_run.main(command[2:]))
    pretraining_run.main(argv)
    table = capsys.readouterr().out
    logs = {
        side: [json.loads(line) for line in (tmp_path / f"{side}.jsonl").read_text().splitlines()]
        for side in ("ours", "stock")
    }
    assert len(logs["ours"]) == len(logs["stock"]) == 4 + 3
    for ours, stock in zip(*logs.values(), strict=True):
        for name in ours.keys() - {"seconds"}:
            assert ours[name] == pytest.approx(stock[name], rel=1e-4), name
    assert logs["ours"][0]["eval_mlm_loss"] - logs["ours"][-2]["eval_mlm_loss"] > 0.01
    ratio = logs["stock"][-2]["seconds"] / logs["ours"][-2]["seconds"]
    assert f"Stock's time / ours: {ratio:.2f}." in table
    assert re.search(rf"masked token loss, nats \| {logs['ours'][-2]['eval_mlm_loss']:.3f} \|", table)
    assert (tmp_path / "pretraining_run.png").exists()

    # If the numbers of tokens differ, the examples differ. Then nothing is compared.
    logs["stock"][1]["tokens"] += 1
    (tmp_path / "stock.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logs["stock"]))
    with pytest.raises(SystemExit, match="belong to different steps or examples"):
        pretraining_run.report(argv)


def test_both_sides_of_a_finetuning_job_do_the_same_work(little_data, tiny_model, tmp_path, monkeypatch):
    """Equal losses and scores imply equal settings, batches and metrics."""
    import finetuning_run
    import stock_finetuning

    measure, results = finetuning_run.run, {}

    def run(command, **process):
        """Runs a side in this process."""
        if command[1] == "-m":
            assert snugbert_command(command[3:]) == 0
        else:
            stock_finetuning.main(command[2:])
        return subprocess.CompletedProcess(command, 0)

    def note(side, name, seed, args):
        results[name, side] = measure(side, name, seed, args)
        return results[name, side]

    monkeypatch.setattr(finetuning_run, "run", note)
    monkeypatch.setattr(finetuning_run.subprocess, "run", run)
    monkeypatch.setattr(BertForQuestionAnswering, "forward", without_padding(BertForQuestionAnswering.forward))
    tasks = ["mrpc", "squad"]
    argv = ["--data_dir", str(little_data), "--model_name_or_path", tiny_model, "--use_cpu", "--epochs", "1"]
    argv += ["--max_train_samples", "48", "--max_eval_samples", "24", "--batch_size", "8", "--learning_rate", "1e-3"]
    finetuning_run.main([*argv, "--output_dir", str(tmp_path), "--seeds", "1", "--tasks", *tasks])
    _, *rows = cells((tmp_path / "finetuning_run.md").read_text())
    for task, row in zip(tasks, rows, strict=True):
        ours, stock = results[task, "ours"], results[task, "stock"]
        assert ours["steps"] == stock["steps"] >= 6
        assert (ours["train_loss"], ours["score"]) == pytest.approx((stock["train_loss"], stock["score"]), rel=1e-4)
        ratio = f"{stock['seconds'] / ours['seconds']:.2f}"
        assert row[2:5] == [f"{ours['seconds']:.1f}", f"{stock['seconds']:.1f}", f"{ratio} ({ratio}-{ratio})"]
        assert row[-2:] == [f"{ours['score']:.2f}", f"{stock['score']:.2f}"]
