"""The WordPiece tokenizer of BERT, on the tokenizers library."""

from .versions_snugbert import WORKING_VERSIONS  # noqa: F401, checked before what other versions lack

# isort: split
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from transformers import TokenizersBackend

# Longest sequence of every released BERT, in tokens (Devlin et al., 2018, appendix A.2).
MODEL_MAX_LENGTH = 512


class SnugBertTokenizer(TokenizersBackend):
    r"""WordPiece tokenizer, equal to `BertTokenizer` id for id and offset for offset.

    It opens a folder with `tokenizer.json` or `vocab.txt`, and is a fast tokenizer: offsets, `word_ids`, batches on
    all cores.

    `train_new_from_iterator` trains as the tokenizers library does, which breaks ties otherwise in every process
    (huggingface/tokenizers#1794); `snugbert vocabulary` gives the same pieces every time.

    Args:
        vocab (`dict[str, int]`, `str` or `Path`, *optional*): Word pieces and their ids, or the path of a
            `vocab.txt`; only the five special tokens if None.
        do_lower_case (`bool`, *optional*, defaults to `True`): Whether to lower-case the text.
        unk_token (`str`, *optional*, defaults to `"[UNK]"`): Stands for a word that no pieces make up.
        sep_token (`str`, *optional*, defaults to `"[SEP]"`): Ends every segment.
        pad_token (`str`, *optional*, defaults to `"[PAD]"`): Fills short sequences of a batch.
        cls_token (`str`, *optional*, defaults to `"[CLS]"`): Begins every sequence.
        mask_token (`str`, *optional*, defaults to `"[MASK]"`): Stands for a token to predict.
        tokenize_chinese_chars (`bool`, *optional*, defaults to `True`): Whether each Chinese character is a word.
        strip_accents (`bool`, *optional*): Whether to remove accents; as `do_lower_case` if None.

    Raises:
        ValueError: no vocabulary in a folder, one without the five special tokens, or one that is not UTF-8.
        FileNotFoundError: the `vocab.txt` does not exist.
    """

    vocab_files_names = {"vocab_file": "vocab.txt", "tokenizer_file": "tokenizer.json"}
    model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    model: Any = WordPiece

    # Every argument is passed on to super().__init__, which stores it: transformers rebuilds normalizer and
    # pre-tokenizer from these arguments, not from tokenizer.json, where no remote code runs.
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
        kwargs.pop("auto_map", None)  # may name another repository's code, and would be saved
        special_tokens = [str(token) for token in (pad_token, unk_token, cls_token, sep_token, mask_token)]
        if vocab is None:
            if kwargs.get("name_or_path"):
                raise ValueError(f"There is no tokenizer.json or vocab.txt in {kwargs['name_or_path']}.")
            vocab = {token: index for index, token in enumerate(special_tokens)}
        elif not isinstance(vocab, dict):
            vocab = _read_vocabulary(Path(vocab))
        # A special token may have been added behind the vocabulary.
        added = kwargs.get("added_tokens_decoder") or {}
        ids = {**vocab, **{str(token): index for index, token in added.items()}}
        missing = [token for token in special_tokens if token not in ids]
        if missing:
            raise ValueError(
                f"The vocabulary of {len(vocab)} word pieces lacks {', '.join(missing)}; "
                f"it must hold {', '.join(special_tokens)}."
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
        # Behind super().__init__, which takes that of tokenizer.json, whatever special tokens the caller wants.
        self._tokenizer.post_processor = processors.BertProcessing(
            (str(sep_token), ids[str(sep_token)]), (str(cls_token), ids[str(cls_token)])
        )


def _read_vocabulary(file: Path) -> dict[str, int]:
    """Word pieces of a `vocab.txt`, one a line, and their ids, the lines' numbers from 0."""
    pieces = {}
    for index, line in enumerate(file.read_bytes().split(b"\n")):
        try:
            pieces[line.decode("utf-8").rstrip("\r")] = index
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}, line {index + 1}: not UTF-8 ({error.reason}).") from error
    pieces.pop("", None)  # behind the last line's end
    return pieces


__all__ = ["SnugBertTokenizer"]
