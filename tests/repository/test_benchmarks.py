"""Every benchmark runs and prints its results. Sides that do not compute the same are not measured."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import partial
from itertools import chain, islice, pairwise
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from types import SimpleNamespace

import forked
import numpy as np
import pytest
import torch
from emulated_graphs import emulated_graphs
from family_checkpoints import write_checkpoint
from markdown_tables import cells
from parity import ours_and_stock, packed, ragged_batch, without_padding
from synthetic import make_corpus
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForPreTraining,
    AutoTokenizer,
    BertConfig,
    BertForQuestionAnswering,
    BertForTokenClassification,
    BertModel,
    BertTokenizer,
    DebertaV2Config,
    RobertaConfig,
)

from snugbert import SnugBertConfig, SnugBertForPreTraining, SnugBertModel, SnugBertTokenizer
from snugbert.data import preparation
from snugbert.data.corpus import open_corpus
from snugbert.errors import InputError
from snugbert.remote_files import read_bytes
from snugbert.trainers.pretraining import training_log
from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer
from snugbert_cli import main as snugbert_command

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = ["--batch_size", "4", "--pairs", "1", "--json"]
TRAINING = [*TINY, "--steps", "1"]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(training_log, "RUN_SECONDS", 0.001)  # a run of ten that measure the peak FLOPs


def read_rows(capsys, dtype, trains) -> list[dict]:
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for row in rows:
        assert 0 < row["fill"] <= 1
        assert row["ratio"]["median"] == row["seconds"]["stock"][0] / row["seconds"]["ours"][0] > 0
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


def write_first_lines(source: Path, number: int, folder: Path) -> str:
    """Writes the first lines of a compressed file, and returns the name of the new file."""
    file = folder / source.name.removesuffix(".gz")
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        file.write_text("".join(islice(lines, number)), encoding="utf-8")
    return str(file)


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


def test_data_preparation(data_dir, minilm, capsys):
    from data_preparation import main

    text = str(data_dir / "sample_text/sample_text.txt")
    settings = ["--max_seq_length", "64", "--num_workers", "1", "--rounds", "1", "--skip_memory"]
    main(["--train_file", text, "--tokenizer_name", str(minilm), *settings])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    table = [row for row in rows if len(row) == 4][2:]  # without the header
    rates = {row[0]: [float(cell.replace(",", "")) for cell in row[1:] if cell] for row in table}
    both = [stage for stage, cells in rates.items() if len(cells) == 3]
    assert len(both) == 4 and len(rates) - len(both) == 4
    for stage in both:
        ours, theirs, ratio = rates[stage]
        assert ratio == pytest.approx(ours / theirs, abs=0.06)


def test_the_original_recipe(minilm):
    from data_preparation import original_masks, original_pairs, original_tokens

    tokenizer = SnugBertTokenizer.from_pretrained(minilm)
    texts = [[f"Sentence {name}{number} is not the last, naïvely." for number in range(30)] for name in "abc"]
    tokens = original_tokens(texts, tokenizer)
    assert tokens == [[tokenizer.tokenize(text) for text in document] for document in texts]
    pairs = original_pairs(tokens, 64, seed=0)
    documents = ["".join(piece for sentence in document for piece in sentence) for document in tokens]
    same = 0
    for first, second in pairs:
        assert 0 < len(first) and 0 < len(second) and len(first) + len(second) <= 61
        (home,) = [number for number, document in enumerate(documents) if "".join(first) in document]
        same += "".join(second) in documents[home]
    assert 0.3 < same / len(pairs) < 0.7
    for (first, second), (ids, segments, places, labels) in zip(
        pairs, original_masks(pairs, tokenizer, 0), strict=True
    ):
        plain = tokenizer.convert_tokens_to_ids(["[CLS]", *first, "[SEP]", *second, "[SEP]"])
        assert segments == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert len(places) == round(len(plain) * 0.15) and [plain[place] for place in places] == labels
        assert {place for place, (shown, true) in enumerate(zip(ids, plain, strict=True)) if shown != true} <= {
            *places
        }


def test_measurements_of_sentence_pairs():
    """A corpus of 100 documents, and pairs whose label follows from one property."""
    from data_preparation import original_pairs
    from sentence_pairs import (
        EPOCHS,
        Pairs,
        classify_lengths,
        classify_seconds,
        count_shown,
        find_documents,
        join_blocks,
        measure,
        original_epochs,
    )

    rng = np.random.default_rng(0)
    documents = [
        [rng.integers(5, 200, rng.integers(1, 9)).tolist() for _ in range(number + 2)] for number in range(100)
    ]
    corpus = make_corpus([documents[:15], documents[15:]])
    text = join_blocks(corpus)
    assert text.tokens.tolist() == list(chain.from_iterable(chain.from_iterable(documents)))
    assert find_documents(text, text.documents[:-1]).tolist() == list(range(100))

    # The spans are the original recipe's segments.
    pairs = next(original_epochs(corpus, text, None, 30, 0))
    spans = list(zip(pairs.first, pairs.first_length, pairs.second, pairs.second_length, strict=True))
    assert [
        (text.tokens[first : first + length].tolist(), text.tokens[second : second + second_length].tolist())
        for first, length, second, second_length in spans
    ] == original_pairs(documents, 30, seed=0)
    assert pairs.label.tolist() == [
        find_documents(text, np.array([first])) != find_documents(text, np.array([second]))
        for first, _, second, _ in spans
    ]
    shown = np.zeros(len(text.tokens), dtype=int)
    for first, length, second, second_length in spans:
        shown[first : first + length] += 1
        shown[second : second + second_length] += 1
    assert count_shown(pairs, len(text.tokens)).tolist() == shown.tolist()
    columns = measure(original_epochs(corpus, text, None, 30, 0), text, 30, 0)
    expected = [100 * (shown > 0).mean(), shown.max(), shown.std() / shown.mean()]
    assert [columns[0], columns[2], columns[3]] == pytest.approx(expected)
    assert columns[0] < columns[1] <= 100

    # Each classifier finds what reveals the label, and nothing else does.
    def epoch(reveals):
        size = 2000
        values = {name: rng.integers(0, len(text.tokens) - 9, size) for name in ("first", "second")}
        values |= {name: rng.integers(1, 9, size) for name in ("first_length", "second_length")}
        pairs = Pairs(**values, label=rng.integers(0, 2, size))
        pairs.label = reveals(pairs).astype(int)
        return pairs

    def chance(pairs):
        return pairs.label

    def words(pairs):  # of B; the last token is also one of its ends
        return text.tokens[pairs.second + pairs.second_length - 1] < 100

    def document_length(pairs):
        return np.diff(text.documents)[find_documents(text, pairs.second)] < np.median(np.diff(text.documents))

    def segment_lengths(pairs):
        return pairs.first_length > 4

    for reveals, found in [
        (chance, []), (words, [0, 2, 3]), (document_length, [1, 2]), (segment_lengths, [4])
    ]:  # fmt: skip
        epochs = [epoch(reveals) for _ in range(EPOCHS)]
        on_others = classify_seconds(epochs, text, seed=0)[1::2]
        points = [*on_others, classify_lengths(epochs, text, seed=0)]
        for classifier, gained in enumerate(points):
            assert (gained > 15) if classifier in found else (abs(gained) < 10), (reveals, points)


def test_sentence_pairs(data_dir, minilm, capsys):
    from sentence_pairs import HEADER, main

    arguments = ["--train_file", str(data_dir / "sample_text/sample_text.txt"), "--tokenizer_name", str(minilm)]
    main([*arguments, "--lengths", "64", "--seeds", "1", "--document_sentences", "3"])
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[-2:]]
    assert HEADER.splitlines()[0] in lines and {len(row) for row in rows} == {HEADER.splitlines()[0].count("|") - 1}
    assert [row[:2] for row in rows] == [["64", "original"], ["64", "SnugBERT"]]
    for row in rows:
        seen, seen_later, most, _, fill, is_next = map(float, row[2:8])
        assert 50 < seen <= seen_later <= 100 and most >= 1 and 20 < fill <= 100 and 20 < is_next < 60


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


def test_learning_rates(data_dir, minilm, tmp_path, capsys, monkeypatch):
    import learning_rates

    model, rates = tmp_path / "model", []
    BertModel(BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2)).save_pretrained(model)
    AutoTokenizer.from_pretrained(minilm).save_pretrained(model)

    def run(command, **process):
        rates.append(command[command.index("--learning_rate") + 1])
        assert snugbert_command([*command[3:], "--use_cpu"]) == 0
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(learning_rates.subprocess, "run", run)
    argv = ["--model_name_or_path", str(model), "--tasks", "rte", "--factors", "1", "4", "--seeds", "1", "2"]
    argv += ["--data_dir", str(data_dir), "--max_train_samples", "8", "--output_dir", str(tmp_path / "rates")]
    learning_rates.main(argv)
    table = capsys.readouterr().out.partition("model: 1 layers, hidden size 32")[2]
    assert rates == ["3e-05", "0.00012"] * 2
    scores = [json.loads((tmp_path / f"rates/model_rte_8_4_{seed}.json").read_text())["score"] for seed in (1, 2)]
    assert "| RTE, accuracy | 8 | 3e-05 | 52.7 | " in table
    assert f"| {np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f} |\n" in table

    # Finished runs are not repeated, and not used for other settings.
    learning_rates.main(argv)
    with pytest.raises(SystemExit, match="is from a different command"):
        learning_rates.main([*argv, "--model_name_or_path", str(tmp_path / "other/model")])
    capsys.readouterr()
    learning_rates.main(["--report", "--output_dir", str(tmp_path / "rates")])
    assert table in capsys.readouterr().out and len(rates) == 4


@pytest.fixture
def steps(tmp_path, monkeypatch) -> list[str]:
    """The folders of a benchmark's steps, which run in this process."""
    folders = []

    def run(command, log):
        folders.append(log.parent.relative_to(tmp_path / "out").as_posix())
        return snugbert_command(command[3:])

    monkeypatch.setattr("pretraining_ladder.run_process", run)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return folders


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
    """A teacher and its students. When all is finished, only speeds are measured again."""
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
    assert len(results["comparison"]) == 3 and results["sweep"]["best_setting"]["seeds"] == 2
    teacher, student, _ = results["comparison"]
    ratio = student["examples_per_second"] / teacher["examples_per_second"]
    assert f"| mrpc | student | f1 | {100 * student['mean']:.2f} ± {100 * student['std']:.2f} (" in table
    assert f" | {student['examples_per_second']:.0f} | {ratio:.2f} |" in table
    alone = json.loads((tmp_path / "out/mrpc/alone/results.json").read_text())["sweep"]["metrics"]["eval"]["f1"]
    assert f"| mrpc | the same, from MODEL's layers | f1 | {100 * alone['mean']:.2f} ± " in table
    flags = {
        name: [name in command for command in commands] for name in ("--num_train_epochs", "--distillation_weight")
    }
    assert flags == {"--num_train_epochs": [True] * 3, "--distillation_weight": [False, False, True]}
    assert [command[-1].rpartition("/")[2] for command in commands] == ["teacher", "alone", "student"]
    distillation.main([*argv, "--report"])
    assert capsys.readouterr().out.splitlines()[-7:] == table.splitlines()[-7:] and len(commands) == 3
    monkeypatch.setattr("snugbert.trainers.finetuning.finetuning_trainer.FineTuningTrainer.train", None)
    distillation.main(argv)
    without_speeds = [
        [line.split(" | ")[:7] for line in text.splitlines()] for text in (table, capsys.readouterr().out)
    ]
    assert without_speeds[1][-7:] == without_speeds[0][-7:] and len(commands) == 6
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


