"""`snugbert vocabulary`: the same files every time, the library's quality, and one sentence for bad input."""

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from itertools import chain, islice
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer
from transformers import BertTokenizer

from snugbert import SnugBertTokenizer
from snugbert.trainers import vocabulary
from snugbert.trainers.command_line import InputError
from snugbert.trainers.pretraining.documents import read_lines
from snugbert.trainers.vocabulary import SPECIAL_TOKENS, count_words, learn_word_pieces, main

FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
# Accents, tabs, a no-break space, a control character, a combining mark, Chinese, punctuation: what words hang on.
DOCUMENTS = [
    ["The café's naïve  façade,\ttwo tabs\u00a0and more.", "Zo\u0308e\x07s 北京 city: 3.5% (half-open]"],
    ["The house; the mouse -- THE END"],
]


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.txt"
    file.write_text("\n\n".join("\n".join(document) for document in DOCUMENTS) + "\n", encoding="utf-8")
    return file


def train(output_dir: Path, *arguments: str | Path) -> list[str]:
    main([*map(str, arguments), "--output_dir", str(output_dir)])
    return (output_dir / "vocab.txt").read_text(encoding="utf-8").splitlines()


def many_ties() -> Counter[str]:
    """Words of four letters' alphabet, all equally frequent, so that nearly every merge is a tie."""
    return Counter({f"{a}{b}{c}{d}": 3 for a in "abcd" for b in "efgh" for c in "abgh" for d in "cdef"})


# --- the same every time ----------------------------------------------------------------------------------------


def test_processes_write_identical_files(tmp_path: Path):
    # The library alone fails this one (huggingface/tokenizers#1794): its ties go by the order of a hash map.
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(" ".join(many_ties().elements()), encoding="utf-8")
    code = "import sys; from snugbert.trainers.vocabulary import main; main(sys.argv[1:])"
    processes = []
    for seed in ("1", "2"):
        arguments = ["--train_file", str(corpus), "--vocab_size", "150", "--output_dir", str(tmp_path / seed)]
        environment = os.environ | {"PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": "true"}
        processes.append(subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment))
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    for name in FILES:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name


def test_ties_never_depend_on_chance():
    first, *others = (learn_word_pieces(many_ties(), 150, show_progress=False) for _ in range(10))
    assert len(first) == 150
    assert all(pieces == first for pieces in others)


def test_every_format_gives_the_same_vocabulary(tmp_path: Path, text_file: Path):
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


# --- the right words and pieces ---------------------------------------------------------------------------------


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("characters_at_once", [1, vocabulary.CHARACTERS_AT_ONCE])
def test_words_are_those_the_tokenizer_sees(monkeypatch, do_lower_case: bool, characters_at_once: int):
    monkeypatch.setattr(vocabulary, "CHARACTERS_AT_ONCE", characters_at_once)
    tokenizer = SnugBertTokenizer(do_lower_case=do_lower_case)
    normalizer, pre_tokenizer = BertNormalizer(lowercase=do_lower_case), BertPreTokenizer()
    whole_lines = (
        word
        for document in DOCUMENTS
        for line in document
        for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(line))
    )
    assert count_words(chain.from_iterable(DOCUMENTS), tokenizer, show_progress=False) == Counter(whole_lines)


def test_merges_worked_out_by_hand():
    words = Counter(hug=10, pug=5, pun=12, bun=4, hugs=5)
    pieces = learn_word_pieces(words, vocab_size=100, show_progress=False)
    #      20      16     15     12     5: p < hug   5       4
    merges = ["##ug", "##un", "hug", "pun", "pug", "hugs", "bun"]
    assert pieces == [*SPECIAL_TOKENS, *"bghnpsu", "##g", "##n", "##s", "##u", *merges]
    assert learn_word_pieces(words, vocab_size=19, show_progress=False) == pieces[:19]
    assert learn_word_pieces(words, vocab_size=100, min_frequency=5, show_progress=False) == pieces[:-1]


