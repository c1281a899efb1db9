"""Measurements of whole training runs. A finished step is not repeated, and a step with other settings is refused."""

import json
import re
import signal
import subprocess

import numpy as np
import pytest
import torch
from benchmark_files import write_first_lines
from family_checkpoints import write_checkpoint
from parity import without_padding
from transformers import (
    AutoModelForPreTraining,
    AutoTokenizer,
    BertConfig,
    BertForQuestionAnswering,
    BertModel,
    BertTokenizer,
)

from snugbert import SnugBertConfig, SnugBertForPreTraining, SnugBertModel, SnugBertTokenizer
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
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| eval")]
    assert [row[0] for row in rows] == [f"| eval {name}" for name in ("precision", "recall", "f1", "accuracy")]
    assert rows[2][1] > "0.02" and all(row[1] == row[2].removesuffix(" |") for row in rows)
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
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("|")]
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


def test_electra_comparison(data_dir, steps, tmp_path, capsys, monkeypatch):
    """The recipes train with equal FLOPs. Finished steps are not repeated, and other settings are refused."""
    import electra_comparison

    monkeypatch.setattr(electra_comparison, "TASKS", {"rte": electra_comparison.TASKS["rte"]})
    monkeypatch.setattr(electra_comparison, "STEPS", ("pretraining", "rte"))
    vocabulary = (data_dir / "vocab/bert-base-uncased-vocab.txt").read_text().splitlines(keepends=True)
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok/vocab.txt").write_text("".join(vocabulary[:2000]))
    text = write_first_lines(data_dir / "wikitext2/valid.docs.txt.gz", 500, tmp_path)
    argv = ["--train_file", text, "--validation_file", text, "--tokenizer_name", str(tmp_path / "tok"), "--seeds", "1"]
    argv += ["--recipes", "mlm+nsp", "electra", "--config_name", "tiny", "--share", "0.4", "--data_dir", str(data_dir)]
    argv += ["--max_train_samples", "16", "--max_eval_samples", "8", "--output_dir", str(tmp_path / "out")]
    electra_comparison.main(argv)
    table = capsys.readouterr().out[-1500:]
    assert steps == ["mlm+nsp/1/pretraining", "mlm+nsp/1/rte", "electra/1/pretraining", "electra/1/rte"]
    flops = {
        recipe: json.loads((tmp_path / f"out/{recipe}/1/pretraining.json").read_text())["flops"]
        for recipe in ("mlm+nsp", "electra")
    }
    assert flops["electra"] == pytest.approx(flops["mlm+nsp"], rel=0.1)  # whole steps
    score = json.loads((tmp_path / "out/electra/1/rte.json").read_text())["score"]
    assert f"| {score:.1f} ({score:.1f}-{score:.1f}) |" in table

    electra_comparison.main(argv)
    assert len(steps) == 4 and capsys.readouterr().out[-500:] == table[-500:]
    with pytest.raises(SystemExit, match=r"other settings \(share\)"):
        electra_comparison.main([*argv, "--share", "0.2"])


def test_distillation(data_dir, tiny_bert, tmp_path, capsys, monkeypatch):
    """A teacher and its students. When all is finished, nothing is repeated."""
    import distillation

    commands = []

    def run(command, log):
        commands.append(command[3:])
        return snugbert_command(command[3:])

    monkeypatch.setattr("pretraining_ladder.run_process", run)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    argv = ["--model_name_or_path", tiny_bert, "--data_dir", str(data_dir), "--tasks", "mrpc", "--seeds", "2"]
    argv += ["--num_student_layers", "1", "--max_train_samples", "16", "--max_eval_samples", "8", "--use_cpu"]
    argv += ["--output_dir", str(tmp_path / "out"), "--num_train_epochs", "1", "--distillation_weight", "0.9"]
    distillation.main(argv)
    table = capsys.readouterr().out[-1200:]
    results = json.loads((tmp_path / "out/mrpc/student/results.json").read_text())
    assert results["sweep"]["best_setting"]["seeds"] == 2
    student = results["sweep"]["metrics"]["eval"]["f1"]
    assert f"| mrpc | student | f1 | {100 * student['mean']:.2f} ± {100 * student['std']:.2f} (" in table
    alone = json.loads((tmp_path / "out/mrpc/alone/results.json").read_text())["sweep"]["metrics"]["eval"]["f1"]
    assert f"| mrpc | the same, from MODEL's layers | f1 | {100 * alone['mean']:.2f} ± " in table
    flags = {
        name: [name in command for command in commands] for name in ("--num_train_epochs", "--distillation_weight")
    }
    assert flags == {"--num_train_epochs": [True] * 4, "--distillation_weight": [False, False, False, True]}
    assert [command[-1].rpartition("/")[2] for command in commands] == ["teacher", "alone", "without", "student"]
    distillation.main([*argv, "--report"])
    assert capsys.readouterr().out.splitlines()[-7:] == table.splitlines()[-7:] and len(commands) == 4
    monkeypatch.setattr("snugbert.trainers.finetuning.finetuning_trainer.FineTuningTrainer.train", None)
    distillation.main(argv)
    assert capsys.readouterr().out.splitlines()[-7:] == table.splitlines()[-7:] and len(commands) == 8
    with pytest.raises(SystemExit, match=r"other settings \(num_student_layers\)"):
        distillation.main([*argv, "--num_student_layers", "2"])