def test_longer_positions(data_dir, minilm, steps, tmp_path, capsys, monkeypatch):
    """Every method is scored by position. Finished steps are not repeated."""
    import longer_positions

    text = write_first_lines(data_dir / "wikitext2/valid.docs.txt.gz", 500, tmp_path)
    monkeypatch.setattr(longer_positions, "VOCABULARY", 500)
    monkeypatch.setattr(longer_positions, "BASE_TOKENS", 512)
    argv = ["--train_file", text, "--validation_file", text, "--positions", "32", "--base_steps", "2", "--steps", "2"]
    argv += [
        "--tokens_per_step",
        "512",
        "--eval_tokens",
        "1024",
        "--seeds",
        "1",
        "--output_dir",
        str(tmp_path / "out"),
    ]
    longer_positions.main(argv)
    table = capsys.readouterr().out
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert [row[0].strip("| ") for row in rows[::2]] == ["original", *longer_positions.METHODS]
    before = {row[0].strip("| "): row for row in rows[::2]}
    assert len({row[3] for row in before.values()}) == 5  # other rows, or other windows
    assert all(float(row[-1].strip(" |")) > 0 for row in rows)
    assert len(steps) == 2 + 5
    longer_positions.main(argv)
    assert len(steps) == 7 and table.endswith(capsys.readouterr().out)


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


