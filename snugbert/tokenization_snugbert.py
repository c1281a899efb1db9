"""BERT's WordPiece tokenizer, based on the tokenizers library."""

from .versions_snugbert import WORKING_VERSIONS  # noqa: F401 (imported first, to report unsupported versions)

# isort: split
import codecs
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from transformers import TokenizersBackend

# Longest sequence of all released BERT models, in tokens (Devlin et al., 2018, appendix A.2).
MODEL_MAX_LENGTH = 512
# Their ids are 0 to 4 in our vocabularies, and 0 and 100 to 103 in Google's. Tokenizers look them up by name.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class SnugBertTokenizer(TokenizersBackend):
    r"""WordPiece tokenizer with the same ids and offsets as `BertTokenizer`.

    This fast tokenizer loads folders with a `tokenizer.json` or a `vocab.txt`. It returns offsets and `word_ids`, and
    tokenizes batches in parallel.

    `train_new_from_iterator` uses the trainer of the tokenizers library, which breaks ties differently in each process
    (huggingface/tokenizers#1794). `snugbert vocabulary` is deterministic.

    Args:
        vocab (`dict[str, int]`, `str` or `Path`, *optional*): Tokens and their ids, or the path of a `vocab.txt`.
            None: the five special tokens only.
        do_lower_case (`bool`, *optional*, defaults to `True`): Whether to lowercase text.
        unk_token (`str`, *optional*, defaults to `"[UNK]"`): Replaces words outside the vocabulary.
        sep_token (`str`, *optional*, defaults to `"[SEP]"`): Ends each segment.
        pad_token (`str`, *optional*, defaults to `"[PAD]"`): Pads short sequences in a batch.
        cls_token (`str`, *optional*, defaults to `"[CLS]"`): Starts each sequence.
        mask_token (`str`, *optional*, defaults to `"[MASK]"`): Replaces tokens to predict.
        tokenize_chinese_chars (`bool`, *optional*, defaults to `True`): Whether to make each Chinese character a word.
        strip_accents (`bool`, *optional*): Whether to remove accents. None: as `do_lower_case`.

    Special tokens with other names are added to the vocabulary if it lacks them, except `unk_token`.

    Raises:
        ValueError: the vocabulary is missing, lacks a special token, contains a token twice or is not UTF-8.
        FileNotFoundError: the `vocab.txt` does not exist.
    """

    vocab_files_names = {"vocab_file": "vocab.txt", "tokenizer_file": "tokenizer.json"}
    model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    model: Any = WordPiece

    # super().__init__ stores every argument. Without remote code, transformers rebuilds the normalizer and the
    # pre-tokenizer from these arguments, not from tokenizer.json.
    def __init__(
        self,
        vocab: str | Path | dict[str, int] | None = None,
        do_lower_case: bool = True,
        unk_token: str = "[UNK]",
        sep_token: str = "[SEP]",
        pad_token: str = "[PAD]",
        cls_token: str = "[CLS]",
        mask_token: str = "[MASK]",
        tokenize_chinese_chars: bool = True,
        strip_accents: bool | None = None,
        **kwargs: Any,
    ):
        kwargs.pop("auto_map", None)  # would be saved, and may refer to another repository's code
        special_tokens = [str(token) for token in (pad_token, unk_token, cls_token, sep_token, mask_token)]
        trained = kwargs.get("tokenizer_object")  # from `train_new_from_iterator`
        if vocab is None and trained is not None:
            vocab = dict(trained.get_vocab())
        elif vocab is None:
            if kwargs.get("name_or_path"):
                raise ValueError(f"{kwargs['name_or_path']}: no tokenizer.json or vocab.txt.")
            vocab = {token: index for index, token in enumerate(special_tokens)}
        elif not isinstance(vocab, dict):
            vocab = _read_vocabulary(Path(vocab))
        # Special tokens may also be added tokens, with ids after the vocabulary. As in stock BERT, special tokens
        # with custom names are added. Only the unknown token must be in the vocabulary, for WordPiece.
        known = {*vocab, *map(str, (kwargs.get("added_tokens_decoder") or {}).values())}
        required = {*SPECIAL_TOKENS, str(unk_token), str(None)}  # None: the caller removed a token
        missing = [token for token in special_tokens if token in required - known]
        if missing:
            raise ValueError(
                f"The vocabulary of {len(vocab)} tokens lacks {', '.join(missing)}. Every vocabulary must contain "
                f"{', '.join(SPECIAL_TOKENS)}."
            )
        self.do_lower_case = do_lower_case
        self.tokenize_chinese_chars = tokenize_chinese_chars
        self.strip_accents = strip_accents
        self._tokenizer = Tokenizer(WordPiece(vocab, unk_token=str(unk_token)))
        self._tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=tokenize_chinese_chars,
            strip_accents=strip_accents,
            lowercase=do_lower_case,
        )
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._tokenizer.decoder = decoders.WordPiece(prefix="##")
        kwargs.setdefault("model_max_length", MODEL_MAX_LENGTH)
        super().__init__(
            do_lower_case=do_lower_case,
            unk_token=unk_token,
            sep_token=sep_token,
            pad_token=pad_token,
            cls_token=cls_token,
            mask_token=mask_token,
            tokenize_chinese_chars=tokenize_chinese_chars,
            strip_accents=strip_accents,
            **kwargs,
        )
        # Set after super().__init__, which loads the post-processor of tokenizer.json, and so ignores the caller's
        # special tokens.
        self._tokenizer.post_processor = processors.BertProcessing(
            (str(sep_token), self.sep_token_id), (str(cls_token), self.cls_token_id)
        )


def _read_vocabulary(file: Path) -> dict[str, int]:
    """Reads a `vocab.txt` with one token per line. A token's id is its line number, starting at 0.

    As in `BertTokenizer`, spaces after a token are dropped, and an empty line is a token, which no text contains.
    """
    vocabulary: dict[str, int] = {}
    lines = file.read_bytes().removeprefix(codecs.BOM_UTF8).removesuffix(b"\n").split(b"\n")
    for index, line in enumerate(lines):
        try:
            token = line.decode("utf-8").rstrip()
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}, line {index + 1}: not UTF-8 ({error.reason}).") from error
        if token in vocabulary:  # otherwise an id has no token, and an added token takes another token's id
            raise ValueError(
                f"{file}, line {index + 1}: {repr(token) if token else 'an empty line'} is already on line "
                f"{vocabulary[token] + 1}. Replace this line with a new word. Removing a line would change later ids."
            )
        vocabulary[token] = index
    return vocabulary


__all__ = ["SnugBertTokenizer"]