def test_adaptation(minilm, steps, tmp_path, capsys, monkeypatch):
    """Every variant is measured on both domains. Finished seeds are not repeated."""
    import adaptation
    import demo

    modules = [(("json", "decoder"), [f"Decode a JSON document of {i} characters from a text." for i in range(99)])]
    modules += [
        (
            ("email", f"m{i}"),
            [
                f"Parse part {i} of the message with {i} headers.\n\nReturn it.",
                f"Message {i}.\n\nIt has {i} headers, and a body with many more words.",
            ],
        )
        for i in range(200)
    ]
    monkeypatch.setattr(demo, "docstrings", lambda library: iter(modules))
    monkeypatch.setattr(adaptation, "FINE_TUNING", adaptation.FINE_TUNING | {"num_train_epochs": 1})
    vocabulary = (minilm / "vocab.txt").read_text().splitlines(keepends=True)
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok/vocab.txt").write_text("".join(vocabulary[:3000]))
    config = SnugBertConfig.from_size("tiny", vocab_size=3000)
    SnugBertForPreTraining(config).save_pretrained(tmp_path / "model")
    SnugBertTokenizer(vocab=str(tmp_path / "tok/vocab.txt")).save_pretrained(tmp_path / "model")
    (tmp_path / "old.txt").write_text("It was the best of times.\nIt was the worst of times.\n\n" * 40)
    argv = ["--model_name_or_path", str(tmp_path / "model"), "--old_validation_file", str(tmp_path / "old.txt")]
    argv += ["--max_steps", "2", "--new_tokens", "100", "--seeds", "1", "--use_cpu", "--max_eval_samples", "20"]
    adaptation.main([*argv, "--output_dir", str(tmp_path / "out")])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[:2] for row in rows[2:]] == [["| none", "1"], ["| pretraining", "1"], ["| vocabulary", "1"]]
    assert float(rows[4][-1].split()[0]) > float(rows[2][-1].split()[0])  # more tokens are longer
    before = len(steps)
    assert before == 3 + 4 + 4 + 1
    adaptation.main([*argv, "--output_dir", str(tmp_path / "out")])
    assert len(steps) == before


def test_distilling_a_masked_model(data_dir, steps, tmp_path, capsys, monkeypatch):
    """All recipes start from the same layers. Finished steps are not repeated, and other settings are refused."""
    import distill_masked_model

    monkeypatch.setitem(distill_masked_model.SETTINGS, "per_device_train_batch_size", 8)
    vocabulary = (data_dir / "vocab/bert-base-uncased-vocab.txt").read_text().splitlines(keepends=True)
    tokenizer = SnugBertTokenizer({token.strip(): index for index, token in enumerate(vocabulary[:2000])})
    tokenizer.save_pretrained(tmp_path / "teacher")
    torch.manual_seed(0)
    teacher = SnugBertForPreTraining(SnugBertConfig.from_size("tiny", vocab_size=2000, num_hidden_layers=4))
    teacher.save_pretrained(tmp_path / "teacher")
    text = write_first_lines(data_dir / "wikitext2/valid.docs.txt.gz", 500, tmp_path)
    argv = ["--teacher", str(tmp_path / "teacher"), "--train_file", text, "--validation_file", text, "--seeds", "1"]
    argv += ["--max_steps", "10", "--max_eval_samples", "8", "--output_dir", str(tmp_path / "out")]
    distill_masked_model.main(argv)
    table = capsys.readouterr().out[-1500:]
    models = ("teacher", "start", "mlm", "distilled", "mlm-equal-flops")
    places = [f"{model}/{'once' if model in models[:2] else 1}/pretraining" for model in models]
    assert steps == places
    results = {
        model: json.loads((tmp_path / f"out/{place}.json").read_text())
        for model, place in zip(models, places, strict=True)
    }
    assert results["mlm-equal-flops"]["flops"] == pytest.approx(results["distilled"]["flops"], rel=0.2)  # whole steps
    assert results["mlm-equal-flops"]["step"] > results["mlm"]["step"] == results["distilled"]["step"] == 10
    for model in models:
        assert f"| {results[model]['mlm_loss']:.3f} | " in table
    start = AutoModelForPreTraining.from_pretrained(tmp_path / "out/start/model")
    expected = teacher.bert.encoder.layer[3].state_dict()
    weights = start.bert.encoder.layer[1].state_dict()
    assert start.config.num_hidden_layers == 2 and all(torch.equal(weights[name], expected[name]) for name in weights)

    distill_masked_model.main(argv)
    assert len(steps) == 5 and capsys.readouterr().out[-500:] == table[-500:]
    with pytest.raises(SystemExit, match=r"other settings \(max_steps\)"):
        distill_masked_model.main([*argv, "--max_steps", "11"])


