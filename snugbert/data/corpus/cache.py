"""The cache of prepared text: one folder per text, tokenizer and settings.

The folder `teachers` contains the logits of teachers, see `trainers/finetuning/teacher.py`. Three folders are for
files in stores. `staged` contains copies of inputs, see `staging.py`. `outputs` contains outputs that are not uploaded
yet, see `remote_outputs.py`. `blocks` contains blocks of corpora, see `corpus_blocks.py`.

~/.cache/huggingface/snugbert/0123456789abcdef0123456789abcdef/part-00000-of-00001.arrow ...
"""

from collections.abc import Callable
from pathlib import Path

from huggingface_hub.constants import HF_HOME
from transformers import PreTrainedTokenizerBase

from snugbert.data.corpus.corpus import Corpus, open_corpus
from snugbert.data.corpus.preparation import keep_all, plan_parts, prepare_parts
from snugbert.data.data_arguments import Deduplication, TextArguments
from snugbert.data.documents import locate_file
from snugbert.data.tokenizing import hash_tokenizer, needs_words
from snugbert.files import hash_json

TEACHERS = "teachers"  # the folder of teachers' logits


def cache_folder(cache_dir: str | None) -> Path:
    """Returns the folder `snugbert` in `cache_dir`, by default in `HF_HOME`."""
    return Path(cache_dir or HF_HOME) / "snugbert"


def prepare_in_cache(
    text: TextArguments,
    tokenizer: PreTrainedTokenizerBase,
    language: str | None,
    cache_dir: str | None,
    num_workers: int | None = None,
    keeps: Callable[[int], bool] = keep_all,
    documents: str = "all",
    deduplicate: Deduplication | None = None,
    store_words: bool = False,
    show_progress: bool = True,
) -> tuple[Path, Corpus]:
    """Prepares a text in the cache, or reuses it from there if the text has not changed.

    Args:
        text: files or a dataset.
        tokenizer, language, num_workers, documents, show_progress: see [`prepare_parts`].
        cache_dir: the folder of the cache. Default: `HF_HOME`.
        keeps, deduplicate: see [`plan_parts`].
        store_words: see [`prepare_corpus`].

    Returns:
        The folder in the cache, and the corpus in it. The folder's name is a digest of the file names or dataset, the
        tokenizer and the settings.

    Raises:
        InputError: see [`plan_parts`] and [`prepare_parts`].
    """
    parts = plan_parts(text, keeps=keeps, deduplicate=deduplicate)
    dataset = [text.dataset_name, text.dataset_config_name, text.dataset_split]
    names = [locate_file(file) for part in parts for file in part.files]
    # Only values that differ from the default, so that texts from before these settings are found.
    changed: list[str] = [] if text.on_bad_text == "error" else [text.on_bad_text]
    changed += [] if deduplicate is None else [deduplicate]
    changed += ["words"] if store_words and needs_words(tokenizer) else []
    key = hash_json([dataset, names, text.text_column_name, hash_tokenizer(tokenizer), language, documents, *changed])
    folder = cache_folder(cache_dir) / key
    prepare_parts(
        folder, parts, tokenizer, language, documents, num_workers, True, show_progress, store_words=store_words
    )
    return folder, open_corpus(folder, tokenizer)
