"""`snugbert convert`: a checkpoint of SnugBERT, BERT, DistilBERT or TensorFlow's BERT -> a folder of SnugBERT or BERT.

    snugbert convert pretrained pretrained-bert --to bert      # opens where only transformers is installed
    snugbert convert distilbert-base-uncased distil --to snugbert

The folder appears only when it is whole and its model gives the outputs of the source, which stock transformers
computes where the source is one of its own. Memory: the weights twice, in float64 while outputs are compared.
"""

import functools
import re
import shutil
import tempfile
from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertTokenizer, DistilBertConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from snugbert.checkpoints import (
    CLASSES,
    POOLER,
    POSITIONS,
    Checkpoint,
    build_model,
    fetch_checkpoint,
    is_uncased,
    read_checkpoint,
)
from snugbert.command_line import ArgumentParser
from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.errors import InputError
from snugbert.json_files import read_json
from snugbert.modeling_snugbert import SnugBertSinusoidalPositions
from snugbert.tokenization_snugbert import SnugBertTokenizer
from snugbert.vocab_txt import write_vocab_txt

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
CONFIGS: dict[str, type[PreTrainedConfig]] = {
    "snugbert": SnugBertConfig,
    "bert": BertConfig,
    "distilbert": DistilBertConfig,
    "tensorflow": BertConfig,
}
# Largest difference of outputs that is taken for rounding. In float64 it is near 1e-15 for outputs of 1 to 10.
TOLERANCE = 1e-6
# What SnugBERT's configuration says of itself, and BERT's has no word for.
NOT_IN_BERT = ("model_type", "architectures", "position_embedding_type", "pooler_act")

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)
# Files of a model, which another model replaces. The first makes a folder one: it goes first, and comes last.
MODEL_FILES = (
    "config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model-*-of-*.bin",
    "pytorch_model.bin.index.json",
    *TOKENIZER_FILES,
    *(file.name for file in Path(__file__).parent.glob("*_snugbert.py")),  # the code that goes along
)
# Tokenizers that are BertTokenizer by another name. A folder that names none has BERT's.
WORDPIECE_TOKENIZERS = (
    "SnugBertTokenizer",
    "BertTokenizer",
    "BertTokenizerFast",
    "DistilBertTokenizer",
    "DistilBertTokenizerFast",
)


@dataclass
class Conversion:
    """What was done.

    Attributes:
        source: kind of the checkpoint, `"snugbert"`, `"bert"`, `"distilbert"` or `"tensorflow"`.
        to: `"snugbert"` or `"bert"`.
        model_class: name of the class that was written, such as `"BertForMaskedLM"`.
        parameters: how many it has.
        dtype: of the weights, such as `"float32"`.
        size: of the weights' files, in bytes.
        files: how many these are.
        tokenizer: name of its class, None if the source has none.
        difference: largest difference of any output of the two models on the same batch, in float64.
        notes: what the user should know, a sentence each.
    """

    source: str
    to: str
    model_class: str
    parameters: int
    dtype: str
    size: int
    files: int
    tokenizer: str | None
    difference: float
    notes: list[str]