def test_counts_too_many_for_the_library_are_scaled_down(monkeypatch):
    words = Counter(hug=100, pug=50, pun=120, bun=40, hugs=50)
    expected = learn_word_pieces(words, vocab_size=100, min_frequency=50, show_progress=False)
    monkeypatch.setattr(vocabulary, "MOST_TRAINING_WORDS", words.total() // 10)
    assert learn_word_pieces(words, vocab_size=100, min_frequency=50, show_progress=False) == expected
    assert sum(len(line.split()) for line in vocabulary._running_text(words, scale=10)) == words.total() // 10


def test_rare_characters_get_no_piece(monkeypatch):
    monkeypatch.setattr(vocabulary, "ALPHABET", 2)
    words = Counter({"aa": 4000, "b": 1990, "c": 4, "d": 3, "ad": 1})
    pieces = learn_word_pieces(words, vocab_size=10, show_progress=False)
    # a and b cover 9,990 of 9,999 characters, too few; with c 0.9995 of them are covered. "ad" is [UNK].
    assert pieces == [*SPECIAL_TOKENS, "a", "b", "c", "##a", "aa"]


def test_pruning_bounds_the_table_and_keeps_the_frequent(monkeypatch):
    monkeypatch.setattr(vocabulary, "MOST_DISTINCT_WORDS", 100)
    monkeypatch.setattr(vocabulary, "CHARACTERS_AT_ONCE", 200)
    lines = [f"often {'seldom' if number % 3 == 0 else ''} once{number}" for number in range(5000)]
    words = count_words(lines, SnugBertTokenizer(), show_progress=False)
    assert len(words) <= 100
    assert words.most_common(2) == [("often", 5000), ("seldom", 1667)]


def test_words_too_long_for_wordpiece_are_left_out():
    assert count_words(["a" * 101 + " " + "b" * 100], SnugBertTokenizer(), False) == {"b" * 100: 1}


@pytest.mark.parametrize("vocab_size", [1000, 8192])
def test_pieces_are_the_librarys_own(data_dir: Path, vocab_size: int):
    text = list(read_lines([data_dir / "books_en" / "train-06.txt.gz"]))
    held_out = list(islice(read_lines([data_dir / "books_en" / "validation.txt.gz"]), 1000))
    library = Tokenizer(WordPiece(unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    trainer = WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    library.train_from_iterator(text, trainer)

    pieces = learn_word_pieces(count_words(text, SnugBertTokenizer(), False), vocab_size, show_progress=False)
    assert len(pieces) == len(set(pieces)) == library.get_vocab_size() == vocab_size
    ours = SnugBertTokenizer({piece: index for index, piece in enumerate(pieces)}).backend_tokenizer
    lengths = [
        sum(len(encoding) for encoding in tokenizer.encode_batch(held_out, add_special_tokens=False))
        for tokenizer in (ours, library)
    ]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.001)  # only ties may fall otherwise


# --- the folder -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_folder_opens_as_our_tokenizer_and_as_berts(tmp_path: Path, text_file: Path, do_lower_case: bool):
    casing = "--do_lower_case" if do_lower_case else "--no_do_lower_case"
    pieces = train(tmp_path / "tok", "--train_file", text_file, casing)
    tokenizer = SnugBertTokenizer.from_pretrained(tmp_path / "tok")
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == pieces
    assert sorted(tokenizer.all_special_ids) == [0, 1, 2, 3, 4]
    assert tokenizer.model_max_length == 512
    bert = BertTokenizer(vocab=str(tmp_path / "tok" / "vocab.txt"), do_lower_case=do_lower_case)
    for document in DOCUMENTS:
        ids = tokenizer(document)["input_ids"]
        assert ids == bert(document)["input_ids"]
        assert tokenizer.unk_token_id not in chain.from_iterable(ids)
    assert ("The" in pieces) is not do_lower_case


def test_output_says_what_was_done_and_what_comes_next(tmp_path: Path, text_file: Path, capsys):
    pieces = train(tmp_path / "my tok", "--train_file", text_file)
    printed = capsys.readouterr().out
    assert f"{len(pieces)} word pieces, learned from 35 words, 29 of them distinct" in printed
    assert "Note: these are fewer than the 30,522 asked for" in printed
    assert "vocab.txt in" in printed
    assert f"Next: snugbert pretrain --tokenizer_name '{tmp_path / 'my tok'}'" in printed


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (b"", [], "the corpus is empty"),
        (b"\n \n\t\n", [], "the corpus is empty"),
        (b"\x00\x07", [], "the corpus is empty: it holds no words"),
        (b"fine\nnot \xff\xfe\n", [], r"corpus\.txt, line 2: not UTF-8"),
        (b"abc abc", ["--vocab_size", "9"], r"--vocab_size 9 is too small .* at least 10\."),
        (b"abc", ["--vocab_size", "0"], "--vocab_size is 0; it must be at least 1"),
        (b"abc", ["--min_frequency", "0"], "--min_frequency is 0; it must be at least 1"),
        (b"abc", ["--vocab_size", "many"], "--vocab_size.*: invalid int value: 'many'"),
        (b"abc", ["--dataset_name", "imdb"], "either with --train_file or with --dataset_name"),
        (b"abc", ["--train_file"], "--train_file.*: expected at least one argument"),
        (b"abc", ["--train_file", "none/*.txt"], r"there is no file none/\*\.txt"),
    ],
)
def test_bad_input_is_said_in_one_sentence_and_leaves_nothing(tmp_path, content, arguments, message):
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(content)
    with pytest.raises(InputError, match=message):
        train(tmp_path / "tok", "--train_file", corpus, *arguments)
    assert not list(tmp_path.glob("tok/*"))


def test_text_has_to_come_from_somewhere(tmp_path: Path):
    with pytest.raises(InputError, match="there is no text; name it with --train_file or --dataset_name"):
        train(tmp_path / "tok")


def test_output_folder_is_not_overwritten_by_accident(tmp_path: Path, text_file: Path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/vocab.txt").write_text("somebody else's")
    with pytest.raises(InputError, match="already holds a tokenizer"):
        train(tmp_path / "theirs", "--train_file", text_file)
    first = train(tmp_path / "tok", "--train_file", text_file)
    with pytest.raises(InputError, match=r"already holds a tokenizer; .*--overwrite_output_dir"):
        train(tmp_path / "tok", "--train_file", text_file, "--vocab_size", "60")
    assert (tmp_path / "tok" / "vocab.txt").read_text(encoding="utf-8").splitlines() == first
    arguments = ("--train_file", text_file, "--vocab_size", "60", "--overwrite_output_dir")
    assert len(train(tmp_path / "tok", *arguments)) == 60
    with pytest.raises(InputError, match="is a file, not a folder"):
        train(text_file, "--train_file", text_file)