@pytest.fixture
def tiny_bert(minilm, tmp_path) -> str:
    torch.manual_seed(0)  # for the same scores in every run
    model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64))
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(minilm).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_decisions(tmp_path, capsys):
    import decisions

    generator = np.random.default_rng(0)
    (tmp_path / "settings.json").write_text('{"machine": {"device": "a CPU"}}')
    for seed in (42, 43):
        run = {}
        for split in ("validation", "test"):
            positive = generator.random(4000)
            references = (generator.random(4000) < positive).astype(np.int64)
            margin = 2 * np.log(positive / (1 - positive))  # twice as confident as it should be
            run |= {f"{split}_logits": np.stack([-margin, margin], 1) / 2, f"{split}_references": references}
        np.savez(tmp_path / f"MRPC-{seed}.npz", **run)
    decisions.main(["--report", "--output_dir", str(tmp_path)])
    printed = capsys.readouterr().out
    rows = [row for row in cells(printed) if row[0] == "MRPC"]
    assert [row[1] for row in rows[:2]] == ["f1", "accuracy"] and rows[0][2] == "2"
    (calibration,) = (row for row in rows if len(row) == 8 and row[1].startswith(("1.9", "2.0")))
    before, after = (float(calibration[i].split()[0]) for i in (4, 5))
    assert before > 8 and after < 3
    for _, confidence, *numbers in rows[3:]:
        coverage, tested, accuracy, correct = (float(number.split()[0]) for number in numbers)
        assert abs(coverage - tested) < 3 and abs(accuracy - correct) < 3 and accuracy > 100 * float(confidence)


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


def test_long_documents(data_dir, tiny_bert, tmp_path, capsys, monkeypatch):
    """Reviews are in the second half. Head and tail are the right tokens. Finished runs are not repeated."""
    import long_documents

    monkeypatch.setattr(long_documents, "SHORT_SENTENCES", 64)
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    documents = long_documents.make_documents(8, 42, True, tokenizer, data_dir)
    ids = tokenizer(documents["text"][:], add_special_tokens=False)["input_ids"]
    for row in documents:
        before, after = row["text"].split(row["review"])
        assert before.count("\n") >= after.count("\n") and len(row["review"].split()) >= 6 * 8
    assert all(900 <= len(tokens) < 1600 for tokens in ids) and documents["label"][:] == ["0", "1"] * 4
    task = long_documents.HeadAndTail(max_seq_length=512, text_column_names="text")
    split = task.read_splits({"validation": [documents]})["validation"]
    split.references = np.zeros(8)
    task.use_tokenizer(tokenizer, 512)
    cut = task.encode(split).inputs["input_ids"][:]
    assert [row[1:-1] for row in cut] == [tokens[:128] + tokens[-382:] for tokens in ids]

    argv = ["--model_name_or_path", tiny_bert, "--data_dir", str(data_dir), "--output_dir", str(tmp_path / "out")]
    argv += ["--layers", "1", "--documents", "8", "--test_documents", "4", "--seeds", "1"]
    long_documents.main(argv)
    table = capsys.readouterr().out
    accuracy = json.loads((tmp_path / "out/attention/42/accuracy.json").read_text())["accuracy"]
    assert f"| windows, attention pooling | 1 | {100 * accuracy:.1f} | " in table
    monkeypatch.setattr(long_documents, "run_method", None)
    long_documents.main(argv)
    assert capsys.readouterr().out == table


def test_repeated_text(data_dir, steps, tmp_path, capsys, monkeypatch):
    """The copies have the share of the text that the table names. Finished runs are not repeated."""
    import repeated_text

    monkeypatch.setattr(repeated_text, "TEXTS", {"half": (0.5, "lines")})
    monkeypatch.setitem(repeated_text.SETTINGS, "logging_steps", 1)
    monkeypatch.setitem(repeated_text.SETTINGS, "max_eval_samples", 8)
    vocabulary = (data_dir / "vocab/bert-base-uncased-vocab.txt").read_text().splitlines(keepends=True)
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok/vocab.txt").write_text("".join(vocabulary[:2000]))
    text = write_first_lines(data_dir / "books_en/train-00.txt.gz", 300, tmp_path)
    files = ["--tokenizer_name", str(tmp_path / "tok"), "--train_file", text]
    argv = ["train", *files, "--validation_file", text, "--max_steps", "2", "--seeds", "1"]
    for _ in range(2):
        repeated_text.main([*argv, "--output_dir", str(tmp_path / "out")])
        assert steps == ["0.5-lines", "0.5-lines/1"]
    first, second = (row for row in cells(capsys.readouterr().out) if row[0] == "half")
    assert first == second and first[2] == "1"
    assert repeated_text.read_report(tmp_path / "out/0.5-lines/corpus").copied_share == pytest.approx(0.5, abs=0.02)
    repeated_text.main(["find", f"books={text}"])
    assert "| books | " in capsys.readouterr().out
    memory = SimpleNamespace(stdout=json.dumps(repeated_text.measure_memory(1)))
    monkeypatch.setattr(repeated_text.subprocess, "run", lambda command, **_: memory)
    repeated_text.main(["cost", *files, "--pairs", "1"])
    assert re.search(
        r"\| time with .* \| \d\.\d+ .* per million \| \d\.\d\d s, \d+ MB \|", capsys.readouterr().out, re.S
    )


