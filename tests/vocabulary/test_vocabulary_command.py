"""`snugbert vocabulary`: reproducible files in every format of text, and clear errors."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from vocabularies import DOCUMENTS, many_ties, train

from snugbert import QuestionAnswerer
from snugbert.errors import InputError
from snugbert.vocabulary.learning import KINDS
from snugbert_cli import main as snugbert_command
from snugbert_cli import run_command

pytestmark = pytest.mark.usefixtures("one_thread")

FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")


def test_two_processes_write_identical_files(tmp_path: Path):
    """The library alone fails this, because the order of a hash map breaks its ties (huggingface/tokenizers#1794)."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(" ".join(many_ties().elements()), encoding="utf-8")

    def runs(folder: Path) -> list[list[str]]:
        return [
            ["--train_file", str(corpus), "--vocab_size", size, *more, "--output_dir", str(folder / name)]
            for kind, size in (("wordpiece", "150"), ("bpe", "150"), ("byte-bpe", "350"))
            for name, size, more in (
                (kind, size, ["--model", kind]),
                (f"{kind} init", "400", ["--init", str(folder / kind)]),
            )
        ]

    loop = "[run_command('vocabulary', arguments) for arguments in json.loads(sys.argv[1])]"
    code = f"import json, sys; from snugbert_cli import run_command; {loop}"
    environment = os.environ | {"PYTHONHASHSEED": "1", "TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": "3"}
    there = subprocess.Popen([sys.executable, "-c", code, json.dumps(runs(tmp_path / "there"))], env=environment)
    for arguments in runs(tmp_path / "here"):
        run_command("vocabulary", arguments)
    assert there.wait(timeout=120) == 0
    files = sorted(path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*.*"))
    assert {path.name for path in files} >= set(FILES)
    assert len({path.parent for path in files}) == 2 * len(KINDS)
    for file in files:
        assert (tmp_path / "here" / file).read_bytes() == (tmp_path / "there" / file).read_bytes(), file


def test_every_text_format_gives_the_same_vocabulary(tmp_path: Path, text_file: Path):
    rows = [{"body": "\n".join(document)} for document in DOCUMENTS]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    with gzip.open(tmp_path / "corpus.txt.gz", "wb") as stream:
        stream.write(text_file.read_bytes())
    (tmp_path / "corpus.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "corpus.parquet")
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "train.jsonl").write_text(lines, encoding="utf-8")

    expected = train(tmp_path / "txt", "--train_file", text_file)
    for suffix in ("txt.gz", "jsonl", "jsonl.gz", "parquet"):
        arguments = ("--train_file", tmp_path / f"corpus.{suffix}", "--text_column_name", "body")
        assert train(tmp_path / suffix, *arguments) == expected, suffix
    arguments = ("--dataset_name", tmp_path / "dataset", "--text_column_name", "body")
    assert train(tmp_path / "from_dataset", *arguments) == expected


def test_byte_level_bpe_works_in_every_command(bpe_folders, data_dir, tmp_path):
    tiny = ["--max_steps", "2", "--use_cpu", "true", "--per_device_train_batch_size", "4", "--report_to", "none"]
    tokenizer = str(bpe_folders["byte-bpe"])

    def run(command: str, output: str, *arguments: str | Path) -> dict:
        assert snugbert_command([command, *map(str, arguments), *tiny, "--output_dir", str(tmp_path / output)]) == 0
        return json.loads((tmp_path / output / "all_results.json").read_text())

    text = ["--train_file", data_dir / "sample_text/sample_text.txt", "--max_seq_length", "48"]
    sizes = "num_hidden_layers=1,hidden_size=32,num_attention_heads=2,intermediate_size=32"
    model = ["--config_name", "tiny", "--config_overrides", sizes, "--tokenizer_name", tokenizer]
    run("pretrain", "pretrained", *model, *text)
    start = ["--model_name_or_path", tmp_path / "pretrained"]

    rows = [("Ångström won.", "He lost.", 1), ("I don't.", "Do you?", 0)] * 4
    table = "sentence1,sentence2,label\n" + "".join(f"{a},{b},{label}\n" for a, b, label in rows)
    (tmp_path / "pairs.csv").write_text(table, encoding="utf-8")
    files = ["--train_file", tmp_path / "pairs.csv", "--validation_file", tmp_path / "pairs.csv"]
    assert run("glue", "glue", *start, *files)["eval_samples"] == 8

    context = "  In 1843, Ångström's note\u2014it was long\u2014was written by Ada Lovelace."
    answers = {"text": ["Ada Lovelace"], "answer_start": [context.index("Ada")]}
    question = {"id": "1", "title": "", "context": context, "question": "Who wrote it?", "answers": answers}
    (tmp_path / "questions.jsonl").write_text(json.dumps(question) + "\n", encoding="utf-8")
    files = ["--train_file", tmp_path / "questions.jsonl", "--validation_file", tmp_path / "questions.jsonl"]
    assert run("squad", "squad", *start, *files)["eval_samples"] == 1
    answer = QuestionAnswerer(tmp_path / "squad", device="cpu")(question="Who?", context=context)
    assert context[answer["start"] : answer["end"]] == answer["answer"] != ""

    tagged = "Ada B-PER\nLovelace I-PER\nwrote O\n. O\n\nÅngström B-PER\n, O\ntoo O\n\n"
    (tmp_path / "tags.txt").write_text(tagged, encoding="utf-8")
    files = ["--train_file", tmp_path / "tags.txt", "--validation_file", tmp_path / "tags.txt"]
    assert run("ner", "ner", *start, *files, "--do_train", "--do_eval")["eval_samples"] == 2


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (b"", [], "the text is empty"),
        (b"\n \n\t\n", [], "the text is empty"),
        (b"\x01\x07", [], "the text contains no words"),
        (b"fine\nnot \xff\xfe\n", [], r"corpus\.txt, line 2: not UTF-8"),
        (b"abc abc", ["--vocab_size", "9"], r"--vocab_size 9 is too small. .* at least 10\."),
        (b"abc", ["--model", "byte-bpe", "--vocab_size", "260"], r"too small. The 256 bytes .* at least 261\."),
        (b"abc", ["--model", "unigram"], "--model: unknown value 'unigram'"),
        (b"abc", ["--do_lower_case", "--no_do_lower_case"], "--no_do_lower_case exclude each other"),
        (b"abc", ["--init", "./nowhere"], r"--init: the folder \./nowhere does not exist"),
        (b"abc", ["--vocab_size", "0"], "--vocab_size 0 must be at least 1"),
        (b"abc", ["--min_frequency", "0"], "--min_frequency 0 must be at least 1"),
        (b"abc", ["--vocab_size", "many"], "--vocab_size.*: invalid int value: 'many'"),
        (b"abc", ["--dataset_name", "imdb"], "--train_file and --dataset_name exclude each other"),
        (b"abc", ["--train_file"], "--train_file.*: expected at least one argument"),
        (b"abc", ["--train_file", "none/*.txt"], r"none/\*\.txt: no such file"),
    ],
)
def test_wrong_input_is_a_clear_error_and_writes_nothing(tmp_path, content, arguments, message):
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(content)
    with pytest.raises(InputError, match=message):
        train(tmp_path / "tok", "--train_file", corpus, *arguments)
    assert not list(tmp_path.glob("tok/*"))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_full_disk_is_a_clear_error(tmp_path, name):
    (tmp_path / "corpus.txt").write_text("some text")
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / name).symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"tok could not be written: .*No space left on device.* Free some space and"):
        train(tmp_path / "tok", "--train_file", tmp_path / "corpus.txt", "--overwrite_output_dir")


def test_text_is_required(tmp_path: Path):
    with pytest.raises(InputError, match=r"no text\. Give --train_file or --dataset_name"):
        train(tmp_path / "tok")
