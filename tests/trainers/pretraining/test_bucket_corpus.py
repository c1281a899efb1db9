"""`snugbert pretrain --corpus s3://...`: a run from a bucket equals the run from the disk."""

import shutil

import forked
import pytest
from prepared import prepare
from safetensors.torch import load_file
from torch.testing import assert_close

import snugbert
from snugbert.data.corpus import preparation
from snugbert_cli import main as snugbert_command

FLAGS = "--config_name tiny --max_steps 12 --max_seq_length 32 --use_cpu true --window_blocks 3 --save_strategy no "
FLAGS += "--learning_rate 1e-3 --config_overrides hidden_dropout_prob=0,attention_probs_dropout_prob=0"


@pytest.mark.slow
def test_two_processes_that_share_a_small_cache_equal_the_local_run(data_dir, bucket, tmp_path, monkeypatch):
    """Over two windows of a corpus of 60 blocks."""
    vocabulary = (data_dir / "vocab/bert-base-uncased-vocab.txt").read_text().splitlines(keepends=True)
    (tmp_path / "vocab.txt").write_text("".join(vocabulary[:4000]))
    tokenizer = snugbert.SnugBertTokenizer(vocab=str(tmp_path / "vocab.txt"))
    tokenizer.save_pretrained(tmp_path / "tok")
    monkeypatch.setattr(preparation, "BLOCK_TOKENS", 1000)
    monkeypatch.setattr(preparation, "BATCH_CHARACTERS", 1000)
    prepare(tmp_path / "corpus", tokenizer, data_dir / "wikitext2/test.docs.txt.gz", num_workers=1)
    shutil.copytree(tmp_path / "corpus", bucket.folder / "corpus")

    def pretrain(name, corpus, batch_size, *more, processes=1):
        paths = ["--tokenizer_name", tmp_path / "tok", "--corpus", corpus, "--output_dir", tmp_path / name]
        command = ["pretrain", *FLAGS.split(), *paths, "--per_device_train_batch_size", batch_size, *more]
        process = forked.run(snugbert_command, list(map(str, command)), processes=processes)
        assert process.returncode == 0, process.stderr
        return load_file(tmp_path / name / "model.safetensors")

    half = 0.5 * (tmp_path / "corpus/part-00000-of-00001.arrow").stat().st_size / 1e9
    local = pretrain("local", tmp_path / "corpus", 32)
    remote = pretrain("remote", f"{bucket.url}/corpus", 16, "--corpus_cache_gb", half, processes=2)
    assert_close(remote, local, rtol=0, atol=2e-5)
    assert not (tmp_path / "remote/epochs").exists()
