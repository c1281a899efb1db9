"""Exports a model: converts it, writes it with the engine's converter, runs it, and writes the card.

The original and the export are compared on texts of all lengths. Shapes: B texts of at most L tokens.
"""

import tempfile
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from snugbert.cli.model_arguments import HubArguments
from snugbert.data.text_lines import read_text_lines
from snugbert.errors import InputError
from snugbert.export.export_arguments import ENGINES, ExportArguments
from snugbert.families.comparing import FLOAT32_TOLERANCE, Batch, find_difference, run_in_torch
from snugbert.families.conversion import check_new_model, convert_model, put_in_place
from snugbert.families.loading import is_regression, max_tokens
from snugbert.families.reading import CLASSES, Checkpoint, build_model, fetch_checkpoint, read_checkpoint
from snugbert.families.sentence_transformers_files import (
    find_model_folder,
    has_pooling,
    is_cross_encoder,
    read_modules,
)
from snugbert.families.stock_models import choose_family, keep_encoder
from snugbert.files import explaining_failed_writes, read_json, write_json
from snugbert.reports.exported_card import Export, Wrapper, write_card

CALIBRATION_TEXTS = 300  # as in NNCF's default `subset_size`
LONGEST_CALIBRATION_TEXT = 256  # tokens; calibration keeps activations in memory
LONGEST_TEXT = 512  # tokens, for models without a limit, such as DeBERTa


