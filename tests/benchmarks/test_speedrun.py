"""The speedrun makes its text, continues after an interruption, and reports times and scores."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest
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
    """Small repositories in the place of the public ones."""
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


def test_a_run_is_timed_scored_and_continued(sources, tmp_path, capfd):
    import speedrun

    argv = [str(tmp_path / "run"), "--vocab_size", "60", "--config_name", "tiny", "--objective", "mlm"]
    argv += ["--use_cpu", "true", "--save_steps", "2", "--per_device_train_batch_size", "2"]
    with pytest.raises(subprocess.CalledProcessError):
        speedrun.main([*argv, "--max_steps", "3", "--learning_rate", "-1"])
    speedrun.main([*argv, "--max_steps", "3"])
    first = cells(capfd.readouterr().out)
    speedrun.main([*argv, "--max_steps", "3"])
    assert cells(capfd.readouterr().out)[-1][3:7] == first[-1][3:7]
    row = dict(zip(first[-2], first[-1], strict=True))
    times = [json.loads(line) for line in (tmp_path / "run/times.jsonl").read_text().splitlines()]
    assert len(times) == 3  # the failed process counts
    assert row["core hours"] == f"{sum(line['core_hours'] for line in times):.2f}"
    results = json.loads((tmp_path / "run/scores/results.json").read_text())
    assert row["bits per character"] == f"{results['held_out_text']['metrics']['bits_per_character']:.3g}"
    assert row["BLiMP"] in ("0", "100")
    assert "--max_steps 3`" in row["flags"]


def test_changed_text_is_refused(sources, tmp_path):
    import speedrun_text

    speedrun_text.make_text(tmp_path / "text")
    (tmp_path / "text/books.txt").write_text("Other text.\n")
    with pytest.raises(
        ValueError, match=r"books\.txt: its SHA-256 is .*\. Remove the file and run the script again\."
    ):
        speedrun_text.make_text(tmp_path / "text")