def test_few_labels(data_dir, tiny_bert, steps, tmp_path, capsys, monkeypatch):
    """All methods get the same labels. Finished steps are not repeated, and other settings are refused."""
    import few_labels

    argv = ["--model_name_or_path", tiny_bert, "--data_dir", str(data_dir), "--output_dir", str(tmp_path / "out")]
    argv += ["--seeds", "2", "--max_train_samples", "16", "--max_eval_samples", "24", "--reinit_layers", "1"]
    argv += ["--only", "embeddings/*-16/*", "embeddings/rte", "default/rte", "reinit/articles-16/4?"]
    few_labels.main(argv)
    table = capsys.readouterr().out.partition("| task | method |")[2]
    assert steps == ["reinit/articles-16/42", "reinit/articles-16/43", "default/rte"]
    labels = few_labels.draw_labels(few_labels.read_examples("articles", str(data_dir))[0], 16, seed=43).labels
    rows = (tmp_path / "out/reinit/articles-16/43/train.jsonl").read_text().splitlines()
    assert [json.loads(row)["label"] for row in rows] == labels
    results = json.loads((tmp_path / "out/reinit/articles-16/43/results.json").read_text())
    assert results["settings"]["reinit_layers"] == 1 and results["settings"]["seed"] == 43
    assert results["training"]["train_steps"] == 100 and results["training"]["train_samples"] == 16
    scores = [
        json.loads((tmp_path / f"out/reinit/articles-16/{seed}/results.json").read_text())["metrics"]["eval"][
            "accuracy"
        ]
        for seed in (42, 43)
    ]
    assert f"reinit_layers | 2 | {100 * np.mean(scores):.1f} ± {100 * np.std(scores, ddof=1):.1f} (" in table
    assert f") | {100 * min(scores):.1f} | " in table
    assert re.search(r"\| RTE \| default \| 2 \| .* \| \d \| \S+ \| 0.0 \|\n", table), table
    few_labels.main(argv)
    assert len(steps) == 3 and capsys.readouterr().out.partition("| task | method |")[2] == table
    with pytest.raises(SystemExit, match=r"other settings \(bf16\)"):
        few_labels.main([*argv, "--bf16"])
    # A step whose runs all diverged counts with the baseline. A step that was stopped does not count.
    (folder,) = (tmp_path / "out/default").iterdir()
    for file in folder.glob("**/results.json"):
        file.write_text(json.dumps({"failure": "the loss is NaN"}))
    (folder / "results.json").unlink()
    monkeypatch.setattr("pretraining_ladder.run_process", lambda command, log: 128 + signal.SIGTERM)
    with pytest.raises(SystemExit):
        few_labels.main(argv)
    monkeypatch.setattr("pretraining_ladder.run_process", lambda command, log: 1)
    few_labels.main(argv)
    assert re.search(r"\| RTE \| default \| 2 \| (\S+) \| \1 \| 2 \| \1 \|", capsys.readouterr().out)


def test_the_labels_that_few_labels_draws(data_dir):
    import few_labels

    train, test = few_labels.read_examples("articles", str(data_dir))
    assert len(set(test.labels)) == len(set(train.labels)) == 10 and len(test.labels) >= 1000
    assert not {*train.texts} & {*test.texts}
    drawn = few_labels.draw_labels(train, 16, seed=1)
    assert sorted(map(drawn.labels.count, set(train.labels))) == [1] * 4 + [2] * 6 and len({*drawn.texts}) == 16
    assert few_labels.draw_labels(train, 16, seed=1) == drawn != few_labels.draw_labels(train, 16, seed=2)


