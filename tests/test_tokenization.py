"""The tokenizer against BertTokenizer, id for id and offset for offset."""

import gzip
import json

import pytest
from transformers import AutoTokenizer, BertTokenizer

import snugbert

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


def lines_of(data_dir, corpus):
    if corpus == "conll2003":
        for split in ("train", "valid", "test"):
            with gzip.open(data_dir / f"conll2003/{split}.jsonl.gz", "rt", encoding="utf-8") as stream:
                yield from (" ".join(json.loads(line)["tokens"]) for line in stream)
        return
    files = {
        "wiki_en": ["wiki_en/train.txt.gz", "wiki_en/validation.txt.gz"],
        "books_en": ["books_en/validation.txt.gz"],
        "sample_text": ["sample_text/sample_text.txt"],
    }[corpus]
    for file in files:
        with (gzip.open if file.endswith(".gz") else open)(data_dir / file, "rt", encoding="utf-8") as stream:
            yield from stream


def assert_equal(ours, stock, texts, pairs=None):
    options = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
    mine, theirs = ours(texts, pairs, **options), stock(texts, pairs, **options)
    assert mine.keys() == theirs.keys()
    for name in theirs:
        assert mine[name] == theirs[name], name


@pytest.mark.parametrize("corpus", ["wiki_en", "books_en", "conll2003", "sample_text"])
def test_equal_to_bert_tokenizer_on_real_text(tokenizers, data_dir, corpus):
    lines = list(lines_of(data_dir, corpus))
    assert len(lines) > 30
    assert_equal(*tokenizers, lines)


def test_equal_to_bert_tokenizer_on_pairs_and_odd_text(tokenizers, data_dir):
    ours, stock = tokenizers
    lines = [*lines_of(data_dir, "sample_text"), *CASES]
    assert_equal(ours, stock, lines, lines[::-1])
    options = {"truncation": True, "max_length": 24, "stride": 4, "return_overflowing_tokens": True}
    options |= {"padding": "max_length", "return_tensors": "pt"}
    mine, theirs = ours(lines, lines[::-1], **options), stock(lines, lines[::-1], **options)
    for name in theirs:
        assert (mine[name] == theirs[name]).all(), name
    for ids in mine["input_ids"]:
        assert ours.decode(ids) == stock.decode(ids)
        assert ours.decode(ids, skip_special_tokens=True) == stock.decode(ids, skip_special_tokens=True)


def test_opens_from_every_kind_of_folder_and_round_trips(tokenizers, tmp_path, data_dir):
    ours, stock = tokenizers
    lines = [*lines_of(data_dir, "sample_text"), *CASES]
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


def test_a_vocabulary_without_special_tokens_is_refused():
    with pytest.raises(ValueError, match=r"The vocabulary of 4 word pieces lacks \[SEP\], \[MASK\]; it must hold"):
        snugbert.SnugBertTokenizer({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "a": 3})


def test_a_replaced_special_token_round_trips(tmp_path):
    pieces = {piece: index for index, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])}
    for tokenizer_class in (snugbert.SnugBertTokenizer, BertTokenizer):
        tokenizer = tokenizer_class(pieces)
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
        tokenizer.save_pretrained(tmp_path / tokenizer_class.__name__)
        again = tokenizer_class.from_pretrained(tmp_path / tokenizer_class.__name__)
        assert (again.mask_token, again("a <mask>")["input_ids"]) == ("<mask>", [2, 5, 7, 3])
        other = tokenizer_class.from_pretrained(tmp_path / tokenizer_class.__name__, cls_token="b")
        assert other("a")["input_ids"] == [6, 5, 3]


def test_a_vocabulary_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n[UNK]\ncaf\xe9\n")
    with pytest.raises(ValueError, match=r"vocab.txt, line 3: not UTF-8"):
        snugbert.SnugBertTokenizer(tmp_path / "vocab.txt")
    with pytest.raises(FileNotFoundError, match=r"nowhere.txt"):
        snugbert.SnugBertTokenizer("nowhere.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"There is no tokenizer.json or vocab.txt in .*empty"):
        snugbert.SnugBertTokenizer.from_pretrained(tmp_path / "empty")
