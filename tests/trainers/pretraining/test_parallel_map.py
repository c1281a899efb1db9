"""Several processes give the same results in the same order."""

from types import SimpleNamespace

from prepared import prepare

from snugbert.trainers.pretraining import parallel_map
from snugbert.trainers.pretraining.examples import PretrainingDataset


def pairs(corpus, tokenizer, folder):
    return PretrainingDataset(corpus, tokenizer, max_seq_length=16, epochs_dir=folder)


def test_processes_that_are_not_forked_do_the_same(small, words_tokenizer, tmp_path, monkeypatch):
    """As on macOS and Windows: what they need is pickled. The files are the same, byte for byte."""
    written = []
    for system in ("linux", "darwin"):
        monkeypatch.setattr(parallel_map, "sys", SimpleNamespace(platform=system))
        folder = tmp_path / system
        corpus = prepare(folder, words_tokenizer, small.text, language=None, num_workers=2)
        pairs(corpus, words_tokenizer, folder)
        written.append([file.read_bytes() for file in sorted(folder.iterdir()) if "lock" not in file.name])
    assert len(written[0]) == 2 and written[0][1] == small.bytes
    assert written[0] == written[1]
