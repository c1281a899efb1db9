"""Words are counted as the tokenizer splits them. The learned tokens equal the library's, but are deterministic.

Also case and accents: defaults of a language, and what the command reports about them.
"""

import json
import re
from collections import Counter
from itertools import accumulate, chain, islice, product
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel
from tokenizers.trainers import BpeTrainer, WordPieceTrainer
from transformers import AutoTokenizer, BertTokenizer, TokenizersBackend
from vocabularies import DOCUMENTS, learn_wordpiece

from snugbert import SnugBertTokenizer
from snugbert.cli.main import run_command
from snugbert.data.documents import read_lines
from snugbert.data.languages import read_language
from snugbert.vocabulary import learning
from snugbert.vocabulary.learning import KINDS, SPECIAL_TOKENS, count_words, learn_tokens, make_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", KINDS)
def test_words_equal_the_tokenizers_own(monkeypatch, kind):
    lines = [*chain.from_iterable(DOCUMENTS), "  three   spaces \t\u3000 tab ", "I'll ... don't 1,000"]
    as_gpt2 = kind == "byte-bpe"
    split = ByteLevel(add_prefix_space=True) if as_gpt2 else BertPreTokenizer()
    for chinese, accents, lower in product((True, False), (None, True, False), (None, True, False)):
        if as_gpt2 and chinese:  # below
            continue
        tokenizer = make_tokenizer(kind, do_lower_case=lower, strip_accents=accents, tokenize_chinese_chars=chinese)
        lowers = not as_gpt2 if lower is None else lower
        normalize = BertNormalizer(not as_gpt2, chinese, accents, lowers).normalize_str
        expected = Counter(word for line in lines for word, _ in split.pre_tokenize_str(normalize(line)))
        assert count_words(lines, tokenizer) == expected
        with monkeypatch.context() as context:
            context.setattr(learning, "CHARACTERS_AT_ONCE", 1)
            assert count_words(lines, tokenizer) == expected
    if as_gpt2:
        assert list(count_words(["a 北京x"], make_tokenizer(kind))) == ["Ġa", "ĠåĮĹ", "äº¬", "x"]


def test_merges_by_hand():
    words = Counter(hug=10, pug=5, pun=12, bun=4, hugs=5)
    tokens = learn_wordpiece(words, vocab_size=100)
    #      20      16     15     12     5: p < hug   5       4
    merges = ["##ug", "##un", "hug", "pun", "pug", "hugs", "bun"]
    assert tokens == [*SPECIAL_TOKENS, *"bghnpsu", "##g", "##n", "##s", "##u", *merges]
    assert learn_wordpiece(words, vocab_size=19) == tokens[:19]
    assert learn_wordpiece(words, vocab_size=100, min_frequency=5) == tokens[:-1]
    learned, merges = learn_tokens(words, 100, kind="bpe")
    assert learned == tokens
    pairs = "##u ##g, ##u ##n, h ##ug, p ##un, p ##ug, hug ##s, b ##un"
    assert merges == [tuple(pair.split()) for pair in pairs.split(", ")]
    # BPE merges in that order. WordPiece takes the longest token, and an unknown character makes the word [UNK].
    cut = {kind: make_tokenizer(kind, tokens, merges).tokenize("hugun pugsx") for kind in ("bpe", "wordpiece")}
    assert cut["bpe"] == ["hug", "##un", "pug", "##s", "[UNK]"]
    assert cut["wordpiece"] == ["hug", "##un", "[UNK]"]


def test_words_over_wordpieces_limit_are_not_counted():
    assert count_words(["a" * 101 + " " + "b" * 100], SnugBertTokenizer()) == {"b" * 100: 1}


