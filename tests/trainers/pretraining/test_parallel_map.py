"""Processes that are not forked give the same results."""

from types import SimpleNamespace

from prepared import prepare

from snugbert.trainers.pretraining import parallel_map
from snugbert.trainers.pretraining.examples import PretrainingDataset


def test_spawned_processes_write_the_same_files_as_forked_ones(small, words_tokenizer, tmp_path, monkeypatch):
    """On macOS and Windows processes are spawned, and their arguments are pickled."""
    written = []
    for system in ("linux", "darwin"):
        monkeypatch.setattr(parallel_map, "sys", SimpleNamespace(platform=system))
        folder = tmp_path / system
        corpus = prepare(folder, words_tokenizer, small.text, language=None, num_workers=2)
        PretrainingDataset(corpus, words_tokenizer, max_seq_length=16, epochs_dir=folder)
        written.append([file.read_bytes() for file in sorted(folder.iterdir()) if "lock" not in file.name])
    assert len(written[0]) == 2 and written[0][1] == small.bytes
    assert written[0] == written[1]
