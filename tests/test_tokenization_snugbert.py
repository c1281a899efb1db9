"""SnugBertTokenizer gives the same ids and offsets as BertTokenizer."""

import gzip
import shutil
from itertools import islice

import pytest
from transformers import AutoTokenizer, BertTokenizer

import snugbert
from snugbert.families.loading import is_uncased
from snugbert.vocabulary.learning import KINDS, make_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

CASES = [
    "",
    " ",
    "Hello, World!",
    "naïve café",
    "不知道 what",
    "a\u0000b\ufffdc",
    "x" * 150,
    "[MASK] it [SEP]",
    "e\u0301",
]


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def tokenizers(request, data_dir):
    vocab = str(data_dir / "vocab" / f"bert-base-{'uncased' if request.param else 'cased'}-vocab.txt")
    return (
        snugbert.SnugBertTokenizer(vocab=vocab, do_lower_case=request.param),
        BertTokenizer(vocab=vocab, do_lower_case=request.param),
    )


def read_text_lines(data_dir, corpus):
    file = "sample_text/sample_text.txt" if corpus == "sample_text" else f"{corpus}/validation.txt.gz"
    with (gzip.open if file.endswith(".gz") else open)(data_dir / file, "rt", encoding="utf-8") as stream:
        yield from islice(stream, 300)


def assert_equal(ours, stock, texts, pairs=None):
    options = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
    mine, theirs = ours(texts, pairs, **options), stock(texts, pairs, **options)
    assert mine.keys() == theirs.keys()
    for name in theirs:
        assert mine[name] == theirs[name], name


@pytest.mark.parametrize("corpus", ["wiki_en", "sample_text"])
def test_equal_to_bert_tokenizer_on_real_text(tokenizers, data_dir, corpus):
    lines = list(read_text_lines(data_dir, corpus))
    assert len(lines) > 30
    assert_equal(*tokenizers, lines)


def test_equal_to_bert_tokenizer_on_pairs_and_odd_text(tokenizers, data_dir):
    ours, stock = tokenizers
    lines = [*read_text_lines(data_dir, "sample_text"), *CASES]
    assert_equal(ours, stock, lines, lines[::-1])
    options = {"truncation": True, "max_length": 24, "stride": 4, "return_overflowing_tokens": True}
    options |= {"padding": "max_length", "return_tensors": "pt"}
    mine, theirs = ours(lines, lines[::-1], **options), stock(lines, lines[::-1], **options)
    for name in theirs:
        assert (mine[name] == theirs[name]).all(), name
    for ids in mine["input_ids"]:
        assert ours.decode(ids) == stock.decode(ids)
        assert ours.decode(ids, skip_special_tokens=True) == stock.decode(ids, skip_special_tokens=True)


def test_every_kind_of_folder_loads_and_round_trips(tokenizers, tmp_path, data_dir):
    ours, stock = tokenizers
    lines = [*read_text_lines(data_dir, "sample_text"), *CASES]
    expected = ours(lines)["input_ids"]
    ours.save_pretrained(tmp_path / "ours")
    stock.save_pretrained(tmp_path / "stock")  # tokenizer.json of BertTokenizer
    (tmp_path / "vocab_only").mkdir()
    vocabulary = sorted(ours.get_vocab().items(), key=lambda item: item[1])
    (tmp_path / "vocab_only/vocab.txt").write_text("".join(f"{piece}\n" for piece, _ in vocabulary), encoding="utf-8")
    for folder in ("ours", "stock", "vocab_only"):
        options = {"do_lower_case": ours.do_lower_case} if folder == "vocab_only" else {}
        loaded = snugbert.SnugBertTokenizer.from_pretrained(tmp_path / folder, **options)
        assert loaded(lines)["input_ids"] == expected, folder
        assert loaded.model_max_length == 512 or folder == "stock"
    automatic = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(automatic) is snugbert.SnugBertTokenizer
    assert automatic(lines)["input_ids"] == expected
    automatic.add_tokens(["snugbert"])
    automatic.save_pretrained(tmp_path / "added")
    again = AutoTokenizer.from_pretrained(tmp_path / "added")
    assert again.tokenize("a snugbert model")[1] == "snugbert"
    assert len(again) == len(ours) + 1


@pytest.mark.parametrize("number", [0, 1, 4])
def test_special_tokens_with_new_names_equal_stock_bert(number, tmp_path):
    """`number`: how many are given at construction. If none, the mask is replaced afterwards."""
    pieces = {piece: index for index, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])}
    names = [("cls_token", "<s>"), ("sep_token", "</s>"), ("pad_token", "<pad>"), ("mask_token", "<mask>")]
    results = []
    for tokenizer_class in (snugbert.SnugBertTokenizer, BertTokenizer):
        tokenizer = tokenizer_class(pieces, **dict(names[len(names) - number :]))
        if number == 0:
            tokenizer.add_special_tokens({"mask_token": "<mask>"})
        folder = tmp_path / tokenizer_class.__name__
        tokenizer.save_pretrained(folder)
        for one in (tokenizer, tokenizer_class.from_pretrained(folder)):
            results.append((one("a <mask>", "a", padding="max_length", max_length=9)["input_ids"], one.mask_token))
        assert tokenizer_class.from_pretrained(folder, cls_token="b")("a")["input_ids"][:2] == [6, 5]
    assert results == [results[-1]] * 4 and results[0][1] == "<mask>"


SPECIAL = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"


