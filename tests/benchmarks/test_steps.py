"""Measurements of steps, memory, FLOPs and shared cores. Sides that do not compute the same are not measured."""

import json
import os
import sys
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import forked
import numpy as np
import pytest
import torch
from benchmark_files import BENCHMARKS, write_first_lines
from markdown_tables import cells
from parity import ours_and_stock, packed, ragged_batch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForTokenClassification, DebertaV2Config, RobertaConfig

from snugbert import SnugBertConfig, SnugBertModel, SnugBertTokenizer

pytestmark = pytest.mark.long

TINY = ["--batch_size", "4", "--pairs", "1", "--json"]
TRAINING = [*TINY, "--steps", "1"]


def read_rows(capsys, dtype, trains) -> list[dict]:
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for row in rows:
        assert 0 < row["fill"] <= 1
        assert row["ratios"] == [row["seconds"]["stock"][0] / row["seconds"]["ours"][0]]
        for side in ("ours", "stock"):
            assert row["tokens_per_second"][side] == row["tokens"][0] / row["seconds"][side][0]
            mfu = row["needed_flops"][0] / row["seconds"][side][0] / row["matmul_flops_per_second"]
            assert row["mfu"][side] == pytest.approx(mfu)
            assert 0 < mfu < 1
        assert row["settings"]["dtype"] == dtype and ("dropout" in row["settings"]) == trains
        assert row["machine"]["torch"] == torch.__version__
    return rows


def run_code(code: str, path: list[str]) -> None:
    sys.path[:] = path
    exec(code, {})


def test_pretraining_step(data_dir, minilm, capsys, monkeypatch):
    """Memory is measured in forked processes, which import nothing again."""
    import side_by_side
    from pretraining_step import main

    def run_forked(command, **_):
        return forked.run(run_code, command[-1], [str(BENCHMARKS), *sys.path])

    monkeypatch.setattr(side_by_side.subprocess, "run", run_forked)
    text = str(data_dir / "sample_text/sample_text.txt")
    settings = ["--tokenizer_name", str(minilm), "--size", "tiny", "--max_seq_length", "32"]
    main([*TRAINING, *settings, "--train_file", text])
    (row,) = read_rows(capsys, "bfloat16", trains=True)
    assert row["tokens"][0] <= 4 * 32
    # Between the size of weights and gradients (4.4 million parameters, float32) and a small multiple.
    for side in ("ours", "stock"):
        assert 35 < row["peak_mb"][side] < 500


def test_finetuning_and_inference(data_dir, minilm, tmp_path, capsys):
    import finetuning
    import inference

    SnugBertModel(SnugBertConfig.from_size("tiny")).save_pretrained(tmp_path)
    SnugBertTokenizer.from_pretrained(minilm).save_pretrained(tmp_path)
    model = ["--model_name_or_path", str(tmp_path), "--glue_dir", str(data_dir / "glue"), "--skip_memory"]
    files = ["--conll_file", write_first_lines(data_dir / "conll2003/valid.jsonl.gz", 60, tmp_path)]
    files += ["--squad_file", write_first_lines(data_dir / "squad/dev-v2.0-half.jsonl.gz", 60, tmp_path)]
    tasks = ["mrpc", "conll2003", "squad"]
    finetuning.main([*TRAINING, *model, *files, "--tasks", *tasks, "--dtype", "float32", "--optimizer"])
    assert [row["work"].split(",")[0] for row in read_rows(capsys, "float32", trains=True)] == tasks
    inference.main([*TINY, *model, "--tasks", "mrpc", "--max_samples", "6"])
    rows = read_rows(capsys, "float32", trains=False)
    assert [row["work"] for row in rows] == ["mrpc dev, 6 examples, float32", "mrpc dev, 6 examples, float32, packed"]


def test_the_family(data_dir, capsys, monkeypatch):
    """The benchmark stops if the sides' weights, names or positions differ."""
    import families

    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 96}
    models = {
        "roberta": RobertaConfig(**sizes, **families.ROBERTA, vocab_size=30522),
        "deberta": DebertaV2Config(**families.DEBERTA | sizes, vocab_size=30522),
    }
    monkeypatch.setattr(families, "MODELS", models)
    families.main([*TRAINING, "--glue_dir", str(data_dir / "glue"), "--max_samples", "8", "--skip_memory"])
    rows = read_rows(capsys, "bfloat16", trains=True)
    works = [f"{name}, {work}, bfloat16" for name in models for work in ("step", "inference")]
    assert [row["work"] for row in rows] == works


