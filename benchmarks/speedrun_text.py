"""Makes the text of the speedrun (docs/explanation/speedrun.md): 81 English books, Wikipedia, and 4 held-out books.

    python benchmarks/speedrun_text.py text

The sources are public repositories at fixed commits, which `git` downloads: 150 MB. The script compares the files with
stored hashes. They have a paragraph per line and a blank line between documents:

- `books.txt`: 81 books of 1719 to 1922 in the public domain, a document per chapter; 49 MB.
- `wikipedia.txt`: paragraphs of 92 articles, from SQuAD's and SQuADShifts' contexts (CC BY-SA 4.0); 3 MB.
- `held_out.txt`: 4 more books; 1.4 MB.
"""

import argparse
import hashlib
import html
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

BOOKS = "https://github.com/mlschmitt/classic-books-markdown", "944882722e9a96fa6cf2739dc2ea757e101f412f"
TITLES = Path(__file__).with_name("speedrun_books.tsv")  # split and path in BOOKS
ARTICLES = {
    "data/test-v1.1.json": (
        "https://github.com/tomhosking/aqleaderboard",
        "79ed2dc0dff52b0594275812f48ab176bcc498eb",
    ),
    "datasets/new_wiki_v1.0.json": (
        "https://github.com/modestyachts/squadshifts-website",
        "b7cc4d50af791c36c49417fb94dd739d6a9e7bef",
    ),
}
HASHES = {  # SHA-256
    "books.txt": "fc443fa16e6d1f8a2bd086d2a65137f7341b0d9e0cb98f4440e3de01b0f500e6",
    "wikipedia.txt": "8d8973a88e8666dca1998073610f1dd224914deac70c073fef2eda1a3cb52396",
    "held_out.txt": "74c3fbbe3b679112c9a45081f75b7e174218416b5b1a40f8f8823d455b32a985",
}


def make_text(folder: Path) -> None:
    """Writes the three files, unless they exist.

    Raises:
        ValueError: a file differs from its hash.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, documents in {
        "books.txt": read_books("train", folder),
        "wikipedia.txt": read_articles(folder),
        "held_out.txt": read_books("validation", folder),
    }.items():
        file = folder / name
        if not file.exists():
            text = "".join("\n".join([*paragraphs, "", ""]) for paragraphs in documents)
            file.write_text(text, encoding="utf-8", newline="\n")
        if (found := hashlib.sha256(file.read_bytes()).hexdigest()) != HASHES[name]:
            raise ValueError(f"{file}: its SHA-256 is {found}. Remove the file and run the script again.")


def clone(source: tuple[str, str], folder: Path) -> Path:
    """Returns the clone of a repository below `folder`, without a work tree. Downloads it if it is missing."""
    url, _ = source
    target = folder / url.rpartition("/")[2]
    if not target.exists():
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", url, target], check=True)
    return target


def read_source(source: tuple[str, str], path: str, folder: Path) -> str:
    """Returns a file of a repository at a commit."""
    command = ["git", "-C", clone(source, folder), "show", f"{source[1]}:{path}"]
    return subprocess.run(command, check=True, capture_output=True).stdout.decode()


def read_books(split: str, folder: Path) -> Iterator[list[str]]:
    """Yields the paragraphs of each chapter of the books of a split."""
    for line in TITLES.read_text(encoding="utf-8").splitlines():
        book_split, path = line.split("\t")
        if book_split == split:
            yield from split_chapters(read_source(BOOKS, path, folder))


def split_chapters(markdown: str) -> Iterator[list[str]]:
    """Yields the paragraphs of each chapter, each on one line. Headings, rules, emphasis and escapes are dropped."""
    text = re.sub(r"[_*\\\ufeff]", "", html.unescape(markdown))
    for chapter in re.split(r"^\s*#.*$", text, flags=re.MULTILINE):
        paragraphs = [" ".join(block.split()) for block in re.split(r"\n\s*\n", chapter)]
        if paragraphs := [paragraph for paragraph in paragraphs if re.search(r"\w", paragraph)]:
            yield paragraphs


def read_articles(folder: Path) -> Iterator[list[str]]:
    """Yields the paragraphs of each Wikipedia article."""
    for path, source in ARTICLES.items():
        for article in json.loads(read_source(source, path, folder))["data"]:
            paragraphs = (" ".join(paragraph["context"].split()) for paragraph in article["paragraphs"])
            yield [*dict.fromkeys(paragraphs)]  # each once


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Where to write the files, and to keep the downloads.")
    make_text(parser.parse_args().folder)