def test_windows(data_dir, steps, tmp_path, capsys, monkeypatch):
    """The runs differ in the blocks of a window. Finished runs are not repeated."""
    import sentence_pairs
    import windows

    monkeypatch.setattr(sentence_pairs, "EPOCHS", 2)
    monkeypatch.setattr(sentence_pairs, "MOST_EPOCHS", 2)
    small = {"per_device_train_batch_size": 8, "logging_steps": 1, "phases": "16:80%:mlm,32:20%", "bf16": False}
    monkeypatch.setattr(windows, "SETTINGS", windows.SETTINGS | small)
    monkeypatch.setattr(windows, "SCORED", 8)
    vocabulary = (data_dir / "vocab/bert-base-uncased-vocab.txt").read_text().splitlines(keepends=True)
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok/vocab.txt").write_text("".join(vocabulary[:2000]))
    names = {"books": "books_en/train-00.txt.gz", "wiki": "wikitext2/valid.docs.txt.gz"}
    texts = [f"{name}={write_first_lines(data_dir / file, 400, tmp_path)}" for name, file in names.items()]
    argv = ["--tokenizer_name", str(tmp_path / "tok"), "--sources", *texts, "--held_out", *texts, "--windows", "4"]
    argv += ["--num_train_epochs", "0.01", "--seeds", "1", "--output_dir", str(tmp_path / "out")]
    windows.main(argv)
    table = capsys.readouterr().out
    number = int(re.search(r"(\d+) blocks, ", table)[1])
    assert number > 8 and steps == ["start", "4-1", f"{number}-1"]
    assert set(json.loads((tmp_path / "out/train-4-1.json").read_text())) > {"books", "wiki", "mean"}
    trained, whole, *pairs = (row for row in cells(table) if "4" in row[:2] or "all" in row[:2])
    assert trained[1] == str(-(-number // 4)) and whole[1] == "1" and float(whole[-2]) == 0
    assert [row[:2] for row in pairs] == [["128", "4"], ["128", "all"]]
    assert preparation.BLOCK_TOKENS == 2**22
    windows.main([*argv, "--report"])
    report = re.search(r"\d+ blocks, .*", table, re.DOTALL)[0]
    assert len(steps) == 3 and capsys.readouterr().out.endswith(report)


def test_buckets(data_dir, minilm, tmp_path, capsys, monkeypatch):
    """The corpus has full blocks of the documents of the text. Runs with other weights are refused."""
    s3fs = pytest.importorskip("s3fs")
    import buckets

    monkeypatch.setenv("SNUGBERT_STORAGE_TIMEOUT", "10")
    monkeypatch.setattr(preparation, "BLOCK_TOKENS", 2000)
    text = write_first_lines(data_dir / "wikitext2/valid.docs.txt.gz", 100, tmp_path)
    argv = [
        "--tokenizer_name",
        str(minilm),
        "--train_file",
        text,
        "--blocks",
        "6",
        "--output_dir",
        str(tmp_path / "out"),
    ]
    commands, weights = [], ["a", "a", "a", "a", "a", "b"]

    def pretrain(name, flags, more, args, bucket):
        """Reads the corpus through the bucket, instead of a run."""
        s3fs.S3FileSystem.clear_instance_cache()  # of the server before
        with monkeypatch.context() as patch:
            for key, value in bucket.environment.items():
                patch.setenv(key, value)
            before, index = bucket.count_sent(), "part-00000-of-00002.arrow"
            data = read_bytes(f"{buckets.URL}/{index}")
            sent = bucket.count_sent() - before
        assert data == (tmp_path / "out/store/bucket/corpus" / index).read_bytes() and len(data) < sent < 2 * len(data)
        commands.append((flags["corpus"], flags["max_steps"], more))
        names = ("disk", "private", "resident", "proportional", "sent", "training", "command")
        return buckets.Run(dict.fromkeys(names, 1e6 * len(commands)), weights[len(commands) - 1])

    monkeypatch.setattr(buckets, "pretrain", pretrain)
    buckets.main(["compare", *argv, "--windows", "2", "--batch_size", "4", "--config_name", "mini"])
    rows = [row for row in cells(capsys.readouterr().out) if row[0] in ("folder", "bucket")]
    assert [row[2] for row in rows] == ["1.000", "2.000"]
    assert [str(command[0]).startswith("s3:") for command in commands] == [False, True, True]
    assert all(more == ["--config_name", "mini"] for *_, more in commands)
    corpus = open_corpus(tmp_path / "out/store/bucket/corpus", AutoTokenizer.from_pretrained(minilm))
    originals = open_corpus(tmp_path / "out/prepared", AutoTokenizer.from_pretrained(minilm))

    def documents(blocks) -> set[bytes]:
        return {
            block.tokens[start:end].tobytes()
            for block in blocks
            for start, end in pairwise(block.sentences[block.documents])
        }

    assert len(corpus.blocks) == 6 and min(corpus.counts.tokens) >= 2000
    assert documents(corpus.blocks) <= documents(originals.blocks)
    assert int(commands[0][1]) == int(2 * 2 * corpus.num_tokens / 6 / 4 / 128)
    with pytest.raises(SystemExit, match="the weights differ"):
        buckets.main(["compare", *argv])


def test_removed_files_that_are_mapped_take_disk(tmp_path):
    import buckets

    for name in "ab":
        (tmp_path / name).write_bytes(bytes(10_000))
    mapped = np.memmap(tmp_path / "a", mode="r")
    assert buckets.measure_disk(tmp_path, [os.getpid()]) == 20_000
    (tmp_path / "a").unlink()
    assert buckets.measure_disk(tmp_path, [os.getpid()]) == pytest.approx(20_000, abs=4096)  # whole pages are mapped
    del mapped
    assert buckets.measure_disk(tmp_path, [os.getpid()]) == 10_000


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


def read_results(folder: Path, pieces: Iterable[str]) -> dict[str, dict[str, dict]]:
    from gpu_table import read_rows

    return {piece: read_rows(folder / f"{piece}.jsonl") for piece in pieces}


def test_rehearsal_of_the_gpu_measurements(tmp_path, monkeypatch):
    """The piece `correctness` runs what a GPU runs, and finds a graph that repeats an earlier batch."""
    import gpu
    import gpu_quick
    import gpu_rows
    from gpu_table import format_results

    class Stale(gpu.CudaGraphs):
        """Always runs the first batch, as a graph that does not copy its inputs."""

        def __call__(self, batch):
            self.first = getattr(self, "first", batch)
            calls.append(batch)
            return super().__call__(self.first)

    assert list(gpu_quick.PLAN) == list(gpu.PIECES)
    rehearsal = gpu.parse_arguments(["correctness", "--rehearse"])
    monkeypatch.setattr(gpu, "peak_flops", lambda *args: 1e12)
    for module in (gpu, gpu_rows):  # collecting takes a tenth of a second after each row
        monkeypatch.setattr(module, "gc", SimpleNamespace(collect=lambda: None))
    flags = ["--rehearse", "--output_dir", str(tmp_path)]
    with emulated_graphs():
        gpu.main(["correctness", *flags])
        gpu.main(["steps", *flags])
    for piece in ("products", "profile", "lengths"):
        gpu.main([piece, *flags])
    results = read_results(tmp_path, gpu.PIECES)
    assert not [row for rows in results.values() for row in rows.values() if "error" in row]
    assert [len(rows) for rows in results.values()] == [1 + 1 + 17, 1 + 3 + 1, 1 + 6, 1 + 2, 1 + 6]
    step = gpu.describe_step(gpu.REHEARSAL, gpu.REHEARSAL.shapes[0])
    config = SnugBertConfig.from_size("tiny")
    for name, flops in (
        ("q, k, v, one product", 6 * step.tokens * config.hidden_size**2),
        ("vocabulary", 2 * step.labeled * config.hidden_size * 320),
    ):
        assert results["products"][f"4 x 24 | {name}"]["flops"] == flops
    for name, row in (results["steps"] | results["lengths"]).items():
        assert "machine" in row or (len(row["seconds"]) == 2 and 0 < row["fill"] <= 1)
        # The next compiled side uses the same code.
        assert bool(row.get("compiled")) == name.endswith(("compiled, graphs", "compiled layers"))
    with_graphs = {name: row for name, row in (results["correctness"] | results["steps"]).items() if row.get("graphs")}
    assert list(with_graphs) == ["pretraining, float32 | SnugBERT, graphs", "pretraining, 4 x 24 | SnugBERT, graphs"]
    distances = {name: row["distance"] for name, row in results["products"].items() if "distance" in row}
    assert len(distances) == 3 and max(distances.values()) < 0.01
    ragged = gpu.Step(3, 24, 40, 5, torch.tensor([0, 24, 31, 40], dtype=torch.int32))
    assert 0 < gpu.time_packed_attention(ragged, config, rehearsal, gpu.attend_scattered)["distance"] < 0.01

    # Rows are not repeated. Ratios are to stock BERT on the same work.
    before = (tmp_path / "steps.jsonl").read_text()
    gpu.main(["steps", *flags])
    assert (tmp_path / "steps.jsonl").read_text() == before
    table = format_results(tmp_path, gpu.PIECES)
    ours, stock = (results["steps"][f"pretraining, 4 x 24 | {side}"] for side in ("SnugBERT", "stock sdpa"))
    ratio = np.median(stock["seconds"]) / np.median(ours["seconds"])
    assert re.search(rf"\| pretraining, 4 x 24 \| SnugBERT \| .* \| {ratio:.2f} \|  \| \d\.\d+ \| 0\.\d \|\n", table)
    assert table.count("(none recorded: the step waits for the GPU at _local_scalar_dense") == 2  # backend "eager"
    assert table.count("| equal |") == 3 + 1 and not re.search("DIFFERENT|REPEATS|Not measured", table)

    monkeypatch.setattr(gpu, "CudaGraphs", Stale)
    rows = list(gpu.correctness_rows(rehearsal))[:-1]
    monkeypatch.setitem(gpu.PIECES, "correctness", lambda args: rows)
    (tmp_path / "correctness.jsonl").unlink()
    calls = []
    gpu.main(["correctness", *flags])
    assert len(calls) == 2 * (3 + 1) * gpu.CHECKED_BATCHES  # two sides; the third time, a graph is recorded
    lines = [line for line in format_results(tmp_path, gpu.PIECES).splitlines() if "| equal |" in line]
    assert len(lines) == 1 and "SnugBERT, compiled |" in lines[0]


def test_failures_of_gpu_measurements(tmp_path, monkeypatch):
    """A row that fails is recorded, and the next one runs. After an error of the GPU, a new process continues."""
    import gpu
    from gpu_table import format_losses, format_results, read_rows

    build, errors = gpu.build, [torch.OutOfMemoryError("out of memory"), RuntimeError("CUDA error: illegal address")]

    def another(side, work, settings, **overrides):
        if side == "stock" and work.name == "" and errors:
            raise errors.pop(0)
        return build(side, work, settings, **({"hidden_act": "relu"} if side == "stock" else {}))

    monkeypatch.setattr(gpu, "build", another)
    monkeypatch.setattr(gpu, "peak_flops", lambda *args: 1e12)
    stock = [gpu.STOCK, gpu.STOCK, gpu.EAGER, gpu.STOCK]

    def step_rows(args):
        load = gpu.make_loader(args, "PreTraining")
        return ((str(i), partial(gpu.time_pretraining, side, load, (4, 24), args)) for i, side in enumerate(stock))

    monkeypatch.setitem(gpu.PIECES, "steps", step_rows)
    monkeypatch.setitem(gpu.PIECES, "correctness", lambda args: list(gpu.correctness_rows(args))[-2:])
    flags = ["--rehearse", "--output_dir", str(tmp_path)]
    with pytest.raises(SystemExit, match="a new process continues"):
        gpu.main(["steps", *flags])
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"row": "half a line')
    gpu.main(["steps", *flags])
    gpu.main(["correctness", *flags])
    gpu.main(["lengths", *flags, "--deadline", "-1"])
    rows = read_rows(tmp_path / "steps.jsonl").values()
    assert [row.get("error", "")[:16] for row in rows] == ["", "OutOfMemoryError", "RuntimeError: CU", "", ""]
    table = format_results(tmp_path, gpu.PIECES)
    assert "- steps: 0: OutOfMemoryError: out of memory\n" in table
    assert table.count("**DIFFERENT**") == 2 and table.count(": not measured: the time was over") == 1 + 6
    assert "- products: no rows\n" in table
    log = (tmp_path / "log.txt").read_text()
    assert "steps: 0\nTraceback" in log and "in another\n" in log
    assert format_losses([2.5, 2.6]) == "2.500" and "REPEATS" in format_losses([2.5, 2.5])


GPU_PIECES = """
import json, pathlib, subprocess, sys, time
piece, folder = sys.argv[1], pathlib.Path(sys.argv[sys.argv.index("--output_dir") + 1])
with (folder / "runs").open("a") as file:
    file.write(piece + "\\n")
runs = (folder / "runs").read_text().split().count(piece)
def write(name, **row):
    with (folder / f"{piece}.jsonl").open("a") as file:
        file.write(json.dumps({"row": name, **row}) + "\\n")
if piece == "products":  # hangs, and so does its child
    write("device", machine={"device": "none"}, bfloat16_flops=1e12)
    write("copy", error="did not finish")
    child = subprocess.Popen(["sleep", "100"])
    (folder / "child").write_text(str(child.pid))
    time.sleep(100)
if piece == "correctness":  # crashes after a row, and finishes in the second process
    write(str(runs), error=f"crash {runs}")
    sys.exit(runs == 1)
sys.exit(piece == "steps")  # crashes before any row
"""


def test_pieces_of_the_gpu_measurements_have_time_limits(tmp_path, monkeypatch, capsys):
    """A piece that hangs is killed with its processes, one that crashes continues, and the others run."""
    import gpu_quick

    (tmp_path / "gpu.py").write_text(GPU_PIECES)
    monkeypatch.setattr(gpu_quick, "__file__", str(tmp_path / "gpu_quick.py"))
    monkeypatch.setattr(gpu_quick, "REPOSITORY", tmp_path)
    monkeypatch.setattr(gpu_quick, "SHORTEST", 0)
    monkeypatch.setattr(gpu_quick, "PLAN", dict.fromkeys(gpu_quick.PLAN, 60) | {"products": 1})
    out = tmp_path / "out"
    out.mkdir()
    (out / "profile.jsonl").write_text("of an earlier call, on another card")
    start = time.monotonic()
    gpu_quick.main(["--output_dir", str(out)])
    assert 1 <= time.monotonic() - start < 20
    runs = ["products", "correctness", "correctness", "steps", "profile", "lengths"]
    assert (out / "runs").read_text().split() == runs
    child = Path(f"/proc/{(out / 'child').read_text()}/stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"  # killed
    table = (out / "table.md").read_text()
    assert table in capsys.readouterr().out
    for line in (
        "products: copy: did not finish",
        "correctness: 1: crash 1",
        "correctness: 2: crash 2",
        "profile: no rows",
    ):
        assert f"- {line}\n" in table
    assert {path.name for path in out.iterdir()} >= {"compiler-cache.zip"} and not list(out.glob("*.tmp"))
    gpu_quick.main(["--plan"])
    assert re.search(r"\b1 s  products\n  60 s  correctness\n", capsys.readouterr().out)


def test_the_gpu_measurements_fit_into_their_time():
    import gpu_quick
    import gpu_recipe

    assert sum(gpu_quick.PLAN.values()) + gpu_quick.FINISHING <= 510 - 15  # 15 s to unpack wheels
    longest = max(sum(gpu_recipe.PLAN.values()), gpu_recipe.LONGEST_TRAINING)
    assert longest + gpu_recipe.FINISHING <= 600 - 15


def test_the_script_of_gpu_measurements(tmp_path):
    """It runs with the repository's packages, and refuses other commands."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH" "$@"\n')
    python.chmod(0o755)

    def run(*flags: str) -> tuple[int, str]:
        environment = os.environ | {"PYTHON": str(python), "PYTHONPATH": "others"}
        process = subprocess.run([BENCHMARKS / "gpu.sh", *flags], env=environment, capture_output=True, text=True)
        return process.returncode, process.stdout

    path = f"{BENCHMARKS.parent}:{BENCHMARKS.parent}/build/site:others"
    assert run("quick", "steps", "--plan") == (0, f"{path} {BENCHMARKS}/gpu_quick.py steps --plan\n")
    assert run("recipe", "--plan") == (0, f"{path} {BENCHMARKS}/gpu_recipe.py --plan\n")
    assert run("eager") == run() == (2, "")


@pytest.fixture
def recipe_flags(data_dir, tmp_path) -> list[str]:
    """Flags of the pieces of the recipe, with little data."""
    data, vocabulary = tmp_path / "data", data_dir / "vocab/bert-base-uncased-vocab.txt"
    for folder in ("tokenizer", "books_en", "blimp"):
        (data / folder).mkdir(parents=True)
    (data / "glue").symlink_to(data_dir / "glue")
    with vocabulary.open() as tokens:
        (data / "tokenizer/vocab.txt").write_text("".join(islice(tokens, 2000)))
    text = write_first_lines(data_dir / "wikitext2/valid.docs.txt.gz", 300, tmp_path)
    (data / "books_en/validation.txt.gz").write_bytes(gzip.compress(Path(text).read_bytes()))
    for name in ("adjunct_island", "anaphor_gender_agreement"):
        (data / f"blimp/{name}.jsonl.gz").symlink_to(data_dir / f"blimp/{name}.jsonl.gz")
    prepare = ["prepare", "--train_file", text, "--tokenizer_name", str(data / "tokenizer")]
    assert snugbert_command([*prepare, "--output_dir", str(data / "corpus")]) == 0
    folders = {"data_dir": data, "work_dir": tmp_path / "runs", "output_dir": tmp_path / "out"}
    return ["--rehearse", *chain.from_iterable((f"--{name}", str(folder)) for name, folder in folders.items())]


def test_rehearsal_of_the_recipe(recipe_flags, tmp_path, monkeypatch):
    """All pieces in this process. The parts of the weights can be joined, also after a stopped run."""
    import recipe
    from gpu_recipe import format_results
    from gpu_table import read_rows

    timers = []

    class Timer:
        """Notes what it would do, and when."""

        def __init__(self, seconds, function, arguments):
            timers.append((seconds, partial(function, *arguments)))

        def start(self):
            pass

        cancel = start

    monkeypatch.setattr(recipe.threading, "Timer", Timer)
    monkeypatch.setattr(recipe, "EXPECTED", {"rte": 10, "cola": 1e9})
    monkeypatch.setattr(recipe, "SEEDS", {"rte": 1})
    monkeypatch.setattr(recipe, "PART_BYTES", 10**6)
    later = ["--deadline", str(time.monotonic() + 1000)]
    for piece in recipe.PIECES:
        recipe.main([piece, *recipe_flags, *later, "--set", "weight_decay=0.2"])
    out, runs = tmp_path / "out", tmp_path / "runs"
    rows = read_rows(out / "rows.jsonl")
    assert {name: row["error"] for name, row in rows.items() if "error" in row} == {
        "cola, seed 1": rows["cola, seed 1"]["error"]
    }
    assert "TimeoutError: it needs about 1000000000.0 s" in rows["cola, seed 1"]["error"]
    assert len(rows["speed"]["seconds_per_step"]) == 3 and rows["speed"]["overhead"] > 0
    run = rows["training"]
    assert run["step"] == run["planned_steps"] == len(run["curve"]) == 12 and run["settings"]["weight_decay"] == "0.2"
    last = json.loads((runs / "pretrained/metrics.jsonl").read_text().splitlines()[-2])
    assert last["learning_rate"] == pytest.approx(2e-3 / 11)  # 1 step of warmup, 11 of decay
    ours, stock = (rows[f"held-out text, {side}"]["metrics"] for side in ("SnugBERT", "stock BERT"))
    assert ours == pytest.approx(stock, rel=1e-5) and rows["BLiMP"]["pairs"] == 2
    table = format_results(dict(rows))
    assert f"| rte | {rows['rte, seed 1']['score']:.1f} |" in table and "- recipe: cola, seed 1: TimeoutError" in table

    def load() -> dict[str, torch.Tensor]:
        parts = sorted(out.glob("weights.tar.*"))
        assert len(parts) > 1
        subprocess.run(["tar", "x"], input=b"".join(part.read_bytes() for part in parts), cwd=out, check=True)
        AutoTokenizer.from_pretrained(out / "model")
        return AutoModelForPreTraining.from_pretrained(out / "model", dtype=torch.bfloat16).state_dict()

    trained = AutoModelForPreTraining.from_pretrained(runs / "pretrained").bfloat16().state_dict()
    torch.testing.assert_close(load(), trained, atol=0, rtol=0)

    # The time is over in the third step.
    compute_loss = PretrainingTrainer.compute_loss

    def stop(trainer, *args, **kwargs):
        if trainer.state.global_step == 2:
            timers[-1][1]()
        return compute_loss(trainer, *args, **kwargs)

    monkeypatch.setattr(PretrainingTrainer, "compute_loss", stop)
    (out / "rows.jsonl").write_text(json.dumps({"row": "speed", "error": "not known"}))
    recipe.main(["training", *recipe_flags, "--deadline", str(time.monotonic() + 1000)])
    rows = read_rows(out / "rows.jsonl")
    assert rows["training"]["step"] == 3 and rows["weights"]["source"] == "checkpoint-3"
    assert timers[-1][0] == pytest.approx(1000 - recipe.STOPPING, abs=1)
    assert load().keys() == trained.keys()


def test_steps_of_the_recipe():
    """At most the passes, and no more than fit. The first half of each phase does not count as speed."""
    import recipe

    speed = {"seconds_per_step": [0.01, 0.03], "overhead": 40, "passes_per_step": 0.001}
    assert recipe.choose_steps(speed, [0.75, 0.25], 10, 1e6) == 10_000
    fits = 40 + recipe.SECONDS_OF_GRAPHS + 1000 * (0.015 + 0.001 * recipe.SECONDS_PER_PASS)
    assert recipe.choose_steps(speed, [0.75, 0.25], 10, fits + 0.001) == 1000
    assert recipe.choose_steps(speed, [0.75, 0.25], 10, 0) == 1
    assert recipe.read_shares({"phases": "64:50%:mlm, 128 : 30.5 % ,256:19.5%"}) == [0.5, 0.305, 0.195]
    rates = {5: 1, 10: 100, 15: 200, 20: 100, 25: 1, 30: 50}  # step -> tokens per second; a step has 10 tokens
    lines = [{"step": step, "tokens": 10 * step, "tokens_per_second": rate} for step, rate in rates.items()]
    assert recipe.average_seconds(lines, [20, 10]) == [(50 / 200 + 50 / 100) / 10, 50 / 50 / 5]


RECIPE_PIECES = """
import json, pathlib, sys
print("piece", *sys.argv[1:])
with (pathlib.Path(sys.argv[sys.argv.index("--output_dir") + 1]) / "rows.jsonl").open("a") as file:
    file.write(json.dumps({"row": sys.argv[1] + ", 1", "task": sys.argv[1], "score": 61.0, "baseline": 0}) + "\\n")
"""


def test_the_recipe_runs_its_pieces(tmp_path, monkeypatch, capsys):
    import gpu_quick
    import gpu_recipe

    (tmp_path / "recipe.py").write_text(RECIPE_PIECES)
    monkeypatch.setattr(gpu_recipe, "__file__", str(tmp_path / "gpu_recipe.py"))
    for module in (gpu_quick, gpu_recipe):
        monkeypatch.setattr(module, "REPOSITORY", tmp_path)
    monkeypatch.setattr(gpu_recipe, "PLAN", dict.fromkeys(gpu_recipe.PLAN, 20))
    (tmp_path / "corpus").mkdir()
    out = tmp_path / "out"
    flags = ["--data_dir", str(tmp_path), "--output_dir", str(out)]
    gpu_recipe.main([*flags, "--seed", "7", "--set", "learning_rate=1e-3", "optim=muon"])
    log = [line.split() for line in (out / "log.txt").read_text().splitlines()]
    assert [line[1] for line in log] == ["training", "scores", "finetuning"]
    assert all(line[line.index("--seed") + 1] == "7" for line in log)
    assert all(line[line.index("--set") + 1 :][:2] == ["learning_rate=1e-3", "optim=muon"] for line in log)
    table = (out / "table.md").read_text()
    assert table in capsys.readouterr().out and "| finetuning | 61.0 | 61.0 | 0.0 |" in table
    assert {path.name for path in out.iterdir()} == {"rows.jsonl", "log.txt", "table.md", "compiler-cache.zip"}
    with pytest.raises(SystemExit):
        gpu_recipe.main([*flags, "--set", "lerning_rate=1e-3"])
    assert "--lerning_rate" in capsys.readouterr().err


def test_compiler_cache_of_gpu_measurements(tmp_path, monkeypatch):
    """It comes back as it was. Without room for all, graphs are kept, then small files."""
    import gpu_quick

    rng, folder = np.random.default_rng(0), tmp_path / "cache"
    sizes = {"triton/0/a/k.cubin": 30, "fxgraph/ab/key/graph": 50, "aotautograd/key/entry": 40, "ab/x.best_config": 9}
    for name, size in sizes.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(rng.bytes(1000 * size))
    for limit, kept in ((200_000, 4), (120_000, 3), (95_000, 2)):
        monkeypatch.setattr(gpu_quick, "CACHE_BYTES", limit)
        gpu_quick.pack_cache(folder, tmp_path / f"{limit}.zip")
        gpu_quick.unpack_cache(tmp_path / f"{limit}.zip", tmp_path / str(limit))
        files = {str(path.relative_to(tmp_path / str(limit))) for path in (tmp_path / str(limit)).rglob("*.*")}
        found = [name for name in sizes if (tmp_path / str(limit) / name).exists()]
        assert len(found) == kept and len(files) <= kept and (limit == 200_000) == ("triton/0/a/k.cubin" in found)
        assert all((tmp_path / str(limit) / name).read_bytes() == (folder / name).read_bytes() for name in found)
    gpu_quick.unpack_cache(tmp_path / "missing.zip", tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_kernels_of_gpu_measurements():
    """The names are from an H100."""
    import gpu
    from gpu_table import format_profiles

    names = {
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::": "gradients: zero and copy",
        "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>, Adam": "AdamW",
        "void at::native::(anonymous namespace)::masked_scale_kernel<c10::BFloat16, float>": "pointwise",
        "void at::native::(anonymous namespace)::compute_grad_weight<float, float, long>": "embeddings",
        "void at::native::(anonymous namespace)::krn_partials_per_segment<long>": "embeddings",
        "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native:": "sums",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda": "casts and copies",
        "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cud": "casts and copies",
        "nvjet_sm90_tst_192x96_64x5_1x2_h_bz_NTT": "matrix products",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>": "matrix products",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_trai": "attention",
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80": "attention",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x64x64_4x1x1": "attention",
        "triton_per_fused_add_native_dropout_native_layer_norm_0": "compiled, with sums",
        "triton_poi_fused_gelu_1": "compiled, pointwise",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>": "pointwise",
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::BFloat16>": "pointwise",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float>": "vocabulary",
        "void at::native::(anonymous namespace)::embedding_backward_feature_kernel": "embeddings",
        "spin": "other",
    }
    assert {name: gpu.classify(name) for name in names} == names
    cuda, cpu = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
    fields = ("key", "device_type", "is_user_annotation", "self_device_time_total", "count")
    events = [
        ("nvjet_a", cuda, False, 4000, 8),
        ("gemm_b", cuda, False, 2000, 2),
        ("spin", cuda, False, 500, 2),
        ("Optimizer.step", cuda, True, 9000, 2),
        ("aten::mm", cpu, False, 0, 8),
    ]
    kernels = gpu.average_kernels([SimpleNamespace(**dict(zip(fields, event, strict=True))) for event in events], 2)
    classes = gpu.sum_classes(kernels)
    assert classes == {"matrix products": [3.0, 5.0], "other": [0.25, 1.0]}
    row = {"classes": classes, "kernels": kernels, "ms": 6.5, "busy": 0.5, "waits": {"step.py:3": 2.0}}
    works = ("pretraining, 4 x 24 | SnugBERT", "pretraining, 256 x 128 | SnugBERT, compiled, graphs")
    table = format_profiles(dict.fromkeys(works, row))
    budget = [line.split(" | ") for line in (BENCHMARKS / "results/step_budget.md").read_text().splitlines()]
    start = budget.index(["### SnugBERT, compiled, 256 x 128"])
    gigabytes, *_, least = next(line for line in budget[start:] if line[0] == "| matrix products")[2:]
    products = f"3.00, 5 [{gigabytes} GB, {least.removesuffix(' |')}]"
    for line in (f"| matrix products | 3.00, 5 | {products} |", "- 2.00 ms, 4: `nvjet_a`"):
        assert f"\n{line}\n" in table
    everything, clipping = (
        next(line for line in budget[start:] if line[0] == f"| {name}") for name in ("all", "clipping")
    )
    total = float(everything[2]) - float(clipping[2])
    found = float(table.split("| all kernels | 3.25, 6 | 3.25, 6 [")[1].split(" GB, ")[0])
    assert found == pytest.approx(total, abs=0.06)  # a sum of rounded numbers
    assert table.endswith("- 2.0 waits at step.py:3")


def test_lengths_of_gpu_measurements():
    import gpu_batches

    rng = np.random.default_rng(0)
    drawn = gpu_batches.draw_lengths(gpu_batches.GLUE_LENGTHS["rte"], 10_000, 120, rng)
    expected = np.minimum(gpu_batches.GLUE_LENGTHS["rte"], 120)
    assert np.abs(np.percentile(drawn, range(5, 100, 5)) - expected[1:-1]).max() < 3
    for count in (1, 2, 3, 4, 5, 9):
        example = gpu_batches.make_example(count, 300, rng)
        assert len(example["input_ids"]) == len(example["token_type_ids"]) == count


def test_default_steps():
    import finetuning
    import pretraining_step

    tasks = ["--tasks", "sst2", "--glue_dir", "."]
    for parse, argv, on_cpu in (
        (pretraining_step.parse_arguments, ["--train_file", "text"], 1),
        (finetuning.parse_arguments, tasks, 4),
    ):
        for flags, steps in (([], on_cpu), (["--device", "cuda"], 10), (["--device", "cuda", "--steps", "3"], 3)):
            assert parse([*argv, *flags]).steps == steps


def test_row_sizes(data_dir, capsys, monkeypatch):
    import row_sizes

    monkeypatch.setattr(row_sizes, "PRETRAINING", ((2, 32, True), (2, 32, False)))
    text, glue = str(data_dir / "sample_text/sample_text.txt"), str(data_dir / "glue")
    row_sizes.main(["--train_file", text, "--glue_dir", glue, "--tasks", "wnli", "--batches", "3"])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows][2:] == ["WNLI"] and rows[0][0].startswith("pretraining")
    for _, tokens, multiple, sizes, padding, frequent in rows:
        assert int(sizes) <= 3 and frequent == "100.0%"
        assert float(padding.rstrip("%")) / 100 <= int(multiple) / int(tokens.replace(",", ""))


def print_host_time_and_waits() -> None:
    sys.path.insert(0, str(BENCHMARKS))
    import host_time
    import waits_and_graphs

    host_time.load_kernels()
    host_time.act_as_gpu()
    host_time.print_rows("SnugBERT", True, 2)
    waits_and_graphs.HEADS = {"tagging": "TokenClassification"}
    waits_and_graphs.print_rows("now")


def test_masks(data_dir, steps, tmp_path, capsys, monkeypatch):
    """No word is cut if words or spans are masked."""
    import masks

    monkeypatch.setattr(masks, "VOCAB_SIZE", 500)
    monkeypatch.setattr(masks, "SEEDS", (1,))
    monkeypatch.setattr(masks, "RUNS", {"spans, 15 %": masks.RUNS["spans, 15 %"]})
    text = write_first_lines(data_dir / "wikitext2/valid.docs.txt.gz", 200, tmp_path)
    arguments = ["--train_file", text, "--output_dir", str(tmp_path / "out")]
    masks.main(["shares", *arguments, "--kinds", "byte-bpe", "unigram", "--tokens", "30000", "--max_seq_length", "64"])
    _, *rows = cells(capsys.readouterr().out)
    assert [row[2] for row in rows] == [*masks.MASKINGS] * 2
    assert [row[8] == "0.00 %" for row in rows] == [False, True, True] * 2
    masks.main(["speed", *arguments, "--kinds", "byte-bpe"])
    assert capsys.readouterr().out.count("| byte-level BPE | ") == 2
    masks.main(["train", *arguments, "--validation_file", text, "--max_steps", "2"])
    assert "| spans, 15 % | " in capsys.readouterr().out and len(steps) == 3


def test_host_time_and_waits():
    """The kernels that do nothing replace torch's own, so this runs in a process of its own."""
    process = forked.run(print_host_time_and_waits)
    assert process.returncode == 0, process.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in process.stdout.splitlines()]
    assert [row[:2] for row in rows[:4]] == [
        [side, dtype] for dtype in ("bfloat16", "float32") for side in ("SnugBERT", "stock BERT")
    ]
    for ours, stock in (rows[:2], rows[2:4]):
        counts = [[int(row[2].split()[0]), int(row[3].split()[0].replace(",", ""))] for row in (ours, stock)]
        # A layer has the same operations on both sides, but for one product instead of three. There are few others.
        assert all(0.7 < mine / theirs < 1 for mine, theirs in zip(*counts, strict=True))
    assert [row[:4] for row in rows[4:]] == [["now", "tagging", "packed", "0"], ["now", "tagging", "padded", "1"]]
    assert rows[4][4:] == ["0", "1", ", ".join("0" * 7)]


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


def test_dry_run_reads_predictions_and_reports_the_largest_errors(tmp_path, capsys, monkeypatch):
    from dry_run import main, read_prediction

    from snugbert.trainers.dry_run import Stopwatch, describe_peak, describe_seconds, print_plan

    watch = Stopwatch(0)
    watch.seconds.append(1.0)
    memory = f"{describe_peak(torch.device('cpu'))}, including weights 90.9MB"
    args = SimpleNamespace(output_dir="run", should_save=True)
    print_plan(args, {"memory": memory, "time": describe_seconds(10.2, 3700.4, 30.0, [watch])})
    (tmp_path / "log.txt").write_text(capsys.readouterr().out)
    seconds, size = read_prediction(tmp_path / "log.txt")
    assert seconds == 3720  # 1 h 2 min
    assert 1e8 < size < 1e12
    rows = [
        {"dry": 9.0, "predicted_seconds": predicted, "seconds": 100.0, "predicted_bytes": 0.9e9, "bytes": 1e9}
        for predicted in (105.0, 88.0, 110.0)
    ]
    (tmp_path / "results.json").write_text(json.dumps({"job": rows}))
    command = ["dry_run.py", "--model_name_or_path", "m", "--data_dir", "d", "--output_dir", str(tmp_path), "--report"]
    monkeypatch.setattr(sys, "argv", command)
    main()
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("| job |") and "9.0" in line)
    parts = [part.strip() for part in row.strip("|").split("|")]
    assert parts[0] == "job" and parts[1] == "9.0" and parts[3] == "100.0" and parts[4] == "-12.0 %"
    assert parts[5:] == ["0.900", "1.000", "-10.0 %"]
