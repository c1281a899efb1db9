"""Measurements of text, corpora, rows and masks."""

import json
import os
import re
from itertools import chain, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from benchmark_files import write_first_lines
from markdown_tables import cells
from synthetic import make_corpus
from transformers import AutoTokenizer

from snugbert import SnugBertTokenizer
from snugbert.data.corpus import preparation
from snugbert.data.corpus.corpus import open_corpus
from snugbert.storage.urls import read_bytes

pytestmark = pytest.mark.long


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