def run_export(args: ExportArguments, hub_args: HubArguments) -> None:
    """Exports a model, and prints a summary. This is `snugbert export`."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    done = _export(args, hub_args.hub)
    print(f"Exported {args.input} to {args.output} for {done.engine}")
    print(f"Weights: {done.dtype}, {done.size / 1e6:,.1f} MB")
    for note in done.notes:
        print(f"Note: {note}")
    print(f"Check: outputs differ by at most {done.difference:.1e} on {done.num_texts:,} texts")


def export_model(
    source: str | Path,
    output_dir: str | Path,
    to: str,
    *,
    dtype: str | torch.dtype = "float32",
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    **options: Any,
) -> Export:
    """Writes a model for an engine, and compares it with the original.

    The folder contains config.json and tokenizer of the equivalent stock model, the files of sentence-transformers if
    the source has them, and the engine's files.

    Args:
        source: a checkpoint of the BERT family: a folder or a Hub name, see [`read_checkpoint`].
        output_dir: the folder to write. Other files in it are kept.
        to: "onnx", "openvino" or "bert".
        dtype: dtype of the weights: "float32", "float16" (or torch's dtypes), or "int8".
        revision, token, cache_dir: for a model on the Hub, as in `from_pretrained`.
        options: other arguments of `snugbert export`, such as `calibration_file`, see [`ExportArguments`].

    Raises:
        InputError: the engine cannot run the model, a file cannot be used, or outputs are not finite or differ by too
            much. Nothing is written.
    """
    name: Any = str(dtype).removeprefix("torch.")
    args = ExportArguments(input=str(source), output=str(output_dir), to=to, dtype=name, **options)
    return _export(args, {"revision": revision, "token": token, "cache_dir": cache_dir})


def _export(args: ExportArguments, hub: dict[str, Any]) -> Export:
    engine = import_module(ENGINES[args.to])  # a missing package is reported before a download
    source, output_dir = fetch_checkpoint(args.input, **hub), Path(args.output)
    check_new_model(source, output_dir, args.overwrite_output_dir)
    checkpoint = read_checkpoint(find_model_folder(source), encoder_only=has_pooling(source))
    if checkpoint.head == "ForReplacedTokenDetection" and args.to == "bert":
        checkpoint = keep_encoder(checkpoint)
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    temporary = tempfile.TemporaryDirectory(prefix=f".{output_dir.name}.", dir=output_dir.parent)
    with explaining_failed_writes(output_dir, "run the same command again"), temporary:
        written = Path(temporary.name) / "export"
        model, done = _write_export(args, engine, source, checkpoint, written)
        put_in_place(written, output_dir)
        wrapper: Wrapper | None = None  # the class of sentence-transformers that opens the folder
        if is_cross_encoder(source):
            wrapper = "CrossEncoder"
        elif read_modules(source) and checkpoint.head == "Model":
            wrapper = "SentenceTransformer"
        write_card(output_dir, source, args.input, model, args.to, done, is_regression(model.config), wrapper)
    return done


def _write_export(
    args: ExportArguments, engine: ModuleType, source: Path, checkpoint: Checkpoint, written: Path
) -> tuple[PreTrainedModel, Export]:
    """Writes an export to the folder `written`, and runs the exported model. Returns the original and a summary."""
    to, dtype = args.to, args.dtype
    family = "bert" if to == "bert" else choose_family(checkpoint)
    stock_dtype = torch.float16 if to == "bert" and dtype == "float16" else torch.float32
    converted = convert_model(source, written, family, dtype=stock_dtype)
    if converted.tokenizer is None:
        raise InputError(f"{source}: no tokenizer. Add the tokenizer, which the check of the outputs needs.")
    model = _load_model(checkpoint, keep_pooler=not read_modules(source))
    tokenizer, names = _load_tokenizer(written, has_segments=checkpoint.config.type_vocab_size > 1)
    limit = max_tokens(model, tokenizer)
    limit = LONGEST_TEXT if limit > 10**6 else limit
    batches = partial(make_batches, tokenizer=tokenizer, head=checkpoint.head, names=names)
    calibration: list[Batch] = []
    if args.calibration_file:
        texts = read_text_file(Path(args.calibration_file), CALIBRATION_TEXTS)
        calibration = batches(texts, max_length=min(limit, LONGEST_CALIBRATION_TEXT), size=1)
    engine.write(model, names, written, dtype, calibration)
    if to != "bert":
        for file in written.glob("model*.safetensors*"):
            file.unlink()
    _complete_config(written, model)

    texts = make_texts(tokenizer, limit)
    if args.text_file:
        texts += read_text_file(Path(args.text_file))
    model.set_attn_implementation("sdpa")  # the attention that users run
    original, run = run_in_torch(model), engine.load(written)
    outputs = ((batch, original(batch), run(batch)) for batch in batches(texts, max_length=limit))
    difference, relative = find_difference(outputs, checkpoint.head)
    if not difference < float("inf") or (dtype == "float32" and relative > FLOAT32_TOLERANCE):
        raise InputError(
            f"{source}: in {engine.describe()}, the outputs differ by {difference:.1e}, and relative to the "
            f"largest value by {relative:.1e}. The limit is {FLOAT32_TOLERANCE:.0e}. Nothing was written."
        )
    return model, Export(
        engine=engine.describe(),
        model_class=converted.model_class,
        dtype=dtype,
        calibrated=bool(calibration),
        size=sum(file.stat().st_size for file in written.glob("model*.safetensors" if to == "bert" else f"{to}/*")),
        difference=difference,
        num_texts=len(texts),
        notes=converted.notes if to == "bert" else [],  # these notes are about stock BERT
    )


def _load_model(checkpoint: Checkpoint, keep_pooler: bool) -> PreTrainedModel:
    """Returns the SnugBERT model. An embedding model has its own pooling, and does not need a pooler."""
    head = checkpoint.head
    config, weights, options = checkpoint.config, checkpoint.weights, checkpoint.options("snugbert")
    if head == "Model" and not keep_pooler:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("bert.pooler.")}
        options = {"add_pooling_layer": False}
    config._attn_implementation = "eager"  # the graph needs it
    return build_model(CLASSES["snugbert"][head], config, weights, torch.float32, options).eval()


def _load_tokenizer(folder: Path, has_segments: bool) -> tuple[PreTrainedTokenizerBase, list[str]]:
    """Returns the tokenizer of the export and the inputs of the model.

    The saved tokenizer returns these inputs only. DeBERTa-v3 has no segments, but its tokenizer returns them.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    names = [name for name in tokenizer.model_input_names if name != "token_type_ids" or has_segments]
    if names != tokenizer.model_input_names:
        tokenizer.model_input_names = names
        file = folder / "tokenizer_config.json"
        write_json(file, read_json(file) | {"model_input_names": names})
    return tokenizer, names


# --- texts ------------------------------------------------------------------------------------------------------

# Several languages and scripts, numbers, code and emoji. Every vocabulary has some of these words and lacks others.
PASSAGE = """
The kettle was still warm when Nora came home, so she made tea and read the letter again. It had taken nine days to
reach her. "We open on the 3rd," her brother wrote, "and I have not slept since." Could she bring the blue chairs?
Bread costs $4.75 in the shop on Mill Lane, but only 3.90 on Saturdays after 5 p.m.; most people wait.
The committee's report (pp. 112-140) found that 62.5 % of the bridges built before 1975 need repairs.
Der Zug nach Köln fährt um 7:42 Uhr ab, falls es nicht schneit. Où est passée la clé du grenier ?
El año pasado llovió más que nunca; los niños jugaban en la plaza. Мы встретились возле старого моста весной.
今日は朝から雨が降っています。北京的冬天很冷。 오늘은 시장에 갔다. القطار يصل في المساء. हम कल नदी के पास मिले।
def area(radius): return 3.14159 * radius ** 2  # see https://example.org/geometry?unit=cm
An enzyme called acetylcholinesterase breaks the signal down within a millisecond. Great news 🎉 the puppies are fine!
She did not like the film at first, yet by the end she was crying and laughing, and so was everyone around her.
"""
BATCH_SIZE = 32
READ_ALONE = ("Model", "ForMaskedLM", "ForTokenClassification", "ForReplacedTokenDetection")  # heads without pairs
SHORTEST = 12  # texts have every length up to this many tokens
GROWTH = 1.25  # each longer length is about this many times the previous length


def make_texts(tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[str]:
    """Cuts the passage into texts of 1 token up to more than `max_length` tokens, in an order that mixes lengths."""
    offsets = tokenizer(PASSAGE, add_special_tokens=False, return_offsets_mapping=True, verbose=False)[
        "offset_mapping"
    ]
    ends = [end for _, end in offsets]
    lengths = list(range(1, SHORTEST + 1))
    while lengths[-1] < max_length:
        lengths.append(int(lengths[-1] * GROWTH))
    texts = []
    for index, length in enumerate([*lengths, *lengths]):
        start = (37 * index) % len(offsets)  # starts at a different word each time
        repeated = PASSAGE[offsets[start][0] :] + PASSAGE * (length // len(offsets) + 1)
        rounds, last = divmod(start + length - 1, len(ends))
        texts.append(repeated[: rounds * len(PASSAGE) + ends[last] - offsets[start][0]].strip())
    return texts[::2] + texts[1::2]


def read_text_file(file: Path, limit: int | None = None) -> list[str]:
    """Reads at most `limit` lines of a text file that are not empty, also from .gz and .zst files."""
    lines = map(str.strip, read_text_lines(file))
    texts = list(islice(filter(None, lines), limit))
    if not texts:
        raise InputError(f"{file}: no text. Expected a text per line.")
    return texts


def make_batches(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    head: str,
    names: Sequence[str],
    max_length: int,
    size: int = BATCH_SIZE,
) -> list[Batch]:
    """Returns padded batches of the texts, in order.

    If the head reads pairs, every second text is paired with the next text. For question answering, every text is.
    For multiple choice, the next three texts are the choices. `names` are the inputs to include.
    """
    options: dict[str, Any] = {"truncation": "longest_first", "max_length": max_length}
    features: list[list[Any]] = []  # for each text, one encoding, or one per choice
    for index, text in enumerate(texts):
        partners: list[str | None] = [texts[(index + step) % len(texts)] for step in (1, 2, 3)]
        if head != "ForMultipleChoice":
            is_pair = head == "ForQuestionAnswering" or (head not in READ_ALONE and index % 2)
            partners = partners[:1] if is_pair else [None]
        features.append([tokenizer(text, partner, **options) for partner in partners])
    batches = []
    for start in range(0, len(features), size):
        chosen = features[start : start + size]
        rows = [{name: encoding[name] for name in names} for encodings in chosen for encoding in encodings]
        padded = tokenizer.pad(rows, padding_side="right", return_tensors="np")
        shape = (len(chosen), 3, -1) if head == "ForMultipleChoice" else (len(chosen), -1)
        batches.append({name: np.asarray(padded[name], np.int64).reshape(shape) for name in names})
    return batches


# --- files ------------------------------------------------------------------------------------------------------


def _complete_config(folder: Path, model: PreTrainedModel) -> None:
    """Writes the labels of a classifier. transformers 5 omits default labels, but servers need them."""
    config: Any = model.config
    if config.architectures and "Classification" in config.architectures[0]:
        labels = {"id2label": {str(index): label for index, label in config.id2label.items()}}
        write_json(folder / "config.json", read_json(folder / "config.json") | labels | {"label2id": config.label2id})