def test_counts_over_32_bits_are_scaled(monkeypatch):
    """The library counts in 32 bits."""
    words = Counter(hug=100, pug=50, pun=120, bun=40, hugs=50)
    expected = learn_wordpiece(words, vocab_size=100, min_frequency=50)
    monkeypatch.setattr(learning, "MOST_TRAINING_WORDS", words.total() // 10)
    assert learn_wordpiece(words, vocab_size=100, min_frequency=50) == expected
    assert sum(len(line.split()) for line in learning._repeat_words(words, scale=10)) == words.total() // 10


def test_the_alphabet_covers_most_characters(monkeypatch):
    """a and b cover 9,991 of 9,999 characters, which is too few. With c, 0.9995 of them are covered.

    d is as frequent as c and comes first in the text, but later in the alphabet.
    """
    monkeypatch.setattr(learning, "ALPHABET_SIZE", 2)
    rare = Counter({"ad": 1, "d": 3, "c": 4, "aa": 4000, "b": 1990})
    assert learn_wordpiece(rare, vocab_size=10) == [*SPECIAL_TOKENS, "a", "b", "c", "##a", "aa"]


def test_the_table_of_words_is_pruned(monkeypatch):
    monkeypatch.setattr(learning, "MOST_DISTINCT_WORDS", 100)
    monkeypatch.setattr(learning, "CHARACTERS_AT_ONCE", 200)
    lines = [f"often {'seldom' if number % 3 == 0 else ''} once{number}" for number in range(5000)]
    words = count_words(lines, SnugBertTokenizer())
    assert len(words) <= 100 and words.most_common(2) == [("often", 5000), ("seldom", 1667)]


OPTIONS = {"min_frequency": 2, "special_tokens": list(SPECIAL_TOKENS), "show_progress": False, "vocab_size": 4000}


@pytest.mark.slow
def test_tokens_equal_the_librarys_wordpiece(data_dir: Path, some_text: Path, bpe_folders):
    text = list(read_lines([some_text]))
    held_out = list(islice(read_lines([data_dir / "wiki_en" / "validation.txt.gz"]), 200))
    library = Tokenizer(WordPiece(unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    library.train_from_iterator(text, WordPieceTrainer(**OPTIONS))
    tokens, _ = learn_tokens(count_words(text, SnugBertTokenizer()), 4000)
    assert len(tokens) == len(set(tokens)) == library.get_vocab_size() == 4000
    ours = make_tokenizer("wordpiece", tokens), AutoTokenizer.from_pretrained(bpe_folders["bpe"])
    lengths = [
        sum(map(len, tokenizer.encode_batch(held_out, add_special_tokens=False)))
        for tokenizer in (library, *(each.backend_tokenizer for each in ours))
    ]
    assert lengths[1] == pytest.approx(lengths[0], rel=0.001)  # only ties may differ
    assert lengths[2] == pytest.approx(lengths[0], rel=0.01)  # same tokens, but words are split differently
    assert ours[1].get_vocab() == ours[0].get_vocab()


def test_tokens_equal_the_librarys_byte_level_bpe(some_text: Path, bpe_folders):
    library = Tokenizer(BPE())
    library.pre_tokenizer = ByteLevel(add_prefix_space=True)
    trainer = BpeTrainer(initial_alphabet=ByteLevel.alphabet(), **OPTIONS)
    library.train_from_iterator(read_lines([some_text]), trainer)
    models = json.loads((bpe_folders["byte-bpe"] / "tokenizer.json").read_text()), json.loads(library.to_str())
    for name in ("vocab", "merges"):
        assert models[0]["model"][name] == models[1]["model"][name]


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_bpe_opens_as_a_transformers_class_and_formats_text_as_bert(bpe_folders, data_dir, kind):
    assert sorted(path.name for path in bpe_folders[kind].iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    tokenizer = AutoTokenizer.from_pretrained(bpe_folders[kind])
    assert type(tokenizer) is TokenizersBackend
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3, 4]) == list(SPECIAL_TOKENS)
    assert (len(tokenizer), tokenizer.model_max_length) == (4000, 512)
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("The cat", "A mat")]
    pair = tokenizer("The cat", "A mat")
    assert pair["input_ids"] == [2, *ids[0], 3, *ids[1], 3]
    assert pair["token_type_ids"] == [0] * (len(ids[0]) + 2) + [1] * (len(ids[1]) + 1)
    # A word has the same tokens and offsets in a text and in a list of words.
    for line in islice(read_lines([data_dir / "wiki_en/validation.txt.gz"]), 30):
        words = re.findall(r"\w+", line)
        listed = tokenizer(words, is_split_into_words=True)
        joined = tokenizer(" ".join(words), return_offsets_mapping=True)
        assert listed["input_ids"] == joined["input_ids"]
        starts = [0, *accumulate(len(word) + 1 for word in words)]
        for word, (start, end) in list(zip(listed.word_ids(), joined["offset_mapping"], strict=True))[1:-1]:
            assert start >= starts[word] and end <= starts[word + 1] - 1, (line, word)


def test_byte_level_bpe_restores_the_text(bpe_folders, data_dir):
    tokenizer = AutoTokenizer.from_pretrained(bpe_folders["byte-bpe"])
    odd = ["", "a  b \t\n c ", "北京 大学x", "e\u0301 \u200d\x00\x07\ufffd", "'S ##ing , . n't", "\U0001f642" * 3]
    for text in [*odd, *islice(read_lines([data_dir / "wiki_en/validation.txt.gz"]), 100)]:
        ids = tokenizer(text, verbose=False)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(tokenizer("  two")["input_ids"], skip_special_tokens=True) == " two"  # as documented
    # [MASK] replaces a word and the space before it. The next word keeps its space.
    cat = tokenizer("cat")["input_ids"][1:-1]
    for text in ("The cat sat.", "The cat.", "cat, sat"):
        before, after = tokenizer(text)["input_ids"], tokenizer(text.replace("cat", "[MASK]"))["input_ids"]
        place = before.index(cat[0])
        assert after == [*before[:place], tokenizer.mask_token_id, *before[place + len(cat) :]]
    assert tokenizer.decode(cat) == "cat"


GERMAN = ["Es ist schon dunkel.", "Der Hund ist schön, und die Küche ist schön.", "Schon schön!"]


@pytest.fixture
def german(tmp_path):
    (tmp_path / "german.txt").write_text("\n".join(GERMAN), encoding="utf-8")
    return tmp_path / "german.txt"


def learn(folder, file, *arguments):
    flags = ["--vocab_size", "600", "--overwrite_output_dir", *arguments]
    run_command("vocabulary", ["--train_file", str(file), "--output_dir", str(folder), *flags])
    return AutoTokenizer.from_pretrained(folder)


def to_text(tokenizer, text):
    return tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize(
    ("flags", "expected", "byte_level", "printed"),
    [
        ([], "schon schon", "Schon schön", "Other languages keep case and accents."),
        (["--language", "en-gb"], "schon schon", "Schon schön", "both removed.\nNote: the vocabulary has fewer"),
        (["--language", "de"], "Schon schön", "Schon schön", "both kept.\n"),
        (["--language", "mul"], "Schon schön", "Schon schön", "both kept.\n"),
        # Given flags win. Lowercased text keeps the accents of the language.
        (["--language", "de", "--do_lower_case"], "schon schön", "schon schön", "Case: removed. Accents: kept."),
        (["--language", "de", "--do_lower_case", "--strip_accents"], "schon schon", "schon schon", "both removed."),
        (["--language", "de", "--strip_accents"], "Schon schon", "Schon schon", "Case: kept. Accents: removed."),
        (["--do_lower_case", "--strip_accents", "false"], "schon schön", "schon schön", "Accents: kept."),
    ],
)
def test_other_languages_than_english_keep_case_and_accents(
    flags, expected, byte_level, printed, german, tmp_path, capsys
):
    for kind in KINDS:
        tokenizer = learn(tmp_path / kind, german, "--model", kind, *flags)
        assert to_text(tokenizer, "Schon schön") == (byte_level if kind == "byte-bpe" else expected), kind
        assert kind == "byte-bpe" or printed in capsys.readouterr().out
    if flags == ["--language", "de"]:  # as bert-base-multilingual-cased
        assert read_language(tokenizer) == "de"
        cased = BertTokenizer(vocab=str(tmp_path / "wordpiece/vocab.txt"), do_lower_case=False)
        ours = AutoTokenizer.from_pretrained(tmp_path / "wordpiece")
        assert [ours(line)["input_ids"] for line in GERMAN] == [cased(line)["input_ids"] for line in GERMAN]
