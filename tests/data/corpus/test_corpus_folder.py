"""Text and prepared corpora in a bucket, and parts from several machines."""

import json
from pathlib import Path

import pytest
from prepared import content, prepare, text_arguments

import snugbert
from snugbert.data.corpus import part_files, preparation, text_parts
from snugbert.data.corpus.corpus import open_corpus
from snugbert.data.corpus.part_files import TEXT, CorpusFolder, index_name
from snugbert.data.corpus.preparation import find_missing_parts, prepare_parts
from snugbert.data.corpus.text_parts import plan_parts
from snugbert.data.data_arguments import TextArguments
from snugbert.data.text_lines import ReadingLog
from snugbert.errors import InputError
from snugbert.evaluation.held_out_text import count_characters
from snugbert.storage import inputs
from snugbert.storage import urls as remote_files
from snugbert.trainers.pretraining.corpora import list_sources, load_corpora
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingDataArguments
from snugbert_cli import main as snugbert_command


@pytest.fixture(autouse=True)
def own_machine(tmp_path, monkeypatch):
    """Each test is a machine of its own."""
    monkeypatch.setattr(inputs, "HF_HOME", str(tmp_path / "home"))


def write_text(folder, count=7, sentences=40):
    """Writes small text files, in two folders."""
    for number in range(count):
        file = folder / ("first" if number < count // 2 else "second") / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        documents = [f"Document {each} of file {number}. It has words." * (1 + each % 3) for each in range(sentences)]
        file.write_text("\n\n".join(documents))
    return folder


def write_parts(folder, parts, tokenizer, **options):
    return prepare_parts(folder, parts, tokenizer, num_workers=1, show_progress=False, **options)


def read_parts(folder):
    return {file.name: file.read_bytes() for file in sorted(Path(folder).glob("part-*.arrow"))}


def test_the_same_text_gives_the_same_bytes_everywhere(tmp_path, tokenizer, bucket):
    """In two folders and in a bucket, whose URL has credentials, with one part for each shard."""
    roots = [write_text(tmp_path / "one"), write_text(tmp_path / "deep/other"), write_text(bucket.folder / "text")]
    patterns = [f"{root}/**/*.txt" for root in roots[:2]] + [f"{bucket.url}/text/*/*.txt"]
    written = []
    for number, pattern in enumerate(patterns):
        for part in plan_parts(text_arguments(pattern), num_shards=3):
            write_parts(tmp_path / f"corpus{number}", [part], tokenizer)
        written.append(read_parts(tmp_path / f"corpus{number}"))
    assert len(written[0]) == 3 and written[0] == written[1] == written[2]
    record = CorpusFolder(tmp_path / "corpus2").read_record("part-00000-of-00003.arrow")
    assert [*record["settings"][TEXT]] == ["first/0.txt", "first/1.txt"]
    # A corpus of copies is reused. Another text with the same names is not replaced.
    stamps = {file: file.stat().st_mtime_ns for file in (tmp_path / "corpus0").glob("*.arrow")}
    write_parts(tmp_path / "corpus0", plan_parts(text_arguments(patterns[2]), 3), tokenizer)
    assert stamps == {file: file.stat().st_mtime_ns for file in (tmp_path / "corpus0").glob("*.arrow")}
    (roots[1] / "first/0.txt").write_text("Another text.")
    with pytest.raises(InputError, match=r"00000-of-00003\.arrow has other settings\.\n.*before.*\n.*text first/0"):
        prepare_parts(tmp_path / "corpus0", plan_parts(text_arguments(patterns[1]), 3), tokenizer)


def test_a_text_that_changes_while_it_is_read_is_noticed(tmp_path, tokenizer, bucket, monkeypatch):
    file = bucket.folder / "text.txt"
    file.write_text("A text of some words.\n" * 3)
    read = text_parts.read_documents

    def change_text(files, *arguments):
        file.write_text("B text of some words.\n" * 3)
        yield from read(files, *arguments)

    monkeypatch.setattr(text_parts, "read_documents", change_text)
    with pytest.raises(InputError, match=r"text\.txt changed while it was read"):
        prepare(tmp_path / "corpus", tokenizer, f"{bucket.url}/text.txt")
    assert not CorpusFolder(tmp_path / "corpus").find_parts()


def test_a_text_without_version_is_read_again(tmp_path, tokenizer, bucket, monkeypatch):
    """Some web servers send neither a checksum nor a time. The size stays the same."""
    read_entry = remote_files._read_entry
    monkeypatch.setattr(remote_files, "_read_entry", lambda *facts: read_entry(*facts)._replace(version=""))
    contents = []
    for letter in "ab":
        (bucket.folder / "text.txt").write_text(f"{letter} text of some words.\n" * 3)
        contents.append(content(prepare(tmp_path / "corpus", tokenizer, f"{bucket.url}/text.txt", replace=True)))
    assert contents[0] != contents[1]


def test_a_corpus_is_written_to_a_bucket_part_by_part(tmp_path, tokenizer, bucket, monkeypatch):
    """The disk never holds two parts. Another machine continues, even after a kill between a part and its index."""
    text = text_arguments(f"{write_text(tmp_path / 'text')}/**/*.txt")
    parts, url, stored = plan_parts(text, num_shards=4), f"{bucket.url}/my/corpus", bucket.folder / "my/corpus"
    write_parts(tmp_path / "local", parts, tokenizer)
    expected = read_parts(tmp_path / "local")
    upload, sizes, uploads = part_files.upload, [], []

    def measure(file, target):
        sizes.append(len(read_parts(file.parent)))
        uploads.append(target.rpartition("/")[2])
        upload(file, target)

    monkeypatch.setattr(part_files, "upload", measure)
    write_parts(url, parts[:2], tokenizer)
    assert read_parts(stored) == {name: expected[name] for name in list(expected)[:2]}
    assert uploads == [each for part in parts[:2] for each in (part.name, index_name(part.name))]
    assert set(sizes) == {1}
    monkeypatch.setattr(inputs, "HF_HOME", str(tmp_path / "other machine"))
    uploads.clear()
    (stored / index_name(parts[1].name)).unlink()
    for _ in range(2):  # the second time, nothing is missing
        write_parts(url, parts, tokenizer)
        assert read_parts(stored) == expected
        assert uploads == [each for part in parts[1:] for each in (part.name, index_name(part.name))]
    whole = prepare(tmp_path / "one", tokenizer, *text.train_file)
    assert content(whole) == content(open_corpus(url, tokenizer, tmp_path / "blocks"))


def test_other_settings_replace_a_corpus_only_on_request(tmp_path, tokenizer, bucket, monkeypatch):
    """A shard removes the parts of other divisions, but no part that another shard writes.

    While a part is replaced, it has no index.
    """
    text = text_arguments(f"{write_text(tmp_path / 'text')}/**/*.txt")
    url, (first, second) = f"{bucket.url}/corpus", plan_parts(text, num_shards=2)
    write_parts(url, plan_parts(text, num_shards=3), tokenizer)
    with pytest.raises(InputError, match=rf"{url}/part-00000-of-00003\.arrow has other settings"):
        write_parts(url, [first, second], tokenizer)
    write_parts(url, [first], tokenizer, replace=True)
    upload = part_files.upload

    def check_index_and_upload(file, target):
        assert not (bucket.folder / "corpus" / index_name(second.name)).exists()
        upload(file, target)

    monkeypatch.setattr(part_files, "upload", check_index_and_upload)
    for language in (None, "de"):
        write_parts(url, [second], tokenizer, language=language, replace=True)
    assert CorpusFolder(url).read_record(second.name)["settings"]["language"] == "de"
    assert list(read_parts(bucket.folder / "corpus")) == [first.name, second.name]
    assert find_missing_parts(CorpusFolder(url), [first, second], second) == [first.name]


def test_commands_take_urls(tmp_path, bucket, monkeypatch, capsys):
    """A vocabulary, a corpus and held-out text from a bucket. No folder `s3:` appears."""
    monkeypatch.chdir(tmp_path)
    write_text(bucket.folder / "text")
    url, text = f"{bucket.url}/prepared", ["--train_file", f"{bucket.url}/text/*/*.txt"]
    assert snugbert_command(["vocabulary", *text, "--vocab_size", "100", "--output_dir", "tok"]) == 0
    tokenizer = snugbert.SnugBertTokenizer.from_pretrained("tok")
    for shard, words in (
        ("2/2", f"Shard 2/2 is in {url}. Still missing 1 of 2 parts: part-00000-of-00002.arrow"),
        ("1/2", f"{url}: 280 documents, "),
    ):
        arguments = ["prepare", "--tokenizer_name", "tok", *text, "--output_dir", url, "--shard", shard]
        assert snugbert_command(arguments) == 0 and words in capsys.readouterr().out
    arguments = PretrainingDataArguments(train_file=text[1:], validation_file=text[1:])
    train, validation = load_corpora(arguments, True, True, "cache", tokenizer)
    assert content(train) == content(validation) == content(open_corpus(bucket.folder / "prepared", tokenizer))
    assert list_sources(train) == "0.txt, 1.txt, 2.txt, 3.txt, 4.txt, 5.txt, 6.txt"
    assert count_characters(arguments) > 10_000
    assert not Path("s3:").exists()


@pytest.mark.slow
def test_each_shard_of_a_dataset_reads_its_own_files(tmp_path, tokenizer, monkeypatch):
    """Three files, two shards. To find copies, each shard reads everything."""
    (tmp_path / "data").mkdir()
    for file in range(3):
        rows = [json.dumps({"text": f"Row {row} of file {file}."}) + "\n" for row in range(4 + file)]
        (tmp_path / f"data/train-{file}.jsonl").write_text("".join(rows))
    logs = []
    monkeypatch.setattr(preparation, "ReadingLog", lambda *choice: logs.append(ReadingLog(*choice)) or logs[-1])

    def prepare_shards(num_shards, **options):
        """Returns the documents, and the number of rows that each shard read."""
        logs.clear()
        folder = tmp_path / f"{num_shards} {options}"
        for part in plan_parts(TextArguments(dataset_name=str(tmp_path / "data")), num_shards, **options):
            write_parts(folder, [part], tokenizer)
        return content(open_corpus(folder, tokenizer)), [log.position for log in logs]

    (whole, rows), (halves, rows_of_halves) = map(prepare_shards, (1, 2))
    assert whole == halves and rows == [15] == [sum(rows_of_halves)] and min(rows_of_halves) > 0
    assert prepare_shards(2, deduplicate="lines")[1] == [15] * 2
    with pytest.raises(InputError, match=r"more shards \(4\) than text files \(3\)"):
        prepare_shards(4)