def test_flops_equal_torchs_count_and_a_count_by_hand():
    from side_by_side import needed_flops

    # Without padding, and with every token of the last layer needed, stock BERT computes nothing extra.
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 50, "num_labels": 5}
    stock = BertForTokenClassification(BertConfig(**sizes, num_hidden_layers=3, attn_implementation="eager"))
    batch = {"input_ids": torch.ones(4, 7, dtype=torch.long), "attention_mask": torch.ones(4, 7, dtype=torch.long)}
    with FlopCounterMode(display=False) as counter:
        stock(**batch)
    config = SnugBertConfig(**sizes, num_hidden_layers=3)
    assert needed_flops("TokenClassification", config, batch) == counter.get_total_flops()

    # One layer, H = 8, inner 24, sequences of 3 and 2 tokens, one label in the first.
    config = SnugBertConfig(**sizes, num_hidden_layers=1)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    labels = torch.tensor([[-100, 9, -100], [-100, -100, -100]])
    keys_and_values = 5 * 2 * (2 * 8 * 8)
    # [CLS] and the label of the first sequence, [CLS] of the second: query, output, feed-forward.
    queries = 3 * 2 * (8 * 8 + 8 * 8 + 8 * 24 + 24 * 8)
    attention = 2 * 2 * (2 * 8 * 3) + 2 * (2 * 8 * 2)  # scores and sums, over 3 tokens and over 2
    heads = 2 * (8 * 8 + 8 * 50) + 2 * 2 * (8 * 8 + 8 * 2)
    batch = {"attention_mask": mask, "labels": labels}
    assert needed_flops("PreTraining", config, batch) == keys_and_values + queries + attention + heads
    queries = 2 * 2 * (8 * 8 + 8 * 8 + 8 * 24 + 24 * 8)
    attention = 2 * (2 * 8 * 3) + 2 * (2 * 8 * 2)
    heads = 2 * 2 * (8 * 8 + 8 * 5)
    assert needed_flops("SequenceClassification", config, batch) == keys_and_values + queries + attention + heads


@pytest.mark.parametrize(
    ("head", "trains"),
    [
        ("PreTraining", True),
        ("SequenceClassification", True),
        ("SequenceClassification", False),
        ("TokenClassification", True),
        ("QuestionAnswering", True),
    ],
)
def test_sides_that_differ_are_not_measured(head, trains, monkeypatch):
    import side_by_side

    ours, _ = ours_and_stock(f"For{head}")
    batch = ragged_batch(f"For{head}")
    if not trains:
        del batch["labels"]
    checked = {"ours": packed(batch) if trains else batch, "stock": batch}
    work = side_by_side.Work("it", head, ours.config, ours.state_dict(), {}, checked, 1, trains)
    args = side_by_side.argument_parser(None, trains).parse_args([])
    side_by_side.check_agreement(work, args)

    build = side_by_side.build

    def another(side, work, args, **overrides):
        model = build(side, work, args, **overrides)
        if side == "ours":
            model.bert.embeddings.word_embeddings.weight.data[1:] *= 1.1
        return model

    monkeypatch.setattr(side_by_side, "build", another)
    with pytest.raises(SystemExit, match=r"it: .* of ours and stock differ by .* in float32\. Not measured"):
        side_by_side.check_agreement(work, args)


def test_only_a_processs_own_memory_counts(tmp_path):
    from data_preparation import list_family, own_memory

    def held() -> int:
        return sum(map(own_memory, list_family(os.getpid())))

    before = held()
    # Allocated by the system: malloc could reuse memory that earlier tests freed and the process still has.
    filled = np.frombuffer(mmap(-1, 10**8, flags=MAP_PRIVATE | MAP_ANONYMOUS), dtype=np.uint8)
    filled[:] = 1
    filled.tofile(tmp_path / "file")
    with_array = held()
    assert with_array - before == pytest.approx(len(filled), rel=0.1)
    mapped = np.memmap(tmp_path / "file", mode="r")
    assert int(mapped.sum()) == len(filled)  # makes every page resident
    assert held() - with_array < 0.1 * len(filled)


def print_host_time_and_waits() -> None:
    sys.path.insert(0, str(BENCHMARKS))
    import host_time
    import waits_and_graphs

    host_time.load_kernels()
    host_time.act_as_gpu()
    host_time.print_rows(2)
    waits_and_graphs.HEADS = {"tagging": "TokenClassification"}
    waits_and_graphs.print_rows()


def test_host_time_and_waits():
    """The kernels that do nothing replace torch's own, so this runs in a process of its own."""
    process = forked.run(print_host_time_and_waits)
    assert process.returncode == 0, process.stderr
    rows = cells(process.stdout)
    assert [row[:2] for row in rows[:4]] == [
        [side, dtype] for dtype in ("bfloat16", "float32") for side in ("SnugBERT", "stock BERT")
    ]
    for ours, stock in (rows[:2], rows[2:4]):
        counts = [[int(row[2].split()[0]), int(row[3].split()[0].replace(",", ""))] for row in (ours, stock)]
        # A layer has the same operations on both sides, but for one product instead of three. There are few others.
        assert all(0.7 < mine / theirs < 1 for mine, theirs in zip(*counts, strict=True))
    assert [row[:3] for row in rows[4:]] == [["tagging", "packed", "0"], ["tagging", "padded", "1"]]
    assert rows[4][3:] == ["0", "1", ", ".join("0" * 7)]


