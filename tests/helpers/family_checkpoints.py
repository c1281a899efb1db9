"""Tiny random checkpoints of the BERT family, with the files of their originals on the Hub."""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
import transformers
from parity import perturb
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram, WordPiece

from snugbert.families.reading import STOCK_NAMES

SIZE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
# The table of positions of the RoBERTa family has two more rows: positions start after the padding id.
FIELDS = {
    "bert": {"max_position_embeddings": 512},
    "roberta": {"max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5},
    "electra": {"max_position_embeddings": 512, "embedding_size": 16},
    "deberta-v2": {
        "max_position_embeddings": 512,
        "position_buckets": 256,
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["c2p", "p2c"],
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "conv_kernel_size": 0,
    },
}
FIELDS["xlm-roberta"] = FIELDS["roberta"]
FIELDS["camembert"] = FIELDS["roberta"] | {"bos_token_id": 5, "eos_token_id": 6}

WORDS = """a about
    after all also an and are as at be been but by can city company did do film first for from good has have
    he her his how i if in into is it its just like many more most movie new no not of on one or other out over people
    president said she so some state than that the their them there they this time to two up was we were what when
    which who will with world would year you""".split()
CHARACTERS = [chr(code) for code in range(33, 127)]
# Special tokens. fairseq put its own four tokens, which CamemBERT does not use, before SentencePiece's.
XLM_ROBERTA = ["<s>", "<pad>", "</s>", "<unk>"]
CAMEMBERT = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"]


def write_checkpoint(
    folder: Path, family: str, head: str = "ForMaskedLM", tokenizer_class: str | None = None, **fields
) -> Path:
    """Writes a model with random weights and its tokenizer.

    Args:
        folder: the folder to write.
        family: a model type, such as `"roberta"`.
        head: the end of the class name in transformers, for example `"ForPreTraining"` for ELECTRA's discriminator.
        tokenizer_class: `"BertTokenizer"` for a WordPiece tokenizer, whatever the family, as in KLUE's RoBERTa.
        fields: changes to the configuration.
    """
    write_tokenizer(folder, family if tokenizer_class is None else "electra")
    if tokenizer_class is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class}))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model_class = getattr(transformers, f"{STOCK_NAMES[family]}{head}")
    torch.manual_seed(0)
    model = model_class(model_class.config_class(vocab_size=len(tokenizer), **SIZE | FIELDS[family] | fields))
    perturb(model)
    model.save_pretrained(folder)
    return folder


def write_tokenizer(folder: Path, family: str, words: Iterable[str] = WORDS) -> Path:
    """Writes the tokenizer files of a family. The vocabulary has `words` and all ASCII characters."""
    folder.mkdir(parents=True, exist_ok=True)
    make = {
        "roberta": _make_byte_level,
        "xlm-roberta": lambda words: make_unigram(XLM_ROBERTA, _score(words)),
        "camembert": lambda words: make_unigram(CAMEMBERT, _score(words)),
        "bert": _make_wordpiece,
        "electra": _make_wordpiece,
        "deberta-v2": _make_deberta,
    }[family]
    tokenizer = make(list(words))
    tokenizer.save(str(folder / "tokenizer.json"))
    if family in ("bert", "roberta", "electra"):
        tokenizer.model.save(str(folder))  # vocab.json and merges.txt, or vocab.txt
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 512}))
    return folder


def _make_byte_level(words: list[str]) -> Tokenizer:
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merged = [(f"Ġ{word}"[:end], word[end - 1]) for word in words for end in range(1, len(word) + 1)]
    merges = list(dict.fromkeys(merged))  # from left to right
    tokens += [left + right for left, right in merges] + ["<mask>"]
    tokenizer = Tokenizer(BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return _add_special_tokens(tokenizer, ["<s>", "<pad>", "</s>", "<unk>"], "<mask>")


def _score(words: list[str]) -> list[tuple[str, float]]:
    """Scores words higher than the characters that they consist of."""
    return [("▁", -4.0), *((f"▁{word}", -5.0) for word in words), *((character, -6.0) for character in CHARACTERS)]


def make_unigram(special: list[str], pieces: list[tuple[str, float]], charsmap: bytes | None = None) -> Tokenizer:
    """Makes a SentencePiece tokenizer in the form of the tokenizer.json files of XLM-R and CamemBERT on the Hub.

    Args:
        special: tokens before the pieces. They include `<s>`, `</s>`, `<pad>` and `<unk>`.
        pieces: pieces of the SentencePiece model and their scores.
        charsmap: its normalization table. None: no normalization.
    """
    vocabulary = [*((token, 0.0) for token in special), *pieces, ("<mask>", 0.0)]
    tokenizer = Tokenizer(Unigram(vocabulary, unk_id=special.index("<unk>")))
    if charsmap is not None:
        tokenizer.normalizer = normalizers.Precompiled(charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(token, special.index(token)) for token in ("<s>", "</s>")],
    )
    return _add_special_tokens(tokenizer, special, "<mask>")


def _make_deberta(words: list[str]) -> Tokenizer:
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    vocabulary = [*((token, 0.0) for token in special), *_score(words), ("[MASK]", 0.0)]
    tokenizer = Tokenizer(Unigram(vocabulary, unk_id=special.index("[UNK]")))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip(left=False)])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return _add_special_tokens(tokenizer, [*special, "[MASK]"])


def _make_wordpiece(words: list[str]) -> Tokenizer:
    characters = sorted({character.lower() for character in CHARACTERS})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *(f"##{one}" for one in characters)]
    tokens += [word for word in words if word not in characters]
    tokenizer = Tokenizer(WordPiece({token: index for index, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return _add_special_tokens(tokenizer, tokens[:5])


def _add_special_tokens(tokenizer: Tokenizer, tokens: list[str], lstrip: str | None = None) -> Tokenizer:
    """Marks tokens as special. `lstrip` also takes the space before it, as RoBERTa's <mask>."""
    tokenizer.add_special_tokens(tokens)
    if lstrip is not None:
        tokenizer.add_special_tokens([AddedToken(lstrip, lstrip=True, normalized=False, special=True)])
    return tokenizer
