"""Whole training runs: without dropout, SnugBERT and stock BERT learn the same."""

import json
import re
import subprocess

import pytest
import torch
from markdown_tables import cells
from parity import without_padding
from transformers import BertConfig, BertForQuestionAnswering, BertModel, BertTokenizer

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


def test_finetuning_parity(little_data, tiny_model, capsys):
    import finetuning_parity

    command = ["ner", "--train_file", str(little_data / "conll2003/train.jsonl.gz")]
    command += ["--validation_file", str(little_data / "conll2003/valid.jsonl.gz")]
    command += ["--model_name_or_path", tiny_model]
    command += ["--num_train_epochs", "5", "--learning_rate", "5e-3", "--use_cpu", "--disable_tqdm", "True"]
    finetuning_parity.main(command)
    rows = [row for row in cells(capsys.readouterr().out) if row[0].startswith("eval")]
    assert [row[0] for row in rows] == [f"eval {name}" for name in ("precision", "recall", "f1", "accuracy")]
    assert rows[2][1] > "0.02" and all(row[1] == row[2] for row in rows)


def test_retrieval(little_data, minilm, tmp_path, capsys):
    import retrieval

    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 96}
    torch.manual_seed(0)  # for the same scores in every run
    BertModel(BertConfig(**sizes)).save_pretrained(tmp_path / "bert")
    BertTokenizer.from_pretrained(minilm).save_pretrained(tmp_path / "bert")
    command = ["--train_file", str(little_data / "squad/train-v1.1-first44.jsonl.gz")]
    command += ["--dev_file", str(little_data / "squad/dev-v1.1.jsonl.gz"), "--checkpoint", str(tmp_path / "bert")]
    command += ["--max_pairs", "48", "--max_questions", "40", "--rerank_questions", "12", "--batch_size", "16"]
    command += ["--learning_rate", "1e-3", "--reranker_learning_rate", "1e-3", "--num_train_epochs", "2"]
    retrieval.main([*command, "--rounds", "2", "--output_dir", str(tmp_path / "results")])
    rows = {row[0]: row[1:] for row in cells(capsys.readouterr().out)}
    scores = {name: [*map(float, row)] for name, row in rows.items() if re.search("@|loss", name)}
    times = {name: row for name, row in rows.items() if re.match("training, |encoding, |reranking", name)}
    assert len(scores) == 10 and len(times) == 5
    for name, (ours, stock) in scores.items():
        assert ours == pytest.approx(stock, abs=1e-3 if "loss" in name else 0.03), name
    assert scores["MRR@10, trained"] != scores["MRR@10, untrained"]
    assert all(float(ratio.split()[0]) > 0 for _, _, ratio in times.values())
