"""Measurements of whole training runs. A finished step is not repeated, and a step with other settings is refused."""

import json
import re
import subprocess

import pytest
import torch
from benchmark_files import write_first_lines
from markdown_tables import cells
from parity import without_padding
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForQuestionAnswering,
    BertModel,
    BertTokenizer,
)

from snugbert import SnugBertConfig, SnugBertModel, SnugBertTokenizer
from snugbert.errors import InputError
from snugbert_cli import main as snugbert_command

pytestmark = pytest.mark.long


@pytest.mark.usefixtures("pictures")
def test_both_sides_of_a_pretraining_run_learn_the_same(data_dir, minilm, tmp_path, capsys):
    from pretraining_run import main

    text = str(data_dir / "sample_text/sample_text.txt")
    argv = ["--train_file", text, "--validation_file", text, "--tokenizer_name", str(minilm), "--config_name", "tiny"]
    argv += ["--config_overrides", "hidden_dropout_prob=0,attention_probs_dropout_prob=0", "--max_seq_length", "32"]
    argv += ["--max_steps", "4", "--eval_steps", "2", "--logging_steps", "1", "--per_device_train_batch_size", "8"]
    argv += ["--max_eval_samples", "20", "--learning_rate", "1e-3", "--use_cpu", "--output_dir", str(tmp_path)]
    logs = {}
    for side in ("ours", "stock"):
        main([*argv, "--side", side])
        logs[side] = [json.loads(line) for line in (tmp_path / f"{side}.jsonl").read_text().splitlines()]
    assert len(logs["ours"]) == len(logs["stock"]) == 4 + 3
    for ours, stock in zip(*logs.values(), strict=True):
        assert ours.keys() == stock.keys()
        for name in ours.keys() - {"seconds"}:
            assert ours[name] == pytest.approx(stock[name], rel=1e-4), name
    assert logs["ours"][0]["eval_mlm_loss"] - logs["ours"][-2]["eval_mlm_loss"] > 0.01

    (tmp_path / "command.json").write_text(json.dumps(argv))
    main(["--report", "--output_dir", str(tmp_path)])
    table = capsys.readouterr().out
    ratio = logs["stock"][-2]["seconds"] / logs["ours"][-2]["seconds"]
    assert f"Stock's time / ours: {ratio:.2f}." in table
    assert re.search(rf"masked token loss, nats \| {logs['ours'][-2]['eval_mlm_loss']:.3f} \|", table)
    assert (tmp_path / "pretraining_run.png").stat().st_size > 10_000

    # If the numbers of tokens differ, the examples differ. Then nothing is compared.
    logs["stock"][1]["tokens"] += 1
    (tmp_path / "stock.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logs["stock"]))
    with pytest.raises(SystemExit, match="belong to different steps or examples"):
        main(["--report", "--output_dir", str(tmp_path)])


def test_both_sides_of_a_finetuning_job_do_the_same_work(data_dir, minilm, tmp_path, capsys, monkeypatch):
    """Runs in this process without dropout. Equal losses and scores imply equal settings, batches and metrics."""
    import finetuning_run
    import stock_finetuning

    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    BertModel(BertConfig(**sizes, **no_dropout, initializer_range=0.2)).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(minilm).save_pretrained(tmp_path / "model")
    sides = []

    def run(command, **process):
        if command[1] == "-m":
            sides.append("ours")
            assert snugbert_command(command[3:]) == 0
        else:
            sides.append("stock")
            stock_finetuning.main(command[2:])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(finetuning_run.subprocess, "run", run)
    monkeypatch.setattr(BertForQuestionAnswering, "forward", without_padding(BertForQuestionAnswering.forward))
    tasks = ["mrpc", "conll2003", "squad"]
    argv = ["--data_dir", str(data_dir), "--model_name_or_path", str(tmp_path / "model"), "--use_cpu", "--epochs", "1"]
    argv += ["--max_train_samples", "48", "--max_eval_samples", "24", "--batch_size", "8", "--learning_rate", "1e-3"]
    argv += ["--output_dir", str(tmp_path / "run"), "--seeds", "1", "--tasks", *tasks]
    finetuning_run.main(argv)
    table = capsys.readouterr().out[-1500:]
    assert sides == ["stock", "ours"] * 3
    for task in tasks:
        ours, stock = (json.loads((tmp_path / f"run/{task}-{side}-42.json").read_text()) for side in ("ours", "stock"))
        assert ours["steps"] == stock["steps"] == 6
        assert (ours["train_loss"], ours["score"]) == pytest.approx((stock["train_loss"], stock["score"]), rel=1e-4)
        ratio = f"{stock['seconds'] / ours['seconds']:.2f}"
        numbers = f"| 6 | {ours['seconds']:.1f} | {stock['seconds']:.1f} | {ratio} ({ratio}-{ratio}) |"
        assert numbers in table and table.count(f"| {ours['score']:.2f} | {stock['score']:.2f} |")

    # Finished runs are not repeated, and not used for other settings.
    finetuning_run.main(argv)
    assert capsys.readouterr().out in table and len(sides) == 6
    with pytest.raises(SystemExit, match=r"mrpc-stock-42.json is from a run with different settings"):
        finetuning_run.main([*argv, "--bf16"])


def test_finetuning_parity(data_dir, minilm, tmp_path, capsys):
    import finetuning_parity

    config = SnugBertConfig.from_size("tiny", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    SnugBertModel(config).save_pretrained(tmp_path)
    SnugBertTokenizer.from_pretrained(minilm).save_pretrained(tmp_path)
    command = ["ner", "--train_file", write_first_lines(data_dir / "conll2003/train.jsonl.gz", 200, tmp_path)]
    command += ["--validation_file", write_first_lines(data_dir / "conll2003/valid.jsonl.gz", 100, tmp_path)]
    command += ["--model_name_or_path", str(tmp_path)]
    command += ["--num_train_epochs", "5", "--learning_rate", "2e-3", "--use_cpu", "--disable_tqdm", "True"]
    finetuning_parity.main(command)
    rows = [row for row in cells(capsys.readouterr().out) if row[0].startswith("eval")]
    assert [row[0] for row in rows] == [f"eval {name}" for name in ("precision", "recall", "f1", "accuracy")]
    assert rows[2][1] > "0.02" and all(row[1] == row[2] for row in rows)
    with pytest.raises(InputError, match="Stock Trainer does not support frozen layers"):
        finetuning_parity.main([*command, "--freeze_layers", "1"])


def test_retrieval(data_dir, minilm, tmp_path, capsys):
    """Equal scores, and a second call measures nothing again."""
    import retrieval

    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 96}
    torch.manual_seed(0)  # for the same scores in every run
    BertModel(BertConfig(**sizes)).save_pretrained(tmp_path / "bert")
    BertTokenizer.from_pretrained(minilm).save_pretrained(tmp_path / "bert")
    command = ["--train_file", str(data_dir / "squad/train-v1.1-first44.jsonl.gz")]
    command += ["--dev_file", str(data_dir / "squad/dev-v1.1.jsonl.gz"), "--checkpoint", str(tmp_path / "bert")]
    command += ["--max_pairs", "48", "--max_questions", "40", "--rerank_questions", "12", "--batch_size", "16"]
    command += ["--learning_rate", "1e-3", "--reranker_learning_rate", "1e-3", "--num_train_epochs", "2"]
    command += ["--output_dir", str(tmp_path / "results")]
    retrieval.main([*command, "--rounds", "2"])
    out = capsys.readouterr().out
    rows = cells(out)
    scores = {
        row[0]: [float(cell) for cell in row[1:]] for row in rows if len(row) == 3 and re.match(r"[\d.]", row[1])
    }
    times = {row[0]: row[1:] for row in rows if len(row) == 4 and re.match(r"\d", row[1])}
    assert len(scores) == 10 and len(times) == 5
    assert scores["recall@10, trained"][0] > scores["recall@10, untrained"][0]
    for name, (ours, stock) in scores.items():
        assert ours == pytest.approx(stock, abs=1e-3 if "loss" in name else 0.03), name
    trained = json.loads((tmp_path / "results/train-retriever-ours.json").read_text())["seconds"]
    assert times["training, retriever"][0] == f"{trained:.1f}"

    retrieval.main([*command, "--rounds", "3"])
    assert capsys.readouterr().out.splitlines()[4:] == out.splitlines()[4:]
    with pytest.raises(SystemExit, match=r"other settings \(dropout\)"):
        retrieval.main([*command, "--dropout", "0.1"])