@pytest.mark.parametrize(
    ("words", "size"),
    [
        ("the\ncat\n\nsat\non\nmat\n", 11),
        ("the\ncat\n \t\nsat\non\nmat\n", 11),
        ("the\ncat\nmat\n\n", 9),
        ("the\ncat\nmat", 8),
        ("the  \r\ncat\r\n\r\nmat\r\n", 9),
        ("th\u2028e\nc\rat\n\u3000\nmat\u00a0\n", 9),
    ],
)
def test_every_line_of_a_vocabulary_has_the_id_of_bert_tokenizer(tmp_path, words, size):
    file = tmp_path / "vocab.txt"
    file.write_bytes((SPECIAL + words).encode())
    ours, stock = snugbert.SnugBertTokenizer(file), BertTokenizer(vocab=str(file))
    assert len(ours) == size
    for tokenizer in (ours, stock):
        tokenizer.add_tokens(["zzz"])
    assert ours.get_vocab() == stock.get_vocab() and ours.convert_tokens_to_ids("zzz") == size
    assert ours("the zzz cat mat")["input_ids"] == stock("the zzz cat mat")["input_ids"]
    assert [ours.decode([index]) for index in range(size)] == [stock.decode([index]) for index in range(size)]
    ours.save_pretrained(tmp_path)
    assert snugbert.SnugBertTokenizer.from_pretrained(tmp_path).get_vocab() == stock.get_vocab()


def test_a_byte_order_mark_and_line_ends_are_not_part_of_a_token(tmp_path):
    (tmp_path / "vocab.txt").write_text(SPECIAL + "a\n", encoding="utf-8-sig", newline="\r\n")
    assert snugbert.SnugBertTokenizer(tmp_path / "vocab.txt").convert_tokens_to_ids(["[PAD]", "a"]) == [0, 5]
    assert is_uncased(tmp_path / "vocab.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            f"{SPECIAL}the\ncat\nthe \r\n".encode(),
            r"vocab\.txt, line 8: 'the' is already on line 6\. Replace this line",
        ),
        (f"{SPECIAL}the\n\ncat\n \n".encode(), "line 9: an empty line is already on line 7"),
        (f"{SPECIAL}[MASK]\n".encode(), r"line 6: '\[MASK\]' is already on line 5"),
        (b"[PAD]\n[UNK]\n[CLS]\na\n", r"The vocabulary of 4 tokens lacks \[SEP\], \[MASK\]\. Every vocabulary"),
        (b"[PAD]\n[UNK]\ncaf\xe9\n", r"vocab\.txt, line 3: not UTF-8"),
        (None, r"no tokenizer\.json or vocab\.txt"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        snugbert.SnugBertTokenizer.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks <unk>\."):
        snugbert.SnugBertTokenizer({token: index for index, token in enumerate(SPECIAL.split())}, unk_token="<unk>")


@pytest.mark.parametrize("kind", KINDS)
def test_train_new_from_iterator_keeps_class_flags_and_special_tokens(kind, data_dir, tmp_path):
    flags = {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False}
    old = make_tokenizer(kind, **flags)
    old.add_special_tokens({"mask_token": "<mask>"})
    lines = [*islice(read_text_lines(data_dir, "wiki_en"), 300), "CAFÉ 北京"]
    trained = old.train_new_from_iterator([lines], vocab_size=1000, show_progress=False)
    assert type(trained) is type(old) and len(trained) == 1000
    assert trained.mask_token == "<mask>"
    trained.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded) is type(old) and loaded.model_max_length == 512
    text, pair = "The CAFÉ of 北京 <mask>.", "And more."
    assert loaded.decode(loaded(text)["input_ids"], skip_special_tokens=True).startswith("the café of 北京")
    first, second = (loaded(part, add_special_tokens=False)["input_ids"] for part in (text, pair))
    both = loaded(text, pair)
    assert both["input_ids"] == [loaded.cls_token_id, *first, loaded.sep_token_id, *second, loaded.sep_token_id]
    assert both["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert loaded.mask_token_id in first and len(first) < len(text)
    assert both == trained(text, pair)


@pytest.mark.parametrize(("file", "added"), [("vocab.txt", False), ("tokenizer.json", True)])
def test_train_new_from_iterator_of_a_loaded_tokenizer_gives_stock_berts_tokens(file, added, data_dir, tmp_path):
    classes = (snugbert.SnugBertTokenizer, BertTokenizer)
    shutil.copy(data_dir / "vocab/bert-base-uncased-vocab.txt", tmp_path / "vocab.txt")
    old, stock = (cls.from_pretrained(tmp_path) for cls in classes)
    for each in (old, stock) if added else ():
        each.add_tokens(["snug-bert"])
        each.add_special_tokens({"extra_special_tokens": ["[GENE]"]})
    if file == "tokenizer.json":
        old.save_pretrained(tmp_path)
        old, stock = (cls.from_pretrained(tmp_path) for cls in classes)
    lines = ["ab " * 3, "CD " * 5, "ef " * 7]  # no ties, which the trainer breaks differently each time
    trained, expected = (each.train_new_from_iterator([lines], 100, show_progress=False) for each in (old, stock))
    assert type(trained) is snugbert.SnugBertTokenizer
    assert set(trained.get_vocab()) == set(expected.get_vocab()) and {"ab", "cd", "##d"} <= set(trained.get_vocab())
    text = "ab snug-bert [GENE] cdef"
    assert trained.tokenize(text) == expected.tokenize(text)
    assert trained(text, "ef")["input_ids"].count(trained.sep_token_id) == 2
