"""Converted tokenizers of the BERT family give the ids of SentencePiece and of stock tokenizers."""

import io
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import sentencepiece
import transformers
from babel import Locale
from family_checkpoints import write_tokenizer

from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.errors import InputError
from snugbert.families.conversion import _convert_tokenizer
from snugbert.families.loading import load_tokenizer
from snugbert.families.reading import Checkpoint
from snugbert.families_snugbert import FAMILY_TYPES

LOCALES = {
    "Latin": ("en", "fr", "de", "pl", "vi", "tr"),
    "Cyrillic": ("ru", "uk", "bg", "sr"),
    "Greek and Arabic": ("el", "ar", "fa", "ur"),
    "Devanagari": ("hi", "mr", "ne"),
    "Han, Kana and Hangul": ("ja", "zh", "zh_Hant", "ko"),
}
TEXTS_PER_SCRIPT = 500
ODD_TEXTS = [
    "",
    " ",
    "  two  spaces ",
    "ﬁne ½ ① Ｆｕｌｌ ｶ ㍿ ℃ Å ﷺ 𝔘𝔫𝔦 Straße İ",  # noqa: RUF001
    "tab\there\nnew\r\nline\x0bvt\x0cff\u2028ls",
    "nbsp\u00a0x\u3000y\u2009z\u200bw\ufeffv\u00adu",
    "emoji 😀 👩‍👩‍👧 🇩🇪 ❤️",
    "a\x00b\x01c\x7fd\x1fe\x1c\x9f",
    "join\u200der\u200cs क्\u200dष क\u093c \u0958",
    "e\u0301 A\u030a",
    "▁under a▁b",
    "x" * 200,
    "中文　日本語テキスト שלום ศำ",
    "\ufffd \ud7ff x\u200f\u200ey don't we'll it's  'S 12345 ١٢٣",
]
SPECIAL_TEXTS = ["a <mask> b", "a<mask>b", " <mask> , <mask>", "<s> in </s> <pad> <unk> ", "[MASK] [SEP]"]


@cache
def read_texts() -> list[str]:
    """Makes 2,500 texts from names of languages, territories and currencies in five groups of scripts."""
    rng = random.Random(0)
    texts = []
    for codes in LOCALES.values():
        locales = [Locale.parse(code) for code in codes]
        tables = [table for one in locales for table in (one.languages, one.territories, one.currencies)]
        names = [table[key] for table in tables for key in sorted(table)]
        separators = (" ", ", ", " — ", "/", " (", "。")
        for _ in range(TEXTS_PER_SCRIPT):
            texts.append(rng.choice(separators).join(rng.choices(names, k=rng.randint(1, 8))))
    return texts


@cache
def train_sentencepiece(**options) -> bytes:
    model = io.BytesIO()
    options |= {"vocab_size": 1500, "num_threads": 1, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(read_texts()), model_writer=model, **options)
    return model.getvalue()


def write_sentencepiece(folder: Path, family: str) -> Callable[[str], list[int]]:
    """Writes a tokenizer of XLM-R or CamemBERT, and returns the function that computes its ids by SentencePiece.

    fairseq, which trained both models, counts SentencePiece's ids from 1 (XLM-R) or 4 (CamemBERT). XLM-R uses
    fairseq's own <s>, <pad>, </s> and <unk>, CamemBERT only its <pad> and <unk>.
    """
    model = sentencepiece.SentencePieceProcessor(model_proto=train_sentencepiece())
    (folder / "sentencepiece.bpe.model").write_bytes(train_sentencepiece())
    if family == "xlm-roberta":
        return lambda text: [{0: 3, 1: 0, 2: 2}.get(index, index + 1) for index in model.encode(text)]
    return lambda text: [{0: 3}.get(index, index + 4) for index in model.encode(text)]


def write_deberta(folder: Path, family: str) -> Callable[[str], list[int]]:
    """Writes a tokenizer of DeBERTa-v3. SentencePiece does not normalize, because transformers ignores how."""
    pieces = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    (folder / "spm.model").write_bytes(train_sentencepiece(normalization_rule_name="identity", **pieces, **ids))
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    return model.encode


WRITERS = {
    "xlm-roberta": write_sentencepiece,
    "camembert": write_sentencepiece,
    "deberta-v2": write_deberta,
}


def convert_tokenizer(source: Path, output: Path, kind: str, to: str) -> transformers.PreTrainedTokenizerBase:
    """Converts the tokenizer in `source`, and opens the result as users do."""
    output.mkdir()
    (output / "config.json").write_text(json.dumps({"model_type": to}))
    checkpoint = Checkpoint(source, kind, {"model_type": kind}, SnugBertConfig(), "Model", {})
    name = _convert_tokenizer(checkpoint, output, to, None, None)
    tokenizer = transformers.AutoTokenizer.from_pretrained(output)
    assert type(tokenizer).__name__ == name and (output / "tokenizer.json").exists()
    return tokenizer