def main(argv: list[str]) -> None:
    """Converts as `argv` says, and prints what was done.

    Raises:
        InputError: arguments, files or folders that cannot be used, see [`convert`].
    """
    parser = ArgumentParser(
        prog="snugbert convert",
        usage="[arguments] input output",
        description="Converts a checkpoint of SnugBERT, BERT, DistilBERT or TensorFlow's BERT to SnugBERT or BERT.",
        example="snugbert convert bert-base-uncased snugbert-base --to snugbert",
    )
    parser.add_argument("input", help="Folder or Hub name of SnugBERT, BERT or DistilBERT, or TensorFlow's BERT.")
    parser.add_argument("output", help="Folder to write.")
    parser.add_argument("--to", required=True, choices=("bert", "snugbert"), help="What to make of it.")
    parser.add_argument("--dtype", choices=DTYPES, help="Of the weights. Default: as they are.")
    parser.add_argument("--max_shard_size", type=_size, default="5GB", help="Of a file of weights. Default: 5GB.")
    parser.add_argument(
        "--do_lower_case",
        action="store_true",
        default=None,
        help="Lower-case all text. Default: as the tokenizer says; where only vocab.txt is there, if all of it is.",
    )
    parser.add_argument("--no_do_lower_case", dest="do_lower_case", action="store_false", help="Keep upper case.")
    parser.add_argument("--overwrite_output_dir", action="store_true", help="Replace the model that is there.")
    parser.add_argument("--model_revision", default="main", help="Branch, tag or commit of the input on the Hub.")
    parser.add_argument("--token", help="Token for the Hub; default: that of `hf auth login`.")
    parser.add_argument("--cache_dir", help="Where to keep downloads; default: HF_HOME.")
    args = parser.parse_args(argv)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    hub = {"revision": args.model_revision, "token": args.token, "cache_dir": args.cache_dir}
    done = convert(
        fetch_checkpoint(args.input, **hub),
        Path(args.output),
        args.to,
        dtype=DTYPES.get(args.dtype),
        max_shard_size=args.max_shard_size,
        do_lower_case=args.do_lower_case,
        overwrite_output_dir=args.overwrite_output_dir,
    )
    print(f"From {args.input} ({done.source}) to {args.output}: {done.model_class}")
    files = "one file" if done.files == 1 else f"{done.files} files"
    print(f"{done.parameters:,} parameters in {done.dtype}, {done.size / 1e6:,.1f} MB in {files}")
    print(f"Tokenizer: {done.tokenizer or 'none, because there is none'}")
    for note in done.notes:
        print(f"Note: {note}")
    print(f"Checked: on the same batch the outputs of both differ by {done.difference:.1e} at most (in float64)")


def _size(text: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)?[KMGT]B", text):
        raise ArgumentTypeError(f"{text!r} is no size such as 500MB or 5GB")
    return text


def convert(
    source: Path,
    output_dir: Path,
    to: str,
    *,
    dtype: torch.dtype | None = None,
    max_shard_size: str = "5GB",
    do_lower_case: bool | None = None,
    overwrite_output_dir: bool = False,
) -> Conversion:
    """Writes the checkpoint `source` as a folder of another architecture, or another form of the same.

    Args:
        source: a folder, or the prefix of TensorFlow's files; see [`read_checkpoint`].
        output_dir: files in it that belong to no model stay.
        to: `"snugbert"`, a folder with its code, which others open with `trust_remote_code=True`, or `"bert"`, which
            needs neither.
        dtype: of the weights; None: the widest that the file has.
        max_shard_size: of a file of weights, such as `"5GB"`.
        do_lower_case: of BERT's tokenizer; None: as it says, or where there is only a vocabulary, if all of it is
            lower-case.
        overwrite_output_dir: a model in `output_dir` may be replaced.

    Raises:
        InputError: `source` cannot be used; BERT cannot express it; `output_dir` is `source` or holds a model; or the
            two models do not give the same outputs. Then nothing has changed.
        OSError, SafetensorError: the output cannot be written. Then there is no half of it.
    """
    _check_output_dir(source, output_dir, overwrite_output_dir)
    checkpoint = read_checkpoint(source)
    if checkpoint.values.get("tokenizer_class") in WORDPIECE_TOKENIZERS:
        del checkpoint.config.tokenizer_class  # tokenizer_config.json says what it is now
    tensors = [tensor for tensor in checkpoint.weights.values() if tensor.is_floating_point()]
    dtype = dtype or functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    config, weights = _as_bert(checkpoint, dtype) if to == "bert" else (checkpoint.config, checkpoint.weights)
    model_class = CLASSES[to][checkpoint.head]
    if checkpoint.options:
        checkpoint.notes.append(
            f"There is no pooler. Loading says that {model_class.__name__}'s is random, unless it is told "
            "`add_pooling_layer=False`."
        )

    output_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output_dir.name}.", dir=output_dir.parent) as folder:
        written = Path(folder)
        model = build_model(model_class, config, weights, dtype, checkpoint.options)
        model.save_pretrained(written, max_shard_size=max_shard_size)
        tokenizer = _convert_tokenizer(checkpoint, written, to, do_lower_case)
        done = Conversion(
            source=checkpoint.kind,
            to=to,
            model_class=model_class.__name__,
            parameters=model.num_parameters(),
            dtype=str(dtype).removeprefix("torch."),
            size=sum(file.stat().st_size for file in written.glob("*.safetensors")),
            files=len(list(written.glob("*.safetensors"))),
            tokenizer=tokenizer,
            difference=_difference(checkpoint, model_class, written, dtype),
            notes=checkpoint.notes,
        )
        _put_in_place(written, output_dir)
    return done


