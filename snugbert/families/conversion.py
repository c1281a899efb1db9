"""`snugbert convert`: converts checkpoints of the BERT family to SnugBERT, and back.

    snugbert convert pretrained pretrained-bert --to bert      # opens where only transformers is installed
    snugbert convert roberta-base snugbert-roberta --to snugbert

The output is written only if the new model and the source give the same outputs on an example batch, in float64.
Stock transformers runs the source, unless the source is a SnugBERT model.
"""

import functools
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, BertTokenizer
from transformers.utils import logging as transformers_logging

import snugbert
from snugbert.cli.model_arguments import ConversionArguments, HubArguments
from snugbert.errors import InputError, format_count, join_lines
from snugbert.families.comparing import FLOAT64_TOLERANCE, Batch, find_difference, run_in_torch
from snugbert.families.loading import VOCABULARY_FILES, check_vocabulary, check_words, is_uncased, write_vocab_txt
from snugbert.families.reading import CLASSES, Checkpoint, build_model, fetch_checkpoint, read_checkpoint
from snugbert.families.sentence_transformers_files import (
    SENTENCE_TRANSFORMERS_FILES,
    copy_files,
    find_model_folder,
    has_pooling,
    read_modules,
)
from snugbert.families.stock_models import express, extend_positions, keep_encoder
from snugbert.families_snugbert import ROBERTA_TYPES
from snugbert.files import check_new_results, explaining_failed_writes, read_json
from snugbert.tokenization_snugbert import SnugBertTokenizer

TOKENIZER_FILES = (
    *VOCABULARY_FILES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
)
# Folders that `snugbert export` writes. The output also replaces these folders, because servers prefer their models.
ENGINE_FOLDERS = ("onnx", "openvino")
# Model files, which the output replaces. config.json marks a folder as a model, so it is removed first and written
# last. The last line adds the code files of a SnugBERT folder.
REPLACED_FILES = (
    "config.json",
    *(f"model{part}.safetensors{index}" for part in ("", "-*-of-*") for index in ("", ".index.json")),
    *(f"pytorch_model{part}.bin{index}" for part in ("", "-*-of-*") for index in ("", ".index.json")),
    *TOKENIZER_FILES,
    *SENTENCE_TRANSFORMERS_FILES,
    *ENGINE_FOLDERS,
    *(file.name for file in Path(snugbert.__file__).parent.glob("*_snugbert.py")),
)
# Tokenizer classes equivalent to BertTokenizer, which is also the default.
WORDPIECE_TOKENIZERS = (
    "SnugBertTokenizer",
    *(f"{kind}Tokenizer{fast}" for kind in ("Bert", "DistilBert", "Electra") for fast in ("", "Fast")),
)


@dataclass
class Conversion:
    """Result of a conversion."""

    source: str  # kind of the source, see [`Checkpoint`]
    model_class: str
    parameters: int
    dtype: str
    size: int  # bytes of the weight files
    files: int
    tokenizer: str | None  # class of the tokenizer. None: the source has none
    difference: float  # largest difference between outputs of source and result, in float64
    notes: list[str]