def make_source(tmp_path: Path, family: str) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"model_type": family}))
    return source


@pytest.mark.slow
@pytest.mark.parametrize("family", WRITERS)
def test_ids_equal_the_published_algorithm_in_both_directions(family, tmp_path):
    source = make_source(tmp_path, family)
    compute_ids = WRITERS[family](source, family)
    ours = convert_tokenizer(source, tmp_path / "snug", family, "snugbert")
    # transformers replaces SentencePiece's normalization of DeBERTa by NFC, which changes odd texts only.
    texts = read_texts() + ([] if family == "deberta-v2" else ODD_TEXTS)
    encoded = ours.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    assert [encoding.ids for encoding in encoded] == [compute_ids(text) for text in texts]
    back = convert_tokenizer(tmp_path / "snug", tmp_path / "back", "snugbert", family)
    stock = transformers.AutoTokenizer.from_pretrained(source)
    assert type(back) is type(stock)
    assert stock.backend_tokenizer.to_str() == ours.backend_tokenizer.to_str() == back.backend_tokenizer.to_str()
    loaded = load_tokenizer(TokenizerArguments(tokenizer_name=str(source)))
    assert loaded.backend_tokenizer.to_str() == stock.backend_tokenizer.to_str()


@pytest.mark.parametrize("family", FAMILY_TYPES)
def test_added_and_special_tokens_lengths_and_offsets_are_kept(family, tmp_path):
    source = write_tokenizer(make_source(tmp_path, family), family)
    stock = transformers.AutoTokenizer.from_pretrained(source)
    stock.add_tokens(["snug"])
    stock.add_special_tokens({"extra_special_tokens": ["<e1>"]})
    stock.model_max_length = 514
    stock.save_pretrained(source)
    texts = [*ODD_TEXTS, *SPECIAL_TEXTS, "so snug, <e1> snugly"]
    options = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
    expected = stock(texts, texts[::-1], **options)
    assert stock.convert_tokens_to_ids("snug") in expected["input_ids"][-1]
    one_space = stock(f"a {stock.mask_token}", add_special_tokens=False)["input_ids"]
    assert one_space[1:] == [stock.mask_token_id]  # the mask includes the space before it
    for folder, kind, to in ((source, family, "snugbert"), (tmp_path / "snugbert", "snugbert", family)):
        tokenizer = convert_tokenizer(folder, tmp_path / to, kind, to)
        encoded = tokenizer(texts, texts[::-1], **options)
        assert {name: encoded[name] for name in encoded} == {name: expected[name] for name in expected}
        assert tokenizer.batch_decode(encoded["input_ids"]) == stock.batch_decode(expected["input_ids"])
        assert tokenizer.special_tokens_map == stock.special_tokens_map
        assert (tokenizer.model_max_length, len(tokenizer)) == (512, len(stock))


# Family, files -> words of the message.
REFUSED = [
    ("xlm-roberta", {}, r"source contains no tokenizer\."),
    ("roberta", {"vocab.json": "{}"}, r"source: merges\.txt is missing\. vocab\.json needs it\."),
    ("xlm-roberta", {"spiece.model": ""}, r"needs SentencePiece\. Run `pip install 'snugbert\[sentencepiece\]'`\."),
    ("roberta", {"bpe.codes": "", "vocab.txt": "a\n"}, r"bpe\.codes, as in BERTweet and PhoBERT, is not supported\."),
    # Without a declared class, transformers takes the model type's, which is empty if it reads other files.
    ("bert", {"vocab.json": "{}", "merges.txt": ""}, "source: the tokenizer is empty"),
]


@pytest.mark.parametrize(("family", "files", "message"), REFUSED)
def test_unusable_files_are_refused(family, files, message, tmp_path, monkeypatch):
    source = make_source(tmp_path, family)
    for name, text in files.items():
        (source / name).write_text(text)
    monkeypatch.setattr("snugbert.families.loading.is_sentencepiece_available", lambda: False)
    with pytest.raises(InputError, match=message):
        load_tokenizer(TokenizerArguments(tokenizer_name=str(source)))


def test_the_declared_class_reads_its_files(tmp_path):
    source = write_tokenizer(make_source(tmp_path, "bert"), "roberta")
    expected = transformers.PreTrainedTokenizerFast(tokenizer_file=str(source / "tokenizer.json"))(ODD_TEXTS)
    (source / "tokenizer.json").unlink()
    (source / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match=r"source: no tokenizer\.json or vocab"):
        convert_tokenizer(source, tmp_path / "converted", "bert", "snugbert")
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
    found = load_tokenizer(TokenizerArguments(tokenizer_name=str(source)))(ODD_TEXTS)
    assert found["input_ids"] == expected["input_ids"]