def _check_output_dir(source: Path, output_dir: Path, overwrite: bool) -> None:
    folder = source if source.is_dir() else source.parent
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"the output {output_dir} is a file, not a folder.")
    if output_dir.resolve() == folder.resolve():
        raise InputError(f"{output_dir} is both input and output; name another folder for the output.")
    there = [file.name for pattern in MODEL_FILES for file in output_dir.glob(pattern)]
    if there and not overwrite:
        raise InputError(
            f"{output_dir} already holds a model ({there[0]}); choose another folder, or replace it "
            "(--overwrite_output_dir)."
        )


def _put_in_place(written: Path, output_dir: Path) -> None:
    """Moves files, and replaces those of the model that was there; whoever looks in between sees no whole model."""
    output_dir.mkdir(exist_ok=True)
    for pattern in MODEL_FILES:
        for file in output_dir.glob(pattern):
            file.unlink()
    for file in sorted(written.iterdir(), key=lambda file: file.name == "config.json"):
        shutil.move(file, output_dir / file.name)


# --- the model --------------------------------------------------------------------------------------------------


def _as_bert(checkpoint: Checkpoint, dtype: torch.dtype) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
    """The configuration and the weights of the same model as stock BERT.

    Raises:
        InputError: BERT cannot express it.
    """
    config, weights = checkpoint.config, dict(checkpoint.weights)
    if config.pooler_act != "tanh" and any(name.startswith(POOLER) for name in weights):
        raise InputError(
            f"BERT's pooler has tanh, and that of this {checkpoint.head} has {config.pooler_act} (DistilBERT's "
            "classifiers do); it can be converted with --to snugbert only."
        )
    if config.position_embedding_type == "sinusoidal":
        if dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"BERT keeps in a table the positions that SnugBERT computes, and {dtype} would round them; "
                "add --dtype float32."
            )
        weights[POSITIONS] = SnugBertSinusoidalPositions(config)(torch.arange(config.max_position_embeddings))
        checkpoint.notes.append("The computed positions became a table, which training would change.")
    fields = {name: value for name, value in config.to_dict().items() if name not in NOT_IN_BERT}
    return BertConfig.from_dict(fields), weights


def _difference(
    checkpoint: Checkpoint, model_class: type[PreTrainedModel], written: Path, dtype: torch.dtype
) -> float:
    """Largest difference of any output between the source and what was written, both in float64.

    Both have weights rounded to `dtype`. The source is run by transformers' own class from its own files, except for
    TensorFlow's, which only the weights read from it can stand for.

    Raises:
        InputError: they are not the same model.
    """
    source_class = CLASSES[checkpoint.kind][checkpoint.head]
    source_config = CONFIGS[checkpoint.kind].from_dict(checkpoint.values)
    inputs = _example(checkpoint)
    of_source = dict(inputs)
    options = checkpoint.options
    if checkpoint.kind == "distilbert":
        del of_source["token_type_ids"]
        # Its multiple choice head flattens all inputs but these.
        of_source["position_ids"] = inputs["position_ids"].flatten(0, -2)
        options = {}
    if checkpoint.kind == "tensorflow":
        source = build_model(source_class, source_config, checkpoint.weights, dtype, options)
    else:
        source = source_class.from_pretrained(checkpoint.folder, config=source_config, dtype=dtype, **options)
    with torch.no_grad():
        expected = source.double().eval()(**of_source)
        del source  # two models in float64 are four of the file
        outputs = model_class.from_pretrained(written, dtype=dtype, **checkpoint.options).double().eval()(**inputs)
    difference = torch.zeros(())
    for name, tensor in expected.items():
        theirs, ours = tensor, outputs[name]
        if tensor.dim() == 3 or name in ("start_logits", "end_logits"):  # what is at padding means nothing
            real = inputs["attention_mask"].bool()
            theirs, ours = theirs[real], ours[real]
        difference = torch.maximum(difference, (ours - theirs).abs().max())  # NaN stays
    if not difference <= TOLERANCE:
        raise InputError(
            f"the outputs of {checkpoint.folder} and of what became of it differ by {difference:.1e}; nothing was "
            "written."
        )
    return float(difference)


