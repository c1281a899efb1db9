"""Repeated text: the report equals a plain count, and leaving copies out equals preparing a text without them."""

import random
from collections import Counter
from itertools import chain, islice

import pytest
from prepared import content, prepare, text_arguments

from snugbert.data import repeated_text
from snugbert.data.corpus.corpus import open_corpus
from snugbert.data.corpus.preparation import prepare_parts
from snugbert.data.corpus.text_parts import plan_parts
from snugbert.data.documents import read_documents
from snugbert.data.repeated_text import RepeatedText
from snugbert.trainers.pretraining.corpora import load_corpora
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingDataArguments


@pytest.fixture(scope="module")
def documents(data_dir):
    """Articles of WikiText-2 with copies of lines and documents."""
    rng = random.Random(0)
    articles = [article[:12] for article in islice(read_documents([data_dir / "wikitext2/valid.docs.txt.gz"]), 12)]
    lines = list(chain.from_iterable(articles))
    for line, times in ((lines[3], 40), ("Yes .", 30), (lines[50], 20), (lines[51], 2)):
        for _ in range(times):
            rng.choice(articles).insert(rng.randrange(1, 4), line)
    documents = [*articles]
    for number, times in ((2, 4), (5, 3), (7, 2), (8, 1)):
        for _ in range(times):
            documents.insert(rng.randrange(len(documents)), articles[number])
    return [*documents, [lines[3]], [lines[3], lines[3]], articles[0][:2]]


def write(file, documents):
    file.write_text("\n\n".join("\n".join(document) for document in documents) + "\n", encoding="utf-8")
    return file


def leave_out(documents, what):
    """A plain loop."""
    seen, kept = set(), []
    for document in documents:
        if what == "documents":
            unique = [] if tuple(document) in seen else document
            seen.add(tuple(document))
        else:
            unique = [line for line in document if line not in seen and not seen.add(line)]
        kept += [unique] if unique else []
    return kept


def test_the_report_equals_a_plain_count(documents):
    report = RepeatedText()
    assert [document for _, document in report.follow(enumerate(documents))] == documents
    lines, whole = Counter(chain.from_iterable(documents)), Counter(map(tuple, documents))
    assert (report.lines, report.copied_lines) == (lines.total(), lines.total() - len(lines))
    assert (report.documents, report.copied_documents) == (whole.total(), whole.total() - len(whole))
    assert report.characters == sum(len(line) * times for line, times in lines.items())
    assert report.copied_characters == sum(len(line) * (times - 1) for line, times in lines.items())
    assert report.copied_lines > 100 and report.copied_documents == 10
    assert report.is_complete and "--deduplicate lines leaves out copied lines" in str(report)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["lines", "documents"])
def test_leaving_copies_out_equals_a_text_without_them(documents, tmp_path, tokenizer, small_blocks, what):
    """Bit for bit, with one and two processes, and after a kill."""
    text = text_arguments(write(tmp_path / "text.txt", documents))
    expected = prepare(tmp_path / "expected", tokenizer, write(tmp_path / "unique.txt", leave_out(documents, what)))
    parts = plan_parts(text, deduplicate=what)
    for workers in (1, 2):
        prepare_parts(tmp_path / f"{workers}", parts, tokenizer, num_workers=workers, show_progress=False)
        assert content(open_corpus(tmp_path / f"{workers}", tokenizer)) == content(expected)
    whole = (tmp_path / "1" / parts[0].name).read_bytes()
    assert whole == (tmp_path / "2" / parts[0].name).read_bytes()
    killed = tmp_path / "2" / parts[0].name
    killed.write_bytes(whole[: len(whole) * 2 // 3])
    killed.with_suffix(".index").unlink()
    prepare_parts(tmp_path / "2", parts, tokenizer, num_workers=1, show_progress=False)
    assert killed.read_bytes() == whole


def test_copies_are_left_out_across_files_and_machines(documents, tmp_path, tokenizer, capfd):
    """Each machine reads everything. There may be more shards than files.

    If copies are only counted, each machine reads its shard.
    """
    files = [write(tmp_path / f"{name}.txt", half) for name, half in (("0", documents[:9]), ("1", documents[9:]))]
    for part in plan_parts(text_arguments(*files), num_shards=3, deduplicate="lines"):
        prepare_parts(tmp_path / "shards", [part], tokenizer, show_progress=False)
        report = capfd.readouterr().err
        assert f" of {sum(map(len, documents)):,} lines are copies" in report and "Copies of lines are left" in report
    unique = prepare(tmp_path / "unique", tokenizer, write(tmp_path / "u.txt", leave_out(documents, "lines")))
    assert sorted(content(open_corpus(tmp_path / "shards", tokenizer))) == sorted(content(unique))
    parts = plan_parts(text_arguments(*files), num_shards=2)
    prepare_parts(tmp_path / "half", parts[:1], tokenizer, show_progress=False)
    assert f" of {sum(map(len, documents[:9])):,} lines are copies" in capfd.readouterr().err


def test_the_report_has_a_limit_and_leaving_out_has_none(documents, monkeypatch):
    monkeypatch.setattr(repeated_text, "MOST_COUNTED", 50)
    for what in (None, "lines"):
        report = RepeatedText(what)
        followed = [document for _, document in report.follow(enumerate(documents))]
        assert followed == (leave_out(documents, what) if what else documents)
        assert report.is_complete == bool(what)


@pytest.mark.parametrize("deduplicate", [None, "lines"])
def test_pretrain_holds_out_documents(documents, tmp_path, tokenizer, deduplicate):
    text = {"train_file": [write(tmp_path / "text.txt", documents)], "validation_split_percentage": 30}
    arguments = PretrainingDataArguments(objective="mlm", deduplicate=deduplicate, **text)
    for _ in range(2):  # the second time, from the cache
        corpora = load_corpora(arguments, True, True, str(tmp_path / "cache"), tokenizer)
    kept = leave_out(documents, "lines") if deduplicate else documents
    whole = content(prepare(tmp_path / "whole", tokenizer, write(tmp_path / "kept.txt", kept)))
    train, held_out = map(content, corpora)
    assert sorted(train + held_out) == sorted(whole) and 0.2 < len(held_out) / len(whole) < 0.4