def test_operations_are_counted():
    from host_time import Counter

    values, weight, bias = torch.zeros(3, 4), torch.zeros(2, 4, requires_grad=True), torch.zeros(2)
    with Counter() as counter:
        output = torch.nn.functional.linear(values, weight, bias)  # a transposed view, and addmm
    assert (counter.operations, counter.kernels) == (2, 1)
    nested = torch.nested.nested_tensor_from_jagged(output.detach(), torch.tensor([0, 1, 3]))
    with Counter() as counter:
        nested * 2
    assert counter.kernels == 1


def test_the_budget_of_a_step(monkeypatch, capsys):
    import step_budget

    monkeypatch.setattr(step_budget, "SIZES", ((4, 128),))
    monkeypatch.setattr(step_budget, "SIDES", ("SnugBERT", "stock BERT, sdpa"))  # invariants/ has the compiled side
    step_budget.main(["--layers", "2"])
    ours, stock = (cells(part) for part in capsys.readouterr().out.split("### ")[1:])
    flops = [{row[0]: float(row[3]) for row in rows[1:]} for rows in (ours, stock)]
    assert [row[0] for row in ours[1:]] == [*step_budget.CLASSES, "all"]
    assert 0 < flops[0]["matrix products"] < flops[1]["matrix products"]  # no padding, and logits of labels only


def test_bytes_and_flops_of_operators_are_counted():
    """Inputs are read once, outputs are written once. A repeated row is read once, and a lookup reads few rows."""
    import step_budget

    values, weight, ids = torch.zeros(2000, 768), torch.zeros(4, 768), torch.zeros(2, dtype=torch.long)
    with step_budget.Counter(torch.nn.Linear(768, 4)) as counter:
        product = values @ weight.T
        product.add_(product.new_zeros(1, 4).expand(2000, 4))
        torch.nn.functional.embedding(ids, values)
    budget = counter.budget
    assert budget["matrix products"] == step_budget.Need(1, 4 * (2000 * 768 + 4 * 768 + 2000 * 4), 2 * 2000 * 768 * 4)
    assert budget["other"] == step_budget.Need(2, 4 * 4 + 4 * (2 * 2000 * 4 + 4))
    assert budget["embeddings"] == step_budget.Need(1, 2 * 8 + 2 * 4 * 2 * 768)


def test_the_busy_machine(tmp_path):
    import busy_machine

    # Twenty steps a second, instead of a command.
    steps = "import struct, sys, time\nwith open(sys.argv[1], 'ab', buffering=0) as stream:\n    while True:\n"
    steps += "        stream.write(struct.pack('dq', time.monotonic(), 7))\n        time.sleep(0.05)\n"
    runs = []

    def start(side: str, number: int) -> busy_machine.Run:
        log = tmp_path / f"{side}-{number}.log"
        runs.append(busy_machine.Run([sys.executable, "-c", steps, str(log)], busy_machine.SIDES[side], log))
        return runs[-1]

    busy = busy_machine.Run([sys.executable, "-c", "while True: pass"], {}, tmp_path / "busy.log")
    with busy:
        busy.pause()
        rates = busy_machine.measure_row(start, busy, rounds=1, window=0.3, pause=0.05)
    assert not rates["spinning"]["second"]
    assert all(0 < rate < 7 * 20 for side in rates.values() for values in side.values() for rate in values)
    # Each run worked in its own turns only: the first one in three of five, the second one in one.
    first, second = (len(run.log.read_bytes()) for run in runs[:2])
    assert second < 0.7 * first
    shared, spinning = busy_machine.format_rows("tiny", "predict", rates).splitlines()
    assert shared.startswith("| tiny | predict | shared | ") and spinning.endswith(" | 1.00 (1.00-1.00) |")


def test_tokens_of_the_busy_machine_are_counted(minilm, tmp_path):
    import busy_machine

    (tmp_path / "demo/task").mkdir(parents=True)
    (tmp_path / "demo/task/train.csv").write_text("sentence,label\n" + "good,a\nfilm,b\n" * 32)
    (tmp_path / "demo/tokenizer").symlink_to(minilm)
    command = busy_machine.make_command("fine-tuning", "tiny", tmp_path / "demo", tmp_path / "out")
    assert busy_machine.count_tokens(tmp_path / "log", [*command, "--max_steps", "2"]) == 0
    # Two steps of 32 examples: [CLS], a word, [SEP]
    assert [tokens for _, tokens in busy_machine.RECORD.iter_unpack((tmp_path / "log").read_bytes())] == [96, 96]