def _example(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Three sequences with padding, two segments, and positions from the first to the last; the same every time."""
    config = checkpoint.config
    length = min(24, config.max_position_embeddings)
    shape = (1, 3, length) if checkpoint.head == "ForMultipleChoice" else (3, length)
    lengths = torch.tensor([length, (length + 1) // 2, 1]).view(*shape[:-1], 1)
    columns = torch.arange(length).expand(shape)
    generator = torch.Generator().manual_seed(0)
    return {
        "input_ids": torch.randint(config.vocab_size, shape, generator=generator),
        "attention_mask": (columns < lengths).long(),
        "token_type_ids": (columns * config.type_vocab_size).div(length, rounding_mode="floor"),
        "position_ids": torch.linspace(0, config.max_position_embeddings - 1, length).long().expand(shape),
    }


# --- the tokenizer ----------------------------------------------------------------------------------------------


def _convert_tokenizer(checkpoint: Checkpoint, written: Path, to: str, do_lower_case: bool | None) -> str | None:
    """Writes BERT's tokenizer as `to` has it, and copies any other as it is.

    Returns:
        The name of its class; None if there is none.

    Raises:
        InputError: a tokenizer that needs code of its own, cannot be opened, or does not give the same ids.
    """
    source = checkpoint.folder
    files = [source / name for name in TOKENIZER_FILES if (source / name).exists()]
    if not files:
        return None
    settings = read_json(source / "tokenizer_config.json") if source / "tokenizer_config.json" in files else {}
    name = settings.get("tokenizer_class") or checkpoint.values.get("tokenizer_class") or "BertTokenizer"
    if name not in WORDPIECE_TOKENIZERS:
        if "auto_map" in settings:
            raise InputError(
                f"the tokenizer of {source}, {name}, needs code of its own; convert a copy of the folder without "
                "tokenizer files."
            )
        for file in files:
            shutil.copyfile(file, written / file.name)
        return name

    if not {source / "tokenizer.json", source / "vocab.txt"} & {*files}:
        raise InputError(f"the tokenizer of {source} has no vocabulary, neither tokenizer.json nor vocab.txt.")
    if do_lower_case is None and not {source / "tokenizer.json", source / "tokenizer_config.json"} & {*files}:
        do_lower_case = is_uncased(source / "vocab.txt")
    options: dict[str, Any] = {} if do_lower_case is None else {"do_lower_case": do_lower_case}
    tokenizer_class = BertTokenizer if to == "bert" else SnugBertTokenizer
    try:
        before = BertTokenizer.from_pretrained(source, **options)
        tokenizer = tokenizer_class.from_pretrained(source, **options)
    except (OSError, ValueError) as error:
        raise InputError(f"the tokenizer of {source} cannot be used: {' '.join(str(error).split())}") from error
    for name in ("auto_map", "is_local", "local_files_only"):  # of the source, and of this run
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(written)
    write_vocab_txt(tokenizer, written)

    pieces = list(before.get_vocab())
    sample = " ".join(pieces[:: 1 + len(pieces) // 500]) + " Émigré in 東京, [MASK]!"
    after = tokenizer_class.from_pretrained(written)
    if dict(before(sample, sample, verbose=False)) != dict(after(sample, sample, verbose=False)):
        raise InputError(f"the tokenizer of {source} and what became of it give different ids; nothing was written.")
    return tokenizer_class.__name__
