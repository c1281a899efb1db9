"""Measurements of text, corpora, rows and masks."""

import os
from itertools import pairwise

import numpy as np
import pytest
from benchmark_files import write_first_lines
from markdown_tables import cells
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