def run_conversion(args: ConversionArguments, hub_args: HubArguments) -> None:
    """Converts a checkpoint, and prints a summary. This is `snugbert convert`."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    settings = dict(vars(args))
    done = convert_model(settings.pop("input"), settings.pop("output"), **settings, **hub_args.hub)
    print(f"Converted {args.input} ({done.source}) to {args.output} ({done.model_class})")
    size = f"{done.size / 1e6:,.1f} MB in {format_count(done.files, 'file')}"
    print(f"Weights: {done.parameters:,} parameters in {done.dtype}, {size}")
    print(f"Tokenizer: {done.tokenizer or 'none in the source'}")
    for note in done.notes:
        print(f"Note: {note}")
    print(f"Check: outputs before and after conversion differ by at most {done.difference:.1e} in float64")


def convert_model(
    source: str | Path,
    output_dir: str | Path,
    to: str,
    *,
    dtype: str | torch.dtype | None = None,
    max_position_embeddings: int | None = None,
    max_shard_size: str = "5GB",
    do_lower_case: bool | None = None,
    overwrite_output_dir: bool = False,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
) -> Conversion:
    """Converts a checkpoint to SnugBERT, or to a stock model of transformers.

    Args:
        source: a folder, a Hub name, or the prefix of TensorFlow files, see [`read_checkpoint`]. The files of
            sentence-transformers are copied: modules, pooling, normalization, prompts and a reranker's activation.
        output_dir: the folder to write. Other files in it are kept.
        to: one of `CONVERTED_TYPES`. A SnugBERT folder contains SnugBERT's code, and loads with
            `trust_remote_code=True`. The other types need transformers only.
        dtype: dtype of the weights: "float32", "float16" or "bfloat16". None: the widest dtype in the source.
        max_position_embeddings: maximum number of tokens of the new model, see [`extend_positions`]. The limit also
            applies to the tokenizer and sentence-transformers. None: as in the source.
        max_shard_size: largest size of a weight file, for example `"5GB"`.
        do_lower_case: whether the tokenizer lowercases text. None: as in the source. If the source has only a
            `vocab.txt`, text is lowercased if all tokens are lowercase.
        overwrite_output_dir: whether to replace a model in `output_dir`.
        revision, token, cache_dir: for a model on the Hub, as in `from_pretrained`.

    Raises:
        InputError: SnugBERT or the target does not support the model, `output_dir` cannot be written, or the outputs
            differ. Nothing is written.
    """
    name = dtype if isinstance(dtype, str) else None
    # The constructor checks the values.
    ConversionArguments(input=str(source), output=str(output_dir), to=to, dtype=name, max_shard_size=max_shard_size)
    source = fetch_checkpoint(str(source), revision=revision, token=token, cache_dir=cache_dir)
    output_dir = Path(output_dir)
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    check_new_model(source, output_dir, overwrite_output_dir)
    checkpoint = read_checkpoint(find_model_folder(source), encoder_only=has_pooling(source))
    inputs = _example_batch(checkpoint)
    if max_position_embeddings is not None:
        extend_positions(checkpoint, max_position_embeddings)
    if checkpoint.values.get("tokenizer_class") in WORDPIECE_TOKENIZERS:
        del checkpoint.config.tokenizer_class  # tokenizer_config.json declares the new class
    tensors = [tensor for tensor in checkpoint.weights.values() if tensor.is_floating_point()]
    dtype = dtype or functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    if checkpoint.head == "ForReplacedTokenDetection" and to not in ("snugbert", "electra"):
        checkpoint = keep_encoder(checkpoint)  # ELECTRA's head is for pretraining only
    ours = checkpoint.config, checkpoint.weights
    config, weights = ours if to == "snugbert" else express(checkpoint, to, dtype)
    model_class, options = CLASSES[to][checkpoint.head], checkpoint.options(to)
    if options:
        checkpoint.notes.append(
            f"The source has no pooler. Load {model_class.__name__} with `add_pooling_layer=False`. Otherwise, "
            "the model gets a pooler with random weights."
        )
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    temporary = tempfile.TemporaryDirectory(prefix=f".{output_dir.name}.", dir=output_dir.parent)
    with explaining_failed_writes(output_dir, "run the same command again"), temporary:
        written = Path(temporary.name)
        model = build_model(model_class, config, weights, dtype, options)
        model.save_pretrained(written, max_shard_size=max_shard_size)
        tokenizer = _convert_tokenizer(checkpoint, written, to, do_lower_case, max_position_embeddings)
        copy_files(source, written, max_position_embeddings)
        done = Conversion(
            source=checkpoint.kind,
            model_class=model_class.__name__,
            parameters=model.num_parameters(),
            dtype=str(dtype).removeprefix("torch."),
            size=sum(file.stat().st_size for file in written.glob("*.safetensors")),
            files=len(list(written.glob("*.safetensors"))),
            tokenizer=tokenizer,
            difference=_difference(checkpoint, to, written, dtype, inputs),
            notes=checkpoint.notes,
        )
        put_in_place(written, output_dir)
    return done


def check_new_model(source: Path, output_dir: Path, overwrite: bool) -> None:
    """Checks that a model can be written to a folder."""
    folder = source if source.is_dir() else source.parent
    if output_dir.resolve() == folder.resolve():
        raise InputError(f"{output_dir}: input and output are the same folder. Choose another output folder.")
    existing = [file.name for pattern in REPLACED_FILES for file in output_dir.glob(pattern)]
    check_new_results(output_dir, existing, overwrite)


def put_in_place(written: Path, output_dir: Path) -> None:
    """Moves a model into the output folder, and replaces the model in it.

    Until the last file is moved, the folder has no config.json.
    """
    output_dir.mkdir(exist_ok=True)
    folders = {output_dir / module["path"] for module in read_modules(output_dir)}
    folders |= {output_dir / name for name in ENGINE_FOLDERS}
    for folder in folders - {output_dir}:
        shutil.rmtree(folder, ignore_errors=True)
    for pattern in REPLACED_FILES:
        for file in output_dir.glob(pattern):
            file.unlink()
    for file in sorted(written.iterdir(), key=lambda file: file.name == "config.json"):
        if (output_dir / file.name).is_dir():  # `move` would put the file into this folder
            shutil.rmtree(output_dir / file.name)
        shutil.move(file, output_dir / file.name)


# --- the check --------------------------------------------------------------------------------------------------


def _difference(checkpoint: Checkpoint, to: str, written: Path, dtype: torch.dtype, inputs: Batch) -> float:
    """Computes the largest difference between the outputs of source and result on a batch, in float64.

    The source is loaded from its own files by its class in transformers. Stock BERT runs TensorFlow weights.
    """
    kind, head = checkpoint.kind, checkpoint.head
    source_class, model_class = CLASSES[kind][head], CLASSES[to][head]
    options = checkpoint.options(kind)
    config = source_class.config_class.from_dict(checkpoint.values)  # type: ignore[union-attr]
    if kind == "tensorflow":
        source = build_model(source_class, config, checkpoint.weights, dtype, options)
    else:
        if checkpoint.prefix:
            options["key_mapping"] = {f"^{re.escape(checkpoint.prefix)}": ""}
        source = source_class.from_pretrained(checkpoint.folder, config=config, dtype=dtype, **options)
    expected = run_in_torch(source.double().eval())(_adapt(inputs, checkpoint, kind))
    del source  # saves memory: float64 doubles the size
    model = model_class.from_pretrained(written, dtype=dtype, **checkpoint.options(to))
    outputs = run_in_torch(model.double().eval())(_adapt(inputs, checkpoint, to))
    difference, _ = find_difference([(inputs, expected, outputs)], head)
    if difference > FLOAT64_TOLERANCE:
        raise InputError(
            f"{checkpoint.folder}: the converted model's outputs differ by {difference:.1e}. Nothing was written."
        )
    return difference


def _example_batch(checkpoint: Checkpoint) -> Batch:
    """Draws three sequences that cover padding, all segments and the last position. The seed is fixed."""
    config = checkpoint.config
    length = min(24, config.max_position_embeddings)
    shape = (1, 3, length) if checkpoint.head == "ForMultipleChoice" else (3, length)
    lengths = torch.tensor([length, (length + 1) // 2, 1]).view(*shape[:-1], 1)
    columns = torch.arange(length).expand(shape)
    generator = torch.Generator().manual_seed(0)
    batch = {
        "input_ids": torch.randint(config.vocab_size, shape, generator=generator),
        "attention_mask": (columns < lengths).long(),
        "token_type_ids": (columns * config.type_vocab_size).div(length, rounding_mode="floor"),
        "position_ids": torch.linspace(0, config.max_position_embeddings - 1, length).long().expand(shape),
    }
    return {name: values.contiguous().numpy() for name, values in batch.items()}


def _adapt(inputs: Batch, checkpoint: Checkpoint, kind: str) -> Batch:
    """Returns the inputs in the form that a kind of model needs."""
    inputs = dict(inputs)
    if kind == "distilbert":
        del inputs["token_type_ids"]
        # DistilBERT's multiple choice head flattens all inputs except positions.
        inputs["position_ids"] = inputs["position_ids"].reshape(-1, inputs["position_ids"].shape[-1])
    elif kind in ROBERTA_TYPES:
        assert checkpoint.config.pad_token_id is not None
        inputs["position_ids"] = inputs["position_ids"] + checkpoint.config.pad_token_id + 1
    return inputs


# --- the tokenizer ----------------------------------------------------------------------------------------------


def _convert_tokenizer(
    checkpoint: Checkpoint, written: Path, to: str, do_lower_case: bool | None, max_length: int | None
) -> str | None:
    """Converts the tokenizer to a `tokenizer.json`. Returns its class name, or None if the source has no tokenizer.

    A WordPiece tokenizer becomes a `SnugBertTokenizer` or `BertTokenizer`. Any other tokenizer keeps its class. The
    new tokenizer's limit is `max_length`. None: the limit of the old tokenizer or of the model, whichever is smaller.
    """
    source = checkpoint.folder
    files = {name for name in TOKENIZER_FILES if (source / name).exists()}
    if not files:
        return None
    settings = read_json(source / "tokenizer_config.json") if "tokenizer_config.json" in files else {}
    declared = settings.get("tokenizer_class") or checkpoint.values.get("tokenizer_class")
    only_vocabulary = "vocab.txt" in files and not files & {"tokenizer.json", "tokenizer_config.json"}
    has_wordpiece = only_vocabulary or checkpoint.kind not in (*ROBERTA_TYPES, "deberta-v2")
    name = declared or ("BertTokenizer" if has_wordpiece else f"the tokenizer of {checkpoint.kind}")
    is_wordpiece = name in WORDPIECE_TOKENIZERS
    if not is_wordpiece and "auto_map" in settings:
        raise InputError(f"{source}: the tokenizer {name} needs custom code. Convert a copy without tokenizer files.")
    if not is_wordpiece and do_lower_case is not None:
        raise InputError(f"{source}: {name} has no lowercase setting. Leave out --[no_]do_lower_case.")
    check_vocabulary(source)
    if do_lower_case is None and only_vocabulary and is_wordpiece:
        do_lower_case = is_uncased(source / "vocab.txt")
    options: dict[str, Any] = {} if do_lower_case is None else {"do_lower_case": do_lower_case}
    try:
        before = (BertTokenizer if is_wordpiece else AutoTokenizer).from_pretrained(source, **options)
        is_ours = is_wordpiece and to == "snugbert"
        tokenizer = SnugBertTokenizer.from_pretrained(source, **options) if is_ours else before
    except (ImportError, OSError, ValueError) as error:
        raise InputError(f"{source}: cannot load the tokenizer. {join_lines(error)}") from error
    check_words(before, str(source))
    for name in ("auto_map", "is_local", "local_files_only"):  # these settings belong to the source, or to this run
        tokenizer.init_kwargs.pop(name, None)
    if max_length is not None:
        tokenizer.model_max_length = max_length
        if tokenizer.is_fast:
            tokenizer.backend_tokenizer.no_truncation()  # a tokenizer.json may store a different limit
    elif checkpoint.config.position_embedding_type != "relative":  # relative positions have no limit
        tokenizer.model_max_length = min(tokenizer.model_max_length, checkpoint.config.max_position_embeddings)
    tokenizer.save_pretrained(written)
    if is_wordpiece:
        write_vocab_txt(tokenizer, written)

    tokens = list(before.get_vocab())
    sample = " ".join(tokens[:: 1 + len(tokens) // 500]) + f" Émigré in 東京, {before.mask_token}!"
    after = AutoTokenizer.from_pretrained(written)
    options = {"return_offsets_mapping": before.is_fast, "verbose": False}
    if dict(before(sample, sample, **options)) != dict(after(sample, sample, **options)):
        raise InputError(f"{source}: the converted tokenizer returns different token ids. Nothing was written.")
    return type(tokenizer).__name__
