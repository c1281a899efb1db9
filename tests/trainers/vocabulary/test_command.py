"""`snugbert vocabulary`: the same files every time, the library's quality, and one sentence for bad input.

WordPiece, BPE and BPE of bytes; from nothing, or going on from another tokenizer and its model (`--init`).
"""

import gzip
import json
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import chain, islice
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel
from tokenizers.trainers import BpeTrainer, WordPieceTrainer
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
    BertTokenizer,
    TokenizersBackend,
)

from snugbert import (
    QuestionAnswerer,
    SnugBertForMaskedLM,
    SnugBertForPreTraining,
    SnugBertModel,
    SnugBertTokenizer,
)
from snugbert.errors import InputError
from snugbert.trainers.documents import read_lines
from snugbert.trainers.vocabulary import learning as vocabulary_learning
from snugbert.trainers.vocabulary.command import main
from snugbert.trainers.vocabulary.learning import KINDS, SPECIAL_TOKENS, count_words, learn_pieces, make_tokenizer
from snugbert_cli import main as snugbert_command

pytestmark = pytest.mark.usefixtures("one_thread")

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


@pytest.fixture(scope="module")
def some_text(tmp_path_factory, data_dir: Path) -> Path:
    """A sixth of Wikipedia's training text, which is enough."""
    file = tmp_path_factory.mktemp("text") / "wiki.txt"
    file.write_text("\n".join(islice(read_lines([data_dir / "wiki_en/train.txt.gz"]), 600)), encoding="utf-8")
    return file


def train(output_dir: Path, *arguments: str | Path) -> list[str]:
    main([*map(str, arguments), "--output_dir", str(output_dir)])
    return (output_dir / "vocab.txt").read_text(encoding="utf-8").splitlines()


def learn_word_pieces(words: Counter[str], vocab_size: int, min_frequency: int = 2) -> list[str]:
    return learn_pieces(words, vocab_size, min_frequency, show_progress=False)[0]


def many_ties() -> Counter[str]:
    """Words of four letters' alphabet, all equally frequent, so that nearly every merge is a tie."""
    return Counter({f"{a}{b}{c}{d}": 3 for a in "abcd" for b in "efgh" for c in "abgh" for d in "cdef"})


# --- the same every time ----------------------------------------------------------------------------------------


