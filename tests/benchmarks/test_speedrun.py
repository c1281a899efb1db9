"""The speedrun makes its text, continues after an interruption, and reports times and scores."""

import hashlib
import json
import signal
import subprocess
from pathlib import Path

import pytest
import transformers
from markdown_tables import cells

pytestmark = pytest.mark.long

CHAPTERS = """# Title: A Book

## CHAPTER I

It was a _dark_ and
stormy   night\\. The cat &amp; the dog slept.

-----

The rain fell.

## CHAPTER II

The sun rose.
"""


def commit(folder: Path, files: dict[str, str]) -> tuple[str, str]:
    """Makes a repository. Returns its address and its commit."""
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "a"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    return str(folder), head.strip()


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Small repositories instead of the public ones."""
    import speedrun
    import speedrun_text

    article = {"paragraphs": [{"context": "A bird sings."}, {"context": "A bird sings."}, {"context": "It flies."}]}
    books = {"A/Book.md": CHAPTERS, "B/Other.md": CHAPTERS.replace("rain", "snow")}
    pair = json.dumps({"sentence_good": "the cat slept", "sentence_bad": "the cat sleep"})
    (tmp_path / "titles.tsv").write_text("train\tA/Book.md\nvalidation\tB/Other.md\n")
    monkeypatch.setattr(speedrun_text, "TITLES", tmp_path / "titles.tsv")
    monkeypatch.setattr(speedrun_text, "BOOKS", commit(tmp_path / "books", books))
    wiki = commit(tmp_path / "wiki", {"a.json": json.dumps({"data": [article]})})
    monkeypatch.setattr(speedrun_text, "ARTICLES", {"a.json": wiki})
    monkeypatch.setattr(speedrun, "BLIMP", commit(tmp_path / "blimp", {"data/verbs.jsonl": pair}))
    text = "It was a dark and stormy night. The cat & the dog slept.\nThe rain fell.\n\nThe sun rose.\n\n"
    texts = {"books.txt": text, "wikipedia.txt": "A bird sings.\nIt flies.\n\n", "held_out.txt": text}
    texts["held_out.txt"] = text.replace("rain", "snow")
    hashes = {name: hashlib.sha256(each.encode()).hexdigest() for name, each in texts.items()}
    monkeypatch.setattr(speedrun_text, "HASHES", hashes)


@pytest.mark.usefixtures("one_thread")
def test_a_run_is_timed_scored_and_continued(sources, tmp_path, capsys, monkeypatch):
    import speedrun

    argv = [str(tmp_path / "run"), "--track", "cpu", "--vocab_size", "60", "--config_name", "tiny", "--max_steps", "4"]
    argv += ["--objective", "mlm", "--logging_steps", "1", "--save_steps", "2", "--per_device_train_batch_size", "2"]
    save = transformers.Trainer._save_checkpoint

    def save_and_stop(trainer, *args):
        save(trainer, *args)
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patches, pytest.raises(SystemExit) as stopped:
        patches.setattr(transformers.Trainer, "_save_checkpoint", save_and_stop)
        speedrun.main(argv)
    assert stopped.value.code == 128 + signal.SIGTERM
    with pytest.raises(SystemExit, match=r"has a run of `--track cpu .*` with OMP_NUM_THREADS=1\. "):
        speedrun.main([*argv, "--learning_rate", "9"])
    speedrun.main(argv)
    header, row = cells(capsys.readouterr().out)[-2:]
    row = dict(zip(header, row, strict=True))
    lines = [json.loads(line) for line in (tmp_path / "run/model/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "tokens_per_second" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    seconds = sum(line["tokens"] / line["step"] / line["tokens_per_second"] for line in steps)
    assert speedrun.count_seconds(tmp_path / "run/model") == pytest.approx(seconds, rel=0.3)  # steps differ in tokens
    assert row["time"] == f"{seconds / 3600:.2f} core hours"
    results = json.loads((tmp_path / "run/scores/results.json").read_text())
    assert row["bits per character"] == f"{results['held_out_text']['metrics']['bits_per_character']:.4f}"
    assert row["BLiMP"] in ("0.00", "100.00") and row["flags"].startswith("`--track cpu --vocab_size 60 ")