def test_embeddings_of_few_labels_equal_sentence_transformers(minilm):
    import few_labels
    from sentence_transformers import SentenceTransformer

    texts = ("A delightful film.", "It was dull, and much too long for its plot.", "No")
    expected = SentenceTransformer(str(minilm), device="cpu").encode(list(texts), normalize_embeddings=True)
    np.testing.assert_allclose(few_labels.embed(texts, str(minilm)), expected, atol=1e-6)
    pairs = few_labels.Examples([(texts[0], texts[1])], ["yes"])
    u, v = few_labels.embed(texts[:1], str(minilm))[0], few_labels.embed(texts[1:2], str(minilm))[0]
    np.testing.assert_array_equal(few_labels.make_features(pairs, str(minilm))[0], [*u, *v, *np.abs(u - v), *(u * v)])


def test_setfit_with_few_labels(data_dir, tiny_bert, tmp_path, monkeypatch):
    pytest.importorskip("setfit")
    import few_labels

    monkeypatch.setattr(few_labels, "SETFIT_ITERATIONS", 1)
    argv = ["--model_name_or_path", tiny_bert, "--data_dir", str(data_dir), "--output_dir", str(tmp_path / "out")]
    few_labels.main([*argv, "--seeds", "1", "--max_eval_samples", "24", "--only", "setfit/sst2-16/*"])
    results = json.loads((tmp_path / "out/setfit/sst2-16/42/results.json").read_text())
    assert 0 <= results["score"] <= 100 and results["baseline"] == pytest.approx(54.17, abs=0.01)


def test_minimal_pairs(data_dir, minilm, capsys, monkeypatch):
    pytest.importorskip("minicons")
    import minimal_pairs

    files = [str(data_dir / f"blimp/{name}.jsonl.gz") for name in ("causative", "adjunct_island")]
    model = ["--config_name", "tiny", "--tokenizer_name", str(minilm)]
    argv = ["--pairs_file", *files, *model, "--pairs_per_file", "2", "--rounds", "1", "--batch_size", "3"]
    minimal_pairs.main(argv)
    out = capsys.readouterr().out
    assert "4 pairs. Largest relative difference of a score: " in out
    rows = [line.split(" | ") for line in out.splitlines()[-3:]]
    ratios = [float(row[2].split()[0]) for row in rows]
    for (_, seconds, _, minutes), ratio in zip(rows, ratios, strict=True):
        ours, theirs = map(float, seconds.split(" / "))
        assert theirs / ours == pytest.approx(ratio, rel=0.02) and minutes.endswith(" minutes |")
    assert ratios[0] == pytest.approx(ratios[1] + ratios[2], abs=0.02)

    score = minimal_pairs.score_with_minicons
    monkeypatch.setattr(minimal_pairs, "score_with_minicons", lambda *arguments: 1.001 * score(*arguments))
    with pytest.raises(SystemExit, match="The scores differ"):
        minimal_pairs.main(argv)


# Official code that finds the first sentence of every pair more likely. It does so for ties.
OFFICIAL_CODE = """
import json, sys
from pathlib import Path
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
predictions = {}
for file in Path(flags["--data_path"]).iterdir():
    for line in file.read_text().splitlines():
        row = json.loads(line)
        predictions.setdefault(row["UID"], {"predictions": []})["predictions"].append({"pred": row["sentence_good"]})
results = Path(flags["--output_dir"], flags["--task"], flags["--backend"])
results.mkdir(parents=True)
results.joinpath("predictions.json").write_text(json.dumps(predictions))
results.joinpath("best_temperature_report.txt").write_text("AVERAGE ACCURACY\\n99.00\\n\\n")
"""


def test_babylm_scores(tmp_path, capsys):
    import babylm_scores

    model = str(write_checkpoint(tmp_path / "model", "bert"))
    code = tmp_path / "official/evaluation_pipeline/sentence_zero_shot/run.py"
    code.parent.mkdir(parents=True)
    code.write_text(OFFICIAL_CODE)
    ties, swapped = tmp_path / "ties.tsv", tmp_path / "swapped.tsv"
    ties.write_text("sentence_good\tsentence_bad\n" + 2 * "A cat.\tA cat.\n")
    swapped.write_text("sentence_good\tsentence_bad\nA cat.\tDogs eat meat.\nDogs eat meat.\tA cat.\n")
    argv = ["--official", str(tmp_path / "official"), "--model_name_or_path", model, "--pairs_file", str(ties)]
    babylm_scores.main(argv)
    out = capsys.readouterr().out
    assert "| 2 | 2 | 99.00 | 100.00 | 0.00 |\n\nDecisions that differ: 0, in addition to ties." in out
    with pytest.raises(SystemExit, match="no tie"):
        babylm_scores.main([*argv, str(swapped)])
    out = capsys.readouterr().out  # means of a paradigm of ties and one in which one of two is right
    assert "| 4 | 2 | 99.00 | 75.00 | 25.00 |\n\nDecisions that differ: 1, in addition to ties." in out
