"""Windows of shuffled blocks: the order of a corpus, whether it is on the disk or in a bucket."""

import shutil
from collections import Counter
from itertools import chain

import forked
import numpy as np
import pytest
from prepared import prepare
from safetensors.torch import load_file
from torch.testing import assert_close
from torch.utils.data import DataLoader

import snugbert
from snugbert.data.corpus import preparation
from snugbert.data.corpus.corpus import open_corpus
from snugbert.data.corpus.corpus_blocks import CachedBlocks
from snugbert.errors import InputError
from snugbert.trainers.pretraining.batches import BatchSampler, Phase, RunBatches
from snugbert.trainers.pretraining.block_windows import Window, Windows
from snugbert.trainers.pretraining.examples import PretrainingDataset
from snugbert_cli import main as snugbert_command


def test_an_epoch_visits_every_block_once():
    windows = Windows(np.arange(1000, 1011), window_blocks=4, seed=1)
    orders = []
    for epoch in range(3):
        parts = [windows.list_blocks(Window(epoch, number)) for number in range(windows.per_epoch)]
        assert sorted(map(len, parts)) == [3, 4, 4] and all(part == sorted(part) for part in parts)
        assert sorted(chain.from_iterable(parts)) == list(range(11))
        orders.append(parts)
        sizes = Counter(windows.locate(epoch, position, 500)[0] for position in range(500))
        assert [sizes[Window(epoch, number)] for number in range(3)] == [
            windows.measure(Window(epoch, number), 500) for number in range(3)
        ]
        assert [windows.locate(epoch, position, 500) for position in (0, 499)] == [
            (Window(epoch, 0), 0),
            (Window(epoch, 2), sizes[Window(epoch, 2)] - 1),
        ]
    assert orders[0] != orders[1] != orders[2]
    assert windows.follow(Window(0, 2)) == (1, 0)


# --- a corpus in a bucket ---------------------------------------------------------------------------------------


@pytest.fixture
def tokenizer(data_dir, tmp_path):
    """Of only 4,000 tokens, to save time."""
    vocabulary = (data_dir / "vocab/bert-base-uncased-vocab.txt").read_text().splitlines(keepends=True)
    (tmp_path / "vocab.txt").write_text("".join(vocabulary[:4000]))
    return snugbert.SnugBertTokenizer(vocab=str(tmp_path / "vocab.txt"))


@pytest.fixture
def stored(data_dir, tmp_path, tokenizer, monkeypatch):
    """A corpus of 60 blocks on the disk."""
    monkeypatch.setattr(preparation, "BLOCK_TOKENS", 1000)
    monkeypatch.setattr(preparation, "BATCH_CHARACTERS", 1000)
    return prepare(tmp_path / "corpus", tokenizer, data_dir / "wikitext2/test.docs.txt.gz", num_workers=1)


def measure(folder) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.arrow"))


def read_batches(dataset, workers: int, first_step: int = 0) -> list[list[int]]:
    """The tokens of every batch of a run with data workers, as in training."""
    phases = [Phase(dataset, 60, 16)]
    sampler = BatchSampler(phases, first_step=first_step, prefetched_batches=2 * workers)
    loader = RunBatches(phases, lambda examples: {"ids": [e["input_ids"].tolist() for e in examples]}, 0, None)  # type: ignore[arg-type]
    return [batch["ids"] for batch in DataLoader(loader, sampler=sampler, batch_size=None, num_workers=workers)]


@pytest.mark.slow
def test_a_bucket_with_a_small_cache_gives_the_same_batches(stored, tmp_path, tokenizer):
    """Also when the run begins in the middle. The cache keeps its limit. Each block is downloaded once an epoch."""
    local = PretrainingDataset(stored, tokenizer, 64, epochs_dir=tmp_path / "local", window_blocks=3)
    size = measure(tmp_path / "corpus")
    expected = read_batches(local, workers=0)
    for name, workers, first_step in (("a", 0, 0), ("b", 1, 25)):
        cache = tmp_path / name / "blocks"
        corpus = open_corpus(f"file://{tmp_path / 'corpus'}", tokenizer, cache, 0.5 * size / 1e9)
        blocks = corpus.blocks
        assert isinstance(blocks, CachedBlocks) and corpus.digest == stored.digest
        sizes: list[int] = []

        def fetch_and_measure(number, fetch=blocks._fetch, cache=cache, sizes=sizes):
            fetch(number)
            sizes.append(sum(file.stat().st_size for file in cache.glob("[0-9]*.block")))

        blocks._fetch = fetch_and_measure  # type: ignore[method-assign]
        remote = PretrainingDataset(corpus, tokenizer, 64, epochs_dir=tmp_path / name, window_blocks=3)
        assert len(remote) == len(local)
        assert 0 < blocks.pinned < len(blocks) / 2
        assert read_batches(remote, workers, first_step) == expected[first_step:]
        if name == "a":
            epochs = 60 * 16 / len(remote)
            assert len(sizes) < (epochs + 1) * len(blocks)
        assert max(sizes) + sum(file.stat().st_size for file in (tmp_path / name).glob("*.examples")) <= 0.5 * size


@pytest.mark.slow
def test_a_cache_that_is_too_small_is_refused(stored, tmp_path, tokenizer):
    size = measure(tmp_path / "corpus")
    corpus = open_corpus(f"file://{tmp_path / 'corpus'}", tokenizer, tmp_path / "blocks", 0.3 * size / 1e9)
    with pytest.raises(InputError, match=r"--corpus_cache_gb .* is too small: two windows of blocks need"):
        PretrainingDataset(corpus, tokenizer, 64, epochs_dir=tmp_path / "epochs", window_blocks=30)


@pytest.mark.slow
def test_two_processes_that_share_a_small_cache_equal_the_local_run(stored, tokenizer, bucket, tmp_path):
    """`snugbert pretrain --corpus s3://...`, over several windows."""
    tokenizer.save_pretrained(tmp_path / "tok")
    shutil.copytree(tmp_path / "corpus", bucket.folder / "corpus")
    flags = "--config_name tiny --config_overrides hidden_dropout_prob=0,attention_probs_dropout_prob=0 --use_cpu true"
    flags += " --max_steps 12 --max_seq_length 32 --window_blocks 3 --save_strategy no --learning_rate 1e-3"

    def pretrain(name, corpus, batch_size, *more, processes=1):
        paths = ["--tokenizer_name", tmp_path / "tok", "--corpus", corpus, "--output_dir", tmp_path / name]
        command = ["pretrain", *flags.split(), *paths, "--per_device_train_batch_size", batch_size, *more]
        process = forked.run(snugbert_command, list(map(str, command)), processes=processes)
        assert process.returncode == 0, process.stderr
        return load_file(tmp_path / name / "model.safetensors")

    half = 0.5 * measure(tmp_path / "corpus") / 1e9
    local = pretrain("local", tmp_path / "corpus", 32)
    remote = pretrain("remote", f"{bucket.url}/corpus", 16, "--corpus_cache_gb", half, processes=2)
    assert_close(remote, local, rtol=0, atol=2e-5)
    assert not (tmp_path / "remote/epochs").exists()
