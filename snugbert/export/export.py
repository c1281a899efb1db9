"""Exports a model: converts it, lets the engine's converter write it, runs it, and writes the card."""

import dataclasses
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast, get_args

import numpy as np
import torch
from datasets import Dataset
from scipy.stats import spearmanr
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from snugbert.cli.model_arguments import HubArguments
from snugbert.data.packed_batches import NUM_WINDOWS
from snugbert.data.tables import load_rows, read_rows
from snugbert.errors import InputError, explain_choice
from snugbert.export.export_arguments import ENGINES, Dtype, ExportArguments
from snugbert.export.texts import BATCH_SIZE, make_batches, make_texts, pad, read_text_file
from snugbert.families.comparing import FLOAT32_TOLERANCE, Batch, Run, find_difference, run_in_torch
from snugbert.families.conversion import check_new_model, convert_model, put_in_place
from snugbert.families.loading import is_regression, max_tokens
from snugbert.families.reading import CLASSES, Checkpoint, build_model, fetch_checkpoint, read_checkpoint
from snugbert.families.sentence_transformers_files import (
    MODULES,
    SETTINGS_FILE,
    TRANSFORMER,
    find_model_folder,
    has_pooling,
    is_cross_encoder,
    read_modules,
)
from snugbert.families.stock_models import choose_family, keep_encoder
from snugbert.files import explaining_failed_writes, read_json, write_json
from snugbert.reports.exported_card import Export, Wrapper, write_card
from snugbert.tasks import find_task, list_tasks
from snugbert.tasks.evaluation_set import make_evaluation_set
from snugbert.tasks.outputs import Logits, Output, average_windows

Embed = Callable[[Run, list[str]], np.ndarray]
Score = Callable[[Run], dict[str, float]]

CALIBRATION_TEXTS = 300  # as in NNCF's default `subset_size`
LONGEST_CALIBRATION_TEXT = 256  # tokens; calibration keeps activations in memory
LONGEST_TEXT = 512  # tokens, for models without a limit, such as DeBERTa