def test_processes_write_identical_files(tmp_path: Path):
    # The library alone fails this one (huggingface/tokenizers#1794): its ties go by the order of a hash map.
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

    command = "from snugbert.trainers.vocabulary.command import main"
    code = f"import json, sys; {command}; list(map(main, json.loads(sys.argv[1])))"
    environment = os.environ | {"PYTHONHASHSEED": "1", "TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": "3"}
    there = subprocess.Popen([sys.executable, "-c", code, json.dumps(runs(tmp_path / "there"))], env=environment)
    for arguments in runs(tmp_path / "here"):
        main(arguments)
    assert there.wait(timeout=120) == 0
    files = sorted(path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*.*"))
    assert {path.name for path in files} >= set(FILES)
    assert len({path.parent for path in files}) == 2 * len(KINDS)
    for file in files:
        assert (tmp_path / "here" / file).read_bytes() == (tmp_path / "there" / file).read_bytes(), file


def test_ties_never_depend_on_chance():
    first, *others = (learn_word_pieces(many_ties(), 150) for _ in range(10))
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("characters_at_once", [1, vocabulary_learning.CHARACTERS_AT_ONCE])
def test_words_are_those_the_tokenizer_sees(monkeypatch, kind, do_lower_case: bool, characters_at_once: int):
    monkeypatch.setattr(vocabulary_learning, "CHARACTERS_AT_ONCE", characters_at_once)
    lines = [*chain.from_iterable(DOCUMENTS), "  three   spaces \t\u3000 tab ", "I'll ... don't 1,000"]
    tokenizer = make_tokenizer(kind, do_lower_case=do_lower_case, tokenize_chinese_chars=kind != "byte-bpe")
    normalize, split = BertNormalizer(lowercase=do_lower_case).normalize_str, BertPreTokenizer()
    if kind == "byte-bpe":  # as in GPT-2
        normalize = BertNormalizer(False, False, lowercase=do_lower_case).normalize_str
        split = ByteLevel(add_prefix_space=True)
    whole_lines = (word for line in lines for word, _ in split.pre_tokenize_str(normalize(line)))
    assert count_words(lines, tokenizer, show_progress=False) == Counter(whole_lines)


@pytest.mark.parametrize(
    ("flags", "words", "of_bytes"),
    [
        ({}, "cafe naive 北 京 x", "ĠCafé ĠNAÏVE Ġ北 京 x"),
        ({"do_lower_case": True}, "cafe naive 北 京 x", "Ġcafe Ġnaive Ġ北 京 x"),
        ({"do_lower_case": False}, "Café NAÏVE 北 京 x", "ĠCafé ĠNAÏVE Ġ北 京 x"),
        ({"do_lower_case": True, "strip_accents": False}, "café naïve 北 京 x", "Ġcafé Ġnaïve Ġ北 京 x"),
        ({"do_lower_case": False, "strip_accents": True}, "Cafe NAIVE 北 京 x", "ĠCafe ĠNAIVE Ġ北 京 x"),
        ({"tokenize_chinese_chars": False}, "cafe naive 北京x", "ĠCafé ĠNAÏVE Ġ北京x"),
    ],
)
def test_every_model_honours_case_accents_and_chinese_characters(flags, words, of_bytes):
    text = "Café NAÏVE 北京x"
    for kind in ("wordpiece", "bpe"):
        assert count_words([text], make_tokenizer(kind, **flags), False) == Counter(words.split()), kind
    as_bytes = ByteLevel(add_prefix_space=False, use_regex=False)
    expected = [as_bytes.pre_tokenize_str(word.replace("Ġ", " "))[0][0] for word in of_bytes.split()]
    assert list(count_words([text], make_tokenizer("byte-bpe", **flags), False)) == expected


def test_merges_worked_out_by_hand():
    words = Counter(hug=10, pug=5, pun=12, bun=4, hugs=5)
    pieces = learn_word_pieces(words, vocab_size=100)
    #      20      16     15     12     5: p < hug   5       4
    merges = ["##ug", "##un", "hug", "pun", "pug", "hugs", "bun"]
    assert pieces == [*SPECIAL_TOKENS, *"bghnpsu", "##g", "##n", "##s", "##u", *merges]
    assert learn_word_pieces(words, vocab_size=19) == pieces[:19]
    assert learn_word_pieces(words, vocab_size=100, min_frequency=5) == pieces[:-1]
    learned, merges = learn_pieces(words, 100, kind="bpe", show_progress=False)
    assert learned == pieces
    inside = [
        ("##u", "##g"),
        ("##u", "##n"),
        ("h", "##ug"),
        ("p", "##un"),
        ("p", "##ug"),
        ("hug", "##s"),
        ("b", "##un"),
    ]
    assert merges == inside
    # BPE merges in that order; WordPiece takes the longest piece. An unknown character is a piece, or spoils the word.
    cut = {kind: make_tokenizer(kind, pieces, merges).tokenize("hugun pugsx") for kind in ("bpe", "wordpiece")}
    assert cut["bpe"] == ["hug", "##un", "pug", "##s", "[UNK]"]
    assert cut["wordpiece"] == ["hug", "##un", "[UNK]"]


def test_counts_too_many_for_the_library_are_scaled_down(monkeypatch):
    words = Counter(hug=100, pug=50, pun=120, bun=40, hugs=50)
    expected = learn_word_pieces(words, vocab_size=100, min_frequency=50)
    monkeypatch.setattr(vocabulary_learning, "MOST_TRAINING_WORDS", words.total() // 10)
    assert learn_word_pieces(words, vocab_size=100, min_frequency=50) == expected
    assert sum(len(line.split()) for line in vocabulary_learning._running_text(words, scale=10)) == words.total() // 10


def test_rare_characters_get_no_piece(monkeypatch):
    monkeypatch.setattr(vocabulary_learning, "ALPHABET", 2)
    words = Counter({"aa": 4000, "b": 1990, "c": 4, "d": 3, "ad": 1})
    pieces = learn_word_pieces(words, vocab_size=10)
    # a and b cover 9,990 of 9,999 characters, too few; with c 0.9995 of them are covered. "ad" is [UNK].
    assert pieces == [*SPECIAL_TOKENS, "a", "b", "c", "##a", "aa"]


def test_pruning_bounds_the_table_and_keeps_the_frequent(monkeypatch):
    monkeypatch.setattr(vocabulary_learning, "MOST_DISTINCT_WORDS", 100)
    monkeypatch.setattr(vocabulary_learning, "CHARACTERS_AT_ONCE", 200)
    lines = [f"often {'seldom' if number % 3 == 0 else ''} once{number}" for number in range(5000)]
    words = count_words(lines, SnugBertTokenizer(), show_progress=False)
    assert len(words) <= 100
    assert words.most_common(2) == [("often", 5000), ("seldom", 1667)]


def test_words_too_long_for_wordpiece_are_left_out():
    assert count_words(["a" * 101 + " " + "b" * 100], SnugBertTokenizer(), False) == {"b" * 100: 1}


def test_pieces_are_the_librarys_own(data_dir: Path):
    vocab_size = 8192
    text = list(read_lines([data_dir / "books_en" / "train-06.txt.gz"]))
    held_out = list(islice(read_lines([data_dir / "books_en" / "validation.txt.gz"]), 1000))
    library = Tokenizer(WordPiece(unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    trainer = WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    library.train_from_iterator(text, trainer)

    words = count_words(text, SnugBertTokenizer(), False)
    pieces, merges = learn_pieces(words, vocab_size, show_progress=False)
    assert len(pieces) == len(set(pieces)) == library.get_vocab_size() == vocab_size
    lengths = [
        sum(len(encoding) for encoding in tokenizer.encode_batch(held_out, add_special_tokens=False))
        for tokenizer in (
            library,
            make_tokenizer("wordpiece", pieces).backend_tokenizer,
            make_tokenizer("bpe", pieces, merges).backend_tokenizer,
        )
    ]
    assert lengths[1] == pytest.approx(lengths[0], rel=0.001)  # only ties may fall otherwise
    assert lengths[2] == pytest.approx(lengths[0], rel=0.01)  # the same pieces, but another cut


def test_pieces_of_bytes_are_the_librarys_own(some_text: Path):
    text = list(read_lines([some_text]))
    library = Tokenizer(BPE())
    library.pre_tokenizer = ByteLevel(add_prefix_space=True)
    special = [*SPECIAL_TOKENS]
    trainer = BpeTrainer(
        vocab_size=8192,
        min_frequency=2,
        special_tokens=special,
        show_progress=False,
        initial_alphabet=ByteLevel.alphabet(),
    )
    library.train_from_iterator(text, trainer)
    expected = json.loads(library.to_str())["model"]

    words = count_words(text, make_tokenizer("byte-bpe", tokenize_chinese_chars=False), False)
    pieces, merges = learn_pieces(words, 8192, kind="byte-bpe", show_progress=False)
    assert {piece: index for index, piece in enumerate(pieces)} == expected["vocab"]
    assert merges == [tuple(merge) for merge in expected["merges"]]


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
    assert f"{len(pieces)} pieces (wordpiece), learned from 35 words, 29 of them distinct" in printed
    assert "Note: these are fewer than the 30,522 asked for" in printed
    assert "vocab.txt in" in printed
    assert f"Next: snugbert pretrain --tokenizer_name '{tmp_path / 'my tok'}'" in printed


# --- BPE --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bpe_folders(tmp_path_factory, some_text: Path) -> dict[str, Path]:
    """BPE and BPE of bytes."""
    folder = tmp_path_factory.mktemp("bpe")
    for kind in ("bpe", "byte-bpe"):
        arguments = ["--train_file", str(some_text), "--vocab_size", "4000"]
        main(["--model", kind, *arguments, "--output_dir", str(folder / kind)])
    return {kind: folder / kind for kind in ("bpe", "byte-bpe")}


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_bpe_opens_as_transformers_own_class_and_has_berts_form(bpe_folders, data_dir, kind):
    assert sorted(path.name for path in bpe_folders[kind].iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    tokenizer = AutoTokenizer.from_pretrained(bpe_folders[kind])
    assert type(tokenizer) is TokenizersBackend
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3, 4]) == list(SPECIAL_TOKENS)
    assert (len(tokenizer), tokenizer.model_max_length) == (4000, 512)
    first, second = (
        tokenizer("The cat", "A mat", add_special_tokens=False),
        tokenizer("A mat", add_special_tokens=False),
    )
    ids = [tokenizer("The cat")["input_ids"][1:-1], tokenizer("A mat")["input_ids"][1:-1]]
    assert first["input_ids"] == ids[0] + ids[1] and second["input_ids"] == ids[1]
    pair = tokenizer("The cat", "A mat")
    assert pair["input_ids"] == [2, *ids[0], 3, *ids[1], 3]
    assert pair["token_type_ids"] == [0] * (len(ids[0]) + 2) + [1] * (len(ids[1]) + 1)
    # Offsets are those of the words, in a text and in a list of words; a word has the same pieces in both.
    for line in islice(read_lines([data_dir / "wiki_en/validation.txt.gz"]), 100):
        words = re.findall(r"\w+", line)
        listed = tokenizer(words, is_split_into_words=True)
        joined = tokenizer(" ".join(words), return_offsets_mapping=True)
        assert listed["input_ids"] == joined["input_ids"]
        ends = [0]
        for word in words:
            ends.append(ends[-1] + len(word) + 1)
        for word, (start, end) in list(zip(listed.word_ids(), joined["offset_mapping"], strict=True))[1:-1]:
            assert start >= ends[word] and end <= ends[word + 1] - 1, (line, word)


def test_text_of_bytes_comes_back_as_it_was(bpe_folders, data_dir, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(bpe_folders["byte-bpe"])
    odd = [
        "",
        "a  b \t\n c ",
        "北京 大学x",
        "e\u0301 \u200d\x00\x07\ufffd",
        "'S ##ing , . n't",
        "\U0001f642" * 3,
    ]
    for text in [*odd, *islice(read_lines([data_dir / "wiki_en/validation.txt.gz"]), 500)]:
        ids = tokenizer(text, verbose=False)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(tokenizer("  two")["input_ids"], skip_special_tokens=True) == " two"  # as documented
    # [MASK] stands for a word and the space before it; the next one keeps its own.
    cat = tokenizer("cat")["input_ids"][1:-1]
    for text in ("The cat sat.", "The cat.", "cat, sat"):
        before, after = tokenizer(text)["input_ids"], tokenizer(text.replace("cat", "[MASK]"))["input_ids"]
        place = before.index(cat[0])
        assert after == [*before[:place], tokenizer.mask_token_id, *before[place + len(cat) :]]
    assert tokenizer.decode(cat) == "cat"
    # Lower case is for those who ask for it, and the only thing that is lost then.
    (tmp_path / "text.txt").write_text("Naïve\n", encoding="utf-8")
    lower_case = ["--model", "byte-bpe", "--do_lower_case", "--strip_accents", "false", "--vocab_size", "300"]
    main([*lower_case, "--train_file", str(tmp_path / "text.txt"), "--output_dir", str(tmp_path / "lower")])
    lower = AutoTokenizer.from_pretrained(tmp_path / "lower")
    assert lower.decode(lower("A  NaÏve\tÉ")["input_ids"], skip_special_tokens=True) == "a  naïve\té"


def test_bpe_of_bytes_works_in_every_command(bpe_folders, data_dir, tmp_path):
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


# --- going on from another tokenizer ----------------------------------------------------------------------------


def longest_pieces_first(piece: str, old: dict[str, int]) -> list[int]:
    """WordPiece, written out: the ids of the old pieces of a new one."""
    prefix, text, ids = "", piece, []
    if piece.startswith("##"):
        prefix, text = "##", piece[2:]
    while text:
        end = next(end for end in range(len(text), 0, -1) if prefix + text[:end] in old)
        ids.append(old[prefix + text[:end]])
        prefix, text = "##", text[end:]
    return ids


def test_init_extends_a_real_checkpoint(tmp_path: Path, minilm: Path, data_dir: Path, capsys):
    train_file, held_out = (data_dir / f"wiki_en/{split}.txt.gz" for split in ("train", "validation"))
    pieces = train(tmp_path / "out", "--init", minilm, "--train_file", train_file, "--vocab_size", "32000")
    printed = capsys.readouterr().out
    assert "30,522 pieces of" in printed and "1,478 new ones" in printed
    assert f"Next: snugbert pretrain --model_name_or_path {tmp_path / 'out'} --train_file" in printed

    old_tokenizer, tokenizer = AutoTokenizer.from_pretrained(minilm), AutoTokenizer.from_pretrained(tmp_path / "out")
    old = old_tokenizer.get_vocab()
    assert type(tokenizer) is SnugBertTokenizer and len(pieces) == len(set(pieces)) == len(tokenizer) == 32000
    assert pieces[:30522] == sorted(old, key=old.__getitem__)
    lengths = []
    for file in (train_file, held_out):
        lines = list(islice(read_lines([file]), 300))
        lengths.append([sum(map(len, t(lines, verbose=False)["input_ids"])) for t in (old_tokenizer, tokenizer)])
    assert lengths[0][1] < 0.99 * lengths[0][0] and lengths[1][1] < lengths[1][0]

    before = BertModel.from_pretrained(minilm).eval()
    after, info = SnugBertModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    rows, new_rows = before.embeddings.word_embeddings.weight, after.embeddings.word_embeddings.weight
    assert torch.equal(new_rows[:30522], rows)
    for index in range(30522, 32000):
        expected = rows[longest_pieces_first(pieces[index], old)].mean(dim=0)
        torch.testing.assert_close(new_rows[index], expected, msg=pieces[index])
    sentence = "The house is on the river."  # nothing in it is new
    inputs = tokenizer(sentence, return_tensors="pt")
    assert inputs["input_ids"].tolist() == old_tokenizer(sentence, return_tensors="pt")["input_ids"].tolist()
    torch.testing.assert_close(after.eval()(**inputs)[0], before(**inputs)[0], atol=1e-4, rtol=1e-4)
    with_new = tokenizer(" ".join(piece for piece in pieces[30522:30560] if piece[0] != "#"), return_tensors="pt")
    assert with_new["input_ids"].max() >= 30522
    assert after(**with_new)[0].isfinite().all()


@pytest.fixture
def small_checkpoint(tmp_path: Path) -> Path:
    """A masked language model of stock BERT's, cased, with an added token and rows to spare."""
    train(tmp_path / "vocab", "--train_file", _ties(tmp_path), "--vocab_size", "40", "--no_do_lower_case")
    tokenizer = BertTokenizer(vocab=str(tmp_path / "vocab/vocab.txt"), do_lower_case=False)
    tokenizer.add_tokens(["snug-bert"])
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(vocab_size=48, **sizes))
    torch.nn.init.normal_(model.cls.predictions.bias)
    model.save_pretrained(tmp_path / "old")
    tokenizer.save_pretrained(tmp_path / "old")
    return tmp_path / "old"


def _ties(folder: Path) -> Path:
    (folder / "ties.txt").write_text(" ".join(many_ties().elements()), encoding="utf-8")
    return folder / "ties.txt"


def test_init_extends_predictions_and_keeps_added_tokens(tmp_path: Path, small_checkpoint: Path):
    train(tmp_path / "new", "--init", small_checkpoint, "--train_file", tmp_path / "ties.txt", "--vocab_size", "80")
    before, after = (
        BertForMaskedLM.from_pretrained(small_checkpoint),
        SnugBertForMaskedLM.from_pretrained(tmp_path / "new"),
    )
    old, new = AutoTokenizer.from_pretrained(small_checkpoint), AutoTokenizer.from_pretrained(tmp_path / "new")
    assert len(old) == 41 and len(new) == after.config.vocab_size == 80
    assert new.tokenize("aebc snug-bert AEBC")[-2:] == ["snug-bert", "[UNK]"]
    assert new.convert_tokens_to_ids("snug-bert") == 40
    assert (new.do_lower_case, new.tokenize("AE")) == (False, ["[UNK]"])
    assert after.get_output_embeddings().weight is after.get_input_embeddings().weight
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        table, longer = before.state_dict()[name], after.state_dict()[name]
        assert torch.equal(longer[:41], table[:41])
        for index in range(41, 80):
            ids = longest_pieces_first(new.convert_ids_to_tokens(index), old.get_vocab())
            assert len(ids) > 1
            torch.testing.assert_close(longer[index], table[ids].mean(dim=0))
    run = ["--model_name_or_path", str(tmp_path / "new"), "--train_file", str(tmp_path / "ties.txt"), "--no_nsp"]
    run += ["--max_steps", "1", "--max_seq_length", "16", "--use_cpu", "true", "--report_to", "none"]
    assert snugbert_command(["pretrain", *run, "--output_dir", str(tmp_path / "pretrained")]) == 0
    assert json.loads((tmp_path / "pretrained/config.json").read_text())["vocab_size"] == 80


@pytest.mark.parametrize("tied", [True, False])
def test_init_keeps_every_part_of_a_checkpoint(tmp_path: Path, small_checkpoint: Path, tied: bool):
    """Of one that holds more heads than it names, as google-bert's do, and has biases that differ if not tied."""
    config = BertConfig.from_pretrained(small_checkpoint, tie_word_embeddings=tied)
    model = BertForPreTraining(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(small_checkpoint)
    settings = json.loads((small_checkpoint / "config.json").read_text())
    (small_checkpoint / "config.json").write_text(json.dumps(settings | {"architectures": ["BertForMaskedLM"]}))
    tokenizer = AutoTokenizer.from_pretrained(small_checkpoint)
    tokenizer.model_max_length = 1024
    tokenizer.save_pretrained(small_checkpoint)
    train(tmp_path / "new", "--init", small_checkpoint, "--train_file", tmp_path / "ties.txt", "--vocab_size", "80")
    assert AutoTokenizer.from_pretrained(tmp_path / "new").model_max_length == 1024
    longer, info = SnugBertForPreTraining.from_pretrained(tmp_path / "new", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    inputs = tokenizer("ae bc", return_tensors="pt")
    before, after = model(**inputs), longer.eval()(**inputs)
    torch.testing.assert_close(after.seq_relationship_logits, before.seq_relationship_logits)
    torch.testing.assert_close(after.prediction_logits[..., :41], before.prediction_logits[..., :41])


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_init_goes_on_merging(tmp_path: Path, bpe_folders, some_text, data_dir, kind, capsys):
    arguments = ["--train_file", str(some_text), "--vocab_size", "6000", "--output_dir", str(tmp_path)]
    main(["--init", str(bpe_folders[kind]), *arguments])
    assert "this is a tokenizer alone" in capsys.readouterr().out
    old, new = AutoTokenizer.from_pretrained(bpe_folders[kind]), AutoTokenizer.from_pretrained(tmp_path)
    assert {piece: index for piece, index in new.get_vocab().items() if index < 4000} == old.get_vocab()
    assert len(new) == 6000 and new.mask_token_id == 4 and new("a", "b")["token_type_ids"][-1] == 1
    lines = list(islice(read_lines([data_dir / "wiki_en/validation.txt.gz"]), 100))
    cuts = [
        [tokenizer(line, return_offsets_mapping=True, verbose=False) for line in lines] for tokenizer in (old, new)
    ]
    for before, after in zip(*cuts, strict=True):
        # A new cut is an old one with some boundaries less.
        assert {end for _, end in after["offset_mapping"]} <= {end for _, end in before["offset_mapping"]}
        assert old.decode(before["input_ids"]) == new.decode(after["input_ids"])
    lengths = [sum(len(cut["input_ids"]) for cut in side) for side in cuts]
    assert lengths[1] < 0.95 * lengths[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vocab_size", "41"], r"--vocab_size 41 must be above the 41 pieces that .*old already has"),
        (["--model", "bpe"], r"--model bpe: the tokenizer of .*old is wordpiece, and stays so"),
        (["--do_lower_case"], r"--do_lower_case true contradicts the tokenizer of .*old, which has false"),
        (["--strip_accents", "true"], r"--strip_accents true contradicts"),
        (["--no_tokenize_chinese_chars"], r"--tokenize_chinese_chars false contradicts .* which has true"),
    ],
)
def test_init_refuses_what_contradicts_it(tmp_path: Path, small_checkpoint: Path, arguments, message):
    text = ["--train_file", tmp_path / "ties.txt"]
    with pytest.raises(InputError, match=message):
        train(tmp_path / "new", "--init", small_checkpoint, *text, *arguments)
    assert not list(tmp_path.glob("new/*"))


def test_init_says_what_it_cannot_extend(tmp_path: Path, small_checkpoint: Path):
    text = ["--train_file", tmp_path / "ties.txt", "--vocab_size", "80"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"there is no tokenizer.json or vocab.txt in .*empty"):
        train(tmp_path / "new", "--init", tmp_path / "empty", *text)
    library = Tokenizer.from_file(str(small_checkpoint / "tokenizer.json"))
    library.pre_tokenizer = ByteLevel()
    special = dict(
        zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL_TOKENS, strict=True)
    )
    TokenizersBackend(tokenizer_object=library, **special).save_pretrained(tmp_path / "other")
    with pytest.raises(InputError, match=r"--init: the tokenizer of .*other is neither BERT's nor one that"):
        train(tmp_path / "new", "--init", tmp_path / "other", *text)
    config = json.loads((small_checkpoint / "config.json").read_text())
    (small_checkpoint / "config.json").write_text(json.dumps(config | {"architectures": ["BertLMHeadModel"]}))
    with pytest.raises(InputError, match=r"config\.json is of a BertLMHeadModel; what is accepted is BertModel, "):
        train(tmp_path / "new", "--init", small_checkpoint, *text)
    (small_checkpoint / "config.json").unlink()
    assert len(train(tmp_path / "new", "--init", small_checkpoint, *text)) == 80
    assert not (tmp_path / "new/config.json").exists()


# --- the benchmark ----------------------------------------------------------------------------------------------


def test_benchmark_measures_both_sides(monkeypatch, some_text: Path, bpe_folders):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    import vocabulary as benchmark

    settings = ["--train_file", str(some_text), "--validation_file", str(some_text), "--vocab_size", "4000"]
    init = ["--init", str(bpe_folders["bpe"]), "--init_vocab_size", "4500"]
    args = benchmark.parse_arguments([*settings, *init])
    sides = [(kind, side) for kind in ("wordpiece", "byte-bpe") for side in benchmark.SIDES]
    results = {(row, side): [benchmark.run(row, side, args)] for row, side in [*sides, ("init", "ours")]}
    header, _, wordpiece, of_bytes, extended = (
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in benchmark.table(results, ["wordpiece", "byte-bpe", "init"])
    )
    assert len(header) == len(wordpiece) == len(of_bytes) == len(extended) == 7
    assert (wordpiece[0], of_bytes[0], extended[0]) == ("wordpiece, 4,000", "byte-bpe, 4,000", "init, 4,500")
    for row in (wordpiece, of_bytes):
        ours, theirs = map(float, row[5].split(" / "))  # pieces a word
        assert 1 < ours == pytest.approx(theirs, rel=0.002) and row[6] == "yes / yes"
    assert extended[1].endswith(" / -") and extended[2] == ""


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (b"", [], "the corpus is empty"),
        (b"\n \n\t\n", [], "the corpus is empty"),
        (b"\x00\x07", [], "the corpus is empty: it holds no words"),
        (b"fine\nnot \xff\xfe\n", [], r"corpus\.txt, line 2: not UTF-8"),
        (b"abc abc", ["--vocab_size", "9"], r"--vocab_size 9 is too small; .* at least 10\."),
        (b"abc", ["--model", "byte-bpe", "--vocab_size", "260"], r"too small; the 256 bytes .* at least 261\."),
        (b"abc", ["--model", "unigram"], "--model: invalid choice: 'unigram'"),
        (b"abc", ["--do_lower_case", "--no_do_lower_case"], "--do_lower_case and --no_do_lower_case contradict"),
        (b"abc", ["--init", "./nowhere"], r"--init: there is no folder \./nowhere"),
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
    with pytest.raises(InputError, match=r"already holds a tokenizer or a model; .*--overwrite_output_dir"):
        train(tmp_path / "tok", "--train_file", text_file, "--vocab_size", "60")
    assert (tmp_path / "tok" / "vocab.txt").read_text(encoding="utf-8").splitlines() == first
    arguments = ("--train_file", text_file, "--vocab_size", "60", "--overwrite_output_dir")
    assert len(train(tmp_path / "tok", *arguments)) == 60
    main([*map(str, arguments[:2]), "--model", "bpe", "--overwrite_output_dir", "--output_dir", str(tmp_path / "tok")])
    assert not (tmp_path / "tok/vocab.txt").exists()  # it would open as another tokenizer
    with pytest.raises(InputError, match="is a file, not a folder"):
        train(text_file, "--train_file", text_file)
