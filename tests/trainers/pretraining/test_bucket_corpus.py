"""`snugbert pretrain --corpus s3://...`: a run from a bucket equals the run from the disk."""

import shutil
from types import SimpleNamespace

import forked
import pytest
from prepared import prepare
from safetensors.torch import load_file
from torch.testing import assert_close

import snugbert
from snugbert.data.corpus import preparation
from snugbert_cli import main as snugbert_command

FLAGS = "--config_name tiny --max_steps 30 --max_seq_length 32 --use_cpu true --window_blocks 3 --seed 3 "
FLAGS += "--logging_steps 20 --save_strategy no --learning_rate 1e-3 "
FLAGS += "--config_overrides hidden_dropout_prob=0,attention_probs_dropout_prob=0"


@pytest.fixture
def stored(data_dir, tmp_path, monkeypatch, bucket):
    """A corpus of 60 blocks on the disk and in a bucket. The small vocabulary saves time."""
    vocabulary = (data_dir / "vocab/bert-base-uncased-vocab.txt").read_text().splitlines(keepends=True)
    (tmp_path / "vocab.txt").write_text("".join(vocabulary[:4000]))
    tokenizer = snugbert.SnugBertTokenizer(vocab=str(tmp_path / "vocab.txt"))
    monkeypatch.setattr(preparation, "BLOCK_TOKENS", 1000)
    monkeypatch.setattr(preparation, "BATCH_CHARACTERS", 1000)
    tokenizer.save_pretrained(tmp_path / "tok")
    prepare(tmp_path / "corpus", tokenizer, data_dir / "wikitext2/test.docs.txt.gz", num_workers=1)
    shutil.copytree(tmp_path / "corpus", bucket.folder / "corpus")
    part = tmp_path / "corpus/part-00000-of-00001.arrow"
    return SimpleNamespace(local=tmp_path / "corpus", url=f"{bucket.url}/corpus", bytes=part.stat().st_size)


def test_a_run_from_a_bucket_has_the_weights_of_the_local_run(stored, tmp_path):
    """Over four windows. With a small cache, with a data worker, and with two processes that share a cache."""

    def pretrain(name, corpus, *more, processes=1, batch_size=32):
        paths = ["--tokenizer_name", tmp_path / "tok", "--corpus", corpus, "--output_dir", tmp_path / name]
        command = ["pretrain", *FLAGS.split(), *paths, "--per_device_train_batch_size", batch_size, *more]
        process = forked.run(snugbert_command, list(map(str, command)), processes=processes)
        assert process.returncode == 0, process.stderr
        return load_file(tmp_path / name / "model.safetensors")

    half = "--corpus_cache_gb", 0.5 * stored.bytes / 1e9
    local = pretrain("local", stored.local)
    for weights in (
        pretrain("remote", stored.url, "--dataloader_num_workers", 1),
        pretrain("small", stored.url, *half),
    ):
        assert_close(weights, local, rtol=0, atol=0)
    assert not (tmp_path / "small/epochs").exists()
    two = pretrain("two", stored.url, *half, processes=2, batch_size=16)
    assert_close(two, local, rtol=0, atol=2e-5)
