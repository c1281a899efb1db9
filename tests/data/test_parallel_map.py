"""Processes that are not forked give the same results."""

import multiprocessing
from types import SimpleNamespace

from prepared import prepare

from snugbert.data import parallel_map
from snugbert.data.tokenizing import DocumentTokenizer
from snugbert.trainers.pretraining.examples import PretrainingDataset


def test_spawned_processes_write_the_same_files_as_forked_ones(small, words_tokenizer, tmp_path, monkeypatch):
    """On macOS and Windows processes are spawned, and their arguments are pickled.

    Processes of a fork server get pickled arguments too, and import the package only once.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([PretrainingDataset.__module__, DocumentTokenizer.__module__])
    contexts = {"fork": multiprocessing.get_context("fork"), "spawn": server}
    used, written = [], []
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: used.append(method) or contexts[method])
    for system in ("linux", "darwin"):
        monkeypatch.setattr(parallel_map, "sys", SimpleNamespace(platform=system))
        folder = tmp_path / system
        corpus = prepare(folder, words_tokenizer, small.text, language=None, num_workers=2)
        PretrainingDataset(corpus, words_tokenizer, max_seq_length=16, epochs_dir=folder)
        written.append([file.read_bytes() for file in sorted(folder.iterdir()) if "lock" not in file.name])
    assert used == ["fork", "fork", "spawn", "spawn"]
    assert len(written[0]) == 2 and written[0][1] == small.bytes
    assert written[0] == written[1]