def run_export(args: ExportArguments, hub_args: HubArguments) -> None:
    """Exports a model, and prints a summary. This is `snugbert export`."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    settings = dict(vars(args))
    done = export_model(settings.pop("input"), settings.pop("output"), **settings, **hub_args.hub)
    print(f"Exported {args.input} to {args.output} for {done.engine}")
    print(f"Weights: {done.dtype}, {done.size / 1e6:,.1f} MB")
    for note in done.notes:
        print(f"Note: {note}")
    print(f"Check: outputs differ by at most {done.difference:.1e} on {done.num_texts:,} texts")
    for metric, (before, after) in done.scores.items():
        print(f"Score: {metric} {after:.4f}, before export {before:.4f}")


def export_model(
    source: str | Path,
    output_dir: str | Path,
    to: str,
    *,
    dtype: Dtype | torch.dtype = "float32",
    calibration_file: str | Path | None = None,
    text_file: str | Path | None = None,
    validation_file: str | Path | None = None,
    eval_dataset: Any = None,
    task_name: str | None = None,
    text_column_names: str | None = None,
    label_column_name: str | None = None,
    max_seq_length: int | None = None,
    version_2_with_negative: bool = False,
    overwrite_output_dir: bool = False,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
) -> Export:
    """Writes a model for an engine, and compares it with the original.

    The folder contains config.json and tokenizer of the equivalent stock model, the files of sentence-transformers if
    the source has them, and the engine's files.

    Args:
        source: a checkpoint of the BERT family: a folder or a Hub name, see [`read_checkpoint`].
        output_dir: the folder to write. Other files in it are kept.
        to: "onnx", "openvino" or "bert".
        dtype: dtype of the weights: "float32", "float16" (or torch's dtypes), or "int8".
        calibration_file: a text per line, to measure the ranges of activations in int8. None: the engine quantizes
            activations at run time, or does not quantize them.
        text_file: more texts on which the outputs are compared, one per line. The outputs are always compared on
            built-in text of all lengths.
        validation_file: labeled examples to score the model and its export on.
        eval_dataset: labeled rows as in [`FineTuningTrainer`], instead of `validation_file`.
        task_name, text_column_names, label_column_name, max_seq_length, version_2_with_negative: how to read the
            labeled examples, as in the arguments of the model's task.
        overwrite_output_dir: whether to replace a model in `output_dir`.
        revision, token, cache_dir: for a model on the Hub, as in `from_pretrained`.

    Returns:
        A summary of the export, with the scores before and after.

    Raises:
        InputError: a package is missing, the engine cannot run the model, a file cannot be used, an output is not
            finite, or float32 outputs differ by more than `FLOAT32_TOLERANCE` (times the largest value of the output,
            if that value exceeds 1). Then nothing is written.
    """
    dtype = cast(Dtype, str(dtype).removeprefix("torch."))
    engine = _import_engine(to)
    given = {"calibration_file": calibration_file, "text_file": text_file, "validation_file": validation_file}
    files = {name: None if file is None else Path(file) for name, file in given.items()}
    if validation_file is not None and eval_dataset is not None:
        raise InputError("--validation_file and eval_dataset cannot be combined. Pass only one.")
    labeled = files["validation_file"] if eval_dataset is None else load_rows(eval_dataset, "eval_dataset")
    data = {
        "task_name": task_name,
        "text_column_names": text_column_names,
        "label_column_name": label_column_name,
        "max_seq_length": max_seq_length,
        "version_2_with_negative": version_2_with_negative,
    }
    _check_arguments(to, dtype, files, data, labeled)
    source_name, output_dir = str(source), Path(output_dir)
    source = fetch_checkpoint(source_name, revision=revision, token=token, cache_dir=cache_dir)
    check_new_model(source, output_dir, overwrite_output_dir)
    checkpoint = read_checkpoint(find_model_folder(source), encoder_only=has_pooling(source))
    if checkpoint.head == "ForReplacedTokenDetection" and to == "bert":
        checkpoint = keep_encoder(checkpoint)
    if labeled is not None and checkpoint.head not in ("Model", *list_tasks()):
        raise InputError(f"--validation_file: {checkpoint.head} cannot be scored. Remove the flag.")
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    temporary = tempfile.TemporaryDirectory(prefix=f".{output_dir.name}.", dir=output_dir.parent)
    with explaining_failed_writes(output_dir, "run the same command again"), temporary:
        written = Path(temporary.name) / "export"
        model, done = _write_export(source, checkpoint, written, engine, to, dtype, files, labeled, data)
        put_in_place(written, output_dir)
        wrapper = _find_wrapper(source, checkpoint.head)
        write_card(output_dir, source, source_name, model, to, done, is_regression(model.config), wrapper)
    return done


def _write_export(
    source: Path,
    checkpoint: Checkpoint,
    written: Path,
    engine: ModuleType,
    to: str,
    dtype: Dtype,
    files: dict[str, Path | None],
    labeled: Path | Dataset | None,
    data: dict[str, Any],
) -> tuple[PreTrainedModel, Export]:
    """Writes an export to the folder `written`, and runs the exported model. Returns the original and a summary."""
    family = "bert" if to == "bert" else choose_family(checkpoint)
    stock_dtype = torch.float16 if to == "bert" and dtype == "float16" else torch.float32
    converted = convert_model(source, written, family, dtype=stock_dtype)
    if converted.tokenizer is None:
        raise InputError(f"{source}: no tokenizer. The check of the outputs needs one. Add the tokenizer.")
    model = _load_model(checkpoint, keep_pooler=not read_modules(source))
    tokenizer, names = _load_tokenizer(written, has_segments=checkpoint.config.type_vocab_size > 1)
    limit = max_tokens(model, tokenizer)
    limit = LONGEST_TEXT if limit > 10**6 else limit
    batches = partial(make_batches, tokenizer=tokenizer, head=checkpoint.head, names=names)
    score = None
    if labeled is not None:
        embed = _make_embed(written, batches, limit) if checkpoint.head == "Model" else None
        score = make_score(checkpoint, labeled, tokenizer, names, embed, **data)
    calibration: list[Batch] = []
    if files["calibration_file"] is not None:
        texts = read_text_file(files["calibration_file"], CALIBRATION_TEXTS)
        calibration = batches(texts, max_length=min(limit, LONGEST_CALIBRATION_TEXT), size=1)
    engine.write(model, names, written, dtype, calibration)
    if to != "bert":
        for file in written.glob("model*.safetensors*"):
            file.unlink()
    _complete_config(written, model)

    texts = make_texts(tokenizer, limit) + (read_text_file(files["text_file"]) if files["text_file"] else [])
    model.set_attn_implementation("sdpa")  # the attention that users run
    original, run = run_in_torch(model), engine.load(written)
    outputs = ((batch, original(batch), run(batch)) for batch in batches(texts, max_length=limit))
    difference, relative = find_difference(outputs, checkpoint.head)
    if not difference < float("inf") or (dtype == "float32" and relative > FLOAT32_TOLERANCE):
        raise InputError(
            f"{source}: in {engine.describe()}, the outputs differ by {difference:.1e}, and relative to the "
            f"largest value by {relative:.1e}. The limit is {FLOAT32_TOLERANCE:.0e}. Nothing was written."
        )
    before, after = (score(original), score(run)) if score else ({}, {})
    return model, Export(
        engine=engine.describe(),
        model_class=converted.model_class,
        dtype=dtype,
        calibrated=bool(calibration),
        size=sum(file.stat().st_size for file in list_model_files(written, to)),
        difference=difference,
        num_texts=len(texts),
        scores={name: (value, after[name]) for name, value in before.items()},
        # The other notes are about stock BERT.
        notes=[note for note in converted.notes if to == "bert" or note.startswith(MODULES)],
    )


def _find_wrapper(source: Path, head: str) -> Wrapper | None:
    """Returns the class of sentence-transformers that opens a folder. None without such files."""
    if is_cross_encoder(source):
        return "CrossEncoder"
    return "SentenceTransformer" if read_modules(source) and head == "Model" else None


def _check_arguments(
    to: str, dtype: Dtype, files: dict[str, Path | None], data: dict[str, Any], labeled: Path | Dataset | None
) -> None:
    """Refuses arguments that the target does not support, before any work."""
    if dtype not in get_args(Dtype):
        raise InputError(explain_choice("--dtype", dtype, get_args(Dtype)))
    if to == "bert" and dtype == "int8":
        raise InputError("--dtype int8: transformers has no int8 BERT for CPUs. Use --to onnx or --to openvino.")
    if files["calibration_file"] is not None and dtype != "int8":
        raise InputError("--calibration_file needs --dtype int8.")
    for name, file in files.items():
        if file is not None and not file.is_file():
            raise InputError(f"--{name}: {file} does not exist.")
    given = [name for name, value in data.items() if value]
    if given and labeled is None:
        raise InputError(f"--{given[0]} needs --validation_file. Pass that file, or remove --{given[0]}.")


def _import_engine(to: str) -> ModuleType:
    if to not in ENGINES:
        raise InputError(explain_choice("--to", to, tuple(ENGINES)))
    try:
        return import_module(ENGINES[to])
    except ModuleNotFoundError as error:
        raise InputError(
            f"--to {to}: the package {error.name} is not installed. Run: pip install 'snugbert[{to}]'"
        ) from error


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


def _make_embed(folder: Path, batches: Callable[..., list[Batch]], limit: int) -> Embed:
    """Returns a function that embeds texts as sentence-transformers does: with its prompt, length and pooling."""
    pool = load_pooling(folder)
    settings = read_json(folder / SETTINGS_FILE) if (folder / SETTINGS_FILE).is_file() else {}
    prompt = (settings.get("prompts") or {}).get(settings.get("default_prompt_name")) or ""
    transformer = read_json(folder / TRANSFORMER) if (folder / TRANSFORMER).is_file() else {}
    longest = min(limit, transformer.get("max_seq_length") or limit)

    def embed(run: Run, texts: list[str]) -> np.ndarray:
        inputs = batches([prompt + text for text in texts], max_length=longest)
        return np.concatenate([pool(run(batch)["last_hidden_state"], batch) for batch in inputs])

    return embed


def load_pooling(folder: Path) -> Callable[[np.ndarray, Batch], np.ndarray]:
    """Returns a function that pools hidden states to one vector per text, *shape* (B, size).

    With modules.json, the modules of sentence-transformers pool. Without this file, a vector is the mean over tokens.
    """
    if not read_modules(folder):
        return lambda states, batch: (
            (states * batch["attention_mask"][..., None]).sum(1) / batch["attention_mask"].sum(1, keepdims=True)
        )
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError as error:
        raise InputError(
            f"{folder}: the pooling of this model needs sentence-transformers. Run: pip install 'snugbert[embeddings]'"
        ) from error
    modules = list(SentenceTransformer(str(folder), device="cpu", local_files_only=True))[1:]

    @torch.inference_mode()
    def pool(states: np.ndarray, batch: Batch) -> np.ndarray:
        features = {
            "token_embeddings": torch.from_numpy(np.asarray(states)),
            "attention_mask": torch.from_numpy(batch["attention_mask"]),
        }
        for module in modules:
            features = module(features)
        return features["sentence_embedding"].numpy()

    return pool


# --- scores -----------------------------------------------------------------------------------------------------


def make_score(
    checkpoint: Checkpoint,
    labeled: Path | Dataset,
    tokenizer: PreTrainedTokenizerBase,
    names: list[str],
    embed: Embed | None = None,
    **data: Any,
) -> Score:
    """Returns a function that scores a model, run by any engine, as the fine-tuning commands do.

    Encoders are scored as embedding models: by the rank correlation of cosine similarities with the scores of pairs,
    as on STS-B. Their examples have sentence1, sentence2 and score. `embed` returns the embeddings of texts (N, size).
    """
    data = {name: value for name, value in data.items() if value}
    task_class = find_task(checkpoint.head) if embed is None else None
    known = set() if task_class is None else {each.name for each in dataclasses.fields(task_class.arguments)}
    if unknown := [name for name in data if name not in known]:
        raise InputError(f"--{unknown[0]} does not apply to {checkpoint.head}. Remove the flag.")
    if task_class is None:
        assert embed is not None
        return _make_similarity_score(labeled, embed)
    task = task_class(**data)
    validation = make_evaluation_set(task, checkpoint.config, tokenizer, {"validation": [labeled]})

    def score_run(run: Run) -> dict[str, float]:
        logits = _compute_logits(run, validation.features.inputs, tokenizer, names, task.output)
        return validation.score_in_training(logits)

    return score_run


def _compute_logits(
    run: Run, features: Any, tokenizer: PreTrainedTokenizerBase, names: list[str], output: Output
) -> Logits:
    """Runs a model on features in batches of similar length. Returns logits in the order of the features."""
    rows = [{name: row[name] for name in names} for row in features]
    counts = features[NUM_WINDOWS][:] if NUM_WINDOWS in features.column_names else None
    if counts is not None:  # an engine runs windows, so their average is computed here
        rows = [{name: row[name][index] for name in names} for row in rows for index in range(len(row["input_ids"]))]
    order = np.argsort([-len(row["input_ids"]) for row in rows], kind="stable")
    results: list[Any] = [None] * len(rows)
    for chosen in np.split(order, range(BATCH_SIZE, len(order), BATCH_SIZE)):
        outputs = run(pad([rows[index] for index in chosen], tokenizer, names))
        logits = output.stack({name: torch.from_numpy(np.asarray(outputs[name])) for name in output.names}).numpy()
        for index, values in zip(chosen, logits, strict=True):
            results[index] = values[: len(rows[index]["input_ids"])] if output.per_token else values
    if counts is not None:
        results = average_windows(results, counts)
    return output.join_windows(results)


def _make_similarity_score(labeled: Path | Dataset, embed: Embed) -> Score:
    columns: dict[str, list[Any]] = {"sentence1": [], "sentence2": [], "score": []}
    file = labeled if isinstance(labeled, Path) else "the dataset"
    for row, values in read_rows(labeled):
        for name, column in columns.items():
            if values.get(name) is None:
                raise InputError(
                    f"{file}, row {row}: no value in column {name!r}. Expected sentence1, sentence2 and score."
                )
            column.append(values[name] if name == "score" else str(values[name]))
    try:
        scores = [float(score) for score in columns["score"]]
    except (ValueError, TypeError) as error:
        raise InputError(f"{file}: the scores must be numbers ({error}).") from error

    def score(run: Run) -> dict[str, float]:
        first, second = (embed(run, columns[name]) for name in ("sentence1", "sentence2"))
        norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        cosines = (first * second).sum(axis=1) / np.maximum(norms, 1e-12)
        return {"spearman": float(spearmanr(cosines, scores).statistic)}

    return score


# --- files ------------------------------------------------------------------------------------------------------


def _complete_config(folder: Path, model: PreTrainedModel) -> None:
    """Writes the labels of a classifier. transformers 5 omits default labels, but servers need them."""
    config: Any = model.config
    if config.architectures and "Classification" in config.architectures[0]:
        labels = {"id2label": {str(index): label for index, label in config.id2label.items()}}
        write_json(folder / "config.json", read_json(folder / "config.json") | labels | {"label2id": config.label2id})


def list_model_files(folder: Path, to: str) -> list[Path]:
    """Returns the files that the engine wrote; for stock BERT, the weights."""
    return list(folder.glob("model*.safetensors") if to == "bert" else (folder / to).iterdir())
