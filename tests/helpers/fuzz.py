"""Reads mutated files through the readers of the commands. Each must be read, or refused with one sentence.

    python tests/helpers/fuzz.py --files 3000 --seed 1
    python tests/helpers/fuzz.py corpus --number 17    # only one file

Defects are: a message of many lines, or without a file, a folder or a flag; a traceback; a signal; a file that
takes too long or too much memory. What is read must be plausible, such as token ids inside the vocabulary.
"""

import argparse
import contextlib
import csv
import gc
import io
import json
import logging
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import family_checkpoints
import numpy as np
import pandas
import pyarrow
import torch
import yaml
from prepared import content, prepare
from safetensors import SafetensorError
from synthetic import make_trainer

import snugbert
from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.cli.parser import parse_arguments
from snugbert.data.corpus import preparation
from snugbert.data.corpus.corpus import open_corpus
from snugbert.data.data_arguments import PreparationArguments
from snugbert.data.documents import read_documents
from snugbert.errors import COMMAND, InputError
from snugbert.families.loading import check_ids, load_tokenizer
from snugbert.families.reading import read_checkpoint as read_checkpoint_to_convert
from snugbert.families.sentence_transformers_files import copy_files
from snugbert.families.weight_files import read_weights
from snugbert.prediction.make_predictor import find_reader, make_predictor
from snugbert.prediction.prediction_arguments import PredictionArguments
from snugbert.reports import pretraining_plots
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.labels import choose_labels, encode_labels
from snugbert.tasks.tagging import Tagging
from snugbert.tasks.task_arguments import GlueDataArguments

SECONDS, PATIENCE = 10, 60  # of computing and of waiting, for a file
MEGABYTES = 300  # that a file of a few kilobytes may take
REFUSALS = (InputError, OSError, SafetensorError)  # a command prints these without a traceback

# --- formats ----------------------------------------------------------------------------------------------------

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(90))]
TEXTS = [" ".join(random.Random(number).choices(TOKENS[5:], k=2 + number % 8)) for number in range(30)]


def make_tokenizer() -> snugbert.SnugBertTokenizer:
    return snugbert.SnugBertTokenizer({token: index for index, token in enumerate(TOKENS)})


def write_corpus(folder: Path) -> None:
    (folder / "text.txt").write_text("\n\n".join(TEXTS))
    prepare(folder, make_tokenizer(), folder / "text.txt", language=None, num_workers=1)


def read_corpus(folder: Path, mutated: Path) -> None:
    corpus = open_corpus(folder, make_tokenizer())
    for document in content(corpus):
        assert document and all(document), "a document or a sentence is empty"
        assert max(map(max, document)) < len(TOKENS), "a token is outside the vocabulary"
    assert corpus.num_documents == sum(len(block.documents) - 1 for block in corpus.blocks)
    prepare(folder, make_tokenizer(), folder / "text.txt", language=None, num_workers=1)


def write_checkpoint(folder: Path) -> None:
    make_trainer(folder, size=40, max_steps=2, save_steps=2).train()


def read_checkpoint(folder: Path, mutated: Path) -> None:
    trainer = make_trainer(folder, size=40, max_steps=3, save_strategy="no")
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    assert trainer.state.global_step == 3, "the run did not continue"


def write_tables(folder: Path) -> None:
    """Writes the same rows as TSV, CSV, JSON and CoNLL, plain and compressed, and rows of other kinds."""
    rows = [{"sentence1": text, "sentence2": f'"{text}", 1', "label": str(text > "w5")} for text in TEXTS[:12]]
    frame = pandas.DataFrame(rows)
    contents = {
        "csv": frame.to_csv(index=False),
        "tsv": frame.to_csv(index=False, sep="\t", quoting=csv.QUOTE_NONE),
        "json": json.dumps(rows),
        "jsonl": frame.to_json(orient="records", lines=True),
        "conll": "\n\n".join(" O\n".join(text.split()) + " O" for text in TEXTS[:12]),
    }
    for suffix, text in contents.items():
        (folder / f"table.{suffix}").write_text(text)
        for compressed, codec in COMPRESSIONS.items():
            file = folder / f"table.{suffix}.{compressed}"
            file.write_bytes(pyarrow.compress(text.encode(), codec, asbytes=True))
    frame.rename(columns={"sentence1": "text"}).to_parquet(folder / "table.parquet")
    tagged = [{"tokens": text.split(), "ner_tags": ["O"] * len(text.split())} for text in TEXTS[:12]]
    (folder / "tagged.jsonl").write_text("\n".join(map(json.dumps, tagged)))


def read_table(folder: Path, mutated: Path) -> None:
    if mutated.suffix == ".parquet":
        assert all(isinstance(line, str) for document in read_documents([mutated]) for line in document)
    elif mutated.name.startswith("tagged") or ".conll" in mutated.name:
        split = Tagging().read_splits({"train": [mutated]})["train"]
        assert all(sentence.words for sentence in split.sentences), "a sentence is empty"
    else:
        task = TextClassification(GlueDataArguments(train_file=str(mutated), validation_file=str(mutated)))
        splits = task.read_splits({"train": [mutated]})
        encoded = encode_labels(splits["train"], choose_labels(None, splits, []))
        assert len(encoded) == len(splits["train"].texts[0]), "an example has no label"


def write_embedder(folder: Path) -> None:
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    for name, values in {
        "modules.json": [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(modules)
        ],
        "config.json": {"model_type": "bert", "architectures": ["BertModel"]},
        "config_sentence_transformers.json": {"prompts": {"query": "q"}, "activation_fn": "torch.nn.Tanh"},
        "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False},
        "1_Pooling/config.json": {"embedding_dimension": 8, "pooling_mode": ["cls", "mean"]},
        "2_Dense/config.json": {"in_features": 8, "out_features": 4, "bias": True},
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(values))


def read_embedder(folder: Path, mutated: Path) -> None:
    (folder / "copy").mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (folder / "copy" / name).write_text("{}")
    find_reader(folder)
    copy_files(folder, folder / "copy")


def write_yaml(folder: Path) -> None:
    files = f"train_file: [{folder}/flags.yaml, {folder}/*.yaml]"
    text = f"tokenizer_name: {folder}\n{files}\nlanguage: en\npreprocessing_num_workers: 3\n"
    (folder / "flags.yaml").write_text(text)


def read_yaml(folder: Path, mutated: Path) -> None:
    types = [TokenizerArguments, PreparationArguments]
    tokenizer, text = parse_arguments(types, ["--config", str(mutated)], "snugbert prepare", "")
    assert isinstance(tokenizer.trust_remote_code, bool) and isinstance(text.train_file, list | None)


def write_tokenizers(folder: Path) -> None:
    make_tokenizer().save_pretrained(folder / "json")
    (folder / "txt").mkdir()
    (folder / "txt/vocab.txt").write_text("\n".join(TOKENS) + "\n")


def read_tokenizer(folder: Path, mutated: Path) -> None:
    tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=str(mutated.parent)))
    check_ids(tokenizer, str(mutated.parent))
    ids = np.concatenate(tokenizer(TEXTS[:4], truncation=True, max_length=8)["input_ids"])
    assert len(ids) and 0 <= ids.min() and ids.max() < len(tokenizer), "a token is outside the vocabulary"


def write_model(folder: Path) -> None:
    """Writes the model, and the same in shards."""
    more = {"document_windows": {"max_seq_length": 32, "doc_stride": 8}, "thresholds": {"yes": 0.4}}
    more |= {"id2label": {0: "no", 1: "yes"}, "text_columns": ["text"]}
    family_checkpoints.write_checkpoint(folder, "bert", "ForSequenceClassification", **more)
    model = snugbert.SnugBertForSequenceClassification.from_pretrained(folder)
    model.save_pretrained(folder / "shards", max_shard_size="20KB")
    (folder / "rows.jsonl").touch()


def read_model(folder: Path, mutated: Path) -> None:
    if mutated.parent.name == "shards":
        assert all(tensor.numel() for tensor in read_weights(mutated.parent).values())
        return
    read_checkpoint_to_convert(folder)
    rows = [{"text": text} for text in TEXTS[:4]]
    args = PredictionArguments(str(folder), str(folder / "rows.jsonl"), str(folder / "out.jsonl"), use_cpu=True)
    predictor = make_predictor(folder, args, rows)
    for prediction in predictor.answer([predictor.read(row) for row in rows]):
        probabilities = prediction.get("probabilities", {})
        assert all(0 <= probability <= 1 for probability in probabilities.values()), "a probability is out of range"


# Writes undamaged files into an empty folder; the names of the files to mutate; reads the folder as a command does.
# A reader gets the folder and the mutated file. It raises AssertionError if what it read is not plausible.
FORMATS = {
    "corpus": (write_corpus, ("*.arrow", "*.index"), read_corpus),
    "checkpoint": (write_checkpoint, ("checkpoint-2/*",), read_checkpoint),
    "table": (write_tables, ("table.*", "tagged.*"), read_table),
    "embedder": (write_embedder, ("*.json", "*/*.json"), read_embedder),
    "yaml": (write_yaml, ("flags.yaml",), read_yaml),
    "tokenizer": (write_tokenizers, ("json/*.json", "txt/vocab.txt"), read_tokenizer),
    "model": (write_model, ("config.json", "*.safetensors", "shards/model*"), read_model),
}

# --- mutations --------------------------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 0.5, 2**31, 2**63, 10**30, 1e300, float("nan"), float("inf"), [], {}, [None], [1.5, "b"]),
    *("", "a", "1", "\ud800", "\0", "../../escape", "a\n# b\n![c](https://d.example)", "e" * 50_000, {"a": {"b": []}}),
)
ALIASES = "".join(f"x{n}: &x{n} [{f'*x{n - 1}, ' * 9 if n else 'a, b'}]\n" for n in range(12))  # billions of values
WORDS = (  # in place of a word, a number or a bracket
    *"NaN -Infinity 1e999 -1 0.1 99999999999999999999 null true 2020-13-41 ~ \" ' [] {} { ] , ; | --- *a".split(),
    *("<<: *a", "&a [*a, *a]", "!!python/object/apply:os.system [true]", "!!binary x", ALIASES, "e" * 50_000),
    *("[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 20_000, "{a: " * 3000, "- " * 3000, "9" * 5000),
    *("\t", "\r", "\n\n", "\ufeff", "\u2028", "\0"),
)
BAD_UNICODE = (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xff\xfe", b"\0\0")
COMPRESSIONS = {"gz": "gzip", "zst": "zstd"}


def mutate(data: bytes, name: str, rng: random.Random) -> bytes:
    """Returns the changed content of a file: bytes, text, values, a header or compressed content, by its suffix."""
    stem, _, suffix = name.rpartition(".")
    if rng.random() < 0.3:
        return change_bytes(data, rng)
    if suffix in COMPRESSIONS:
        content = pyarrow.input_stream(io.BytesIO(data), compression=COMPRESSIONS[suffix]).read()
        return pyarrow.compress(mutate(content, stem, rng), COMPRESSIONS[suffix], asbytes=True)
    if suffix in ("safetensors", "index"):
        size = int.from_bytes(data[:8], "little")
        header = mutate(data[8 : 8 + size], "header.json", rng)
        return len(header).to_bytes(8, "little") + header + data[8 + size :]
    if suffix in ("json", "jsonl", "yaml") and rng.random() < 0.6:
        return change_json(data, yaml.safe_load if suffix == "yaml" else json.loads, rng)
    return change_text(data, rng) if data.isascii() else change_bytes(data, rng)


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Changes, removes, repeats or extends a piece, often near the start or the end of the file, or cuts the file."""
    start = rng.choice((rng.randrange(len(data) + 1), min(rng.randrange(100), len(data)), max(0, len(data) - 20)))
    end = min(len(data), start + rng.choice((1, 2, 4, 8, max(64, len(data) // 4))))
    piece = data[start:end]
    number = rng.choice((0, 255, 2**31, 2**32 - 1, 2**63, 2**64 - 1, len(data))).to_bytes(8, "little")
    changed = (rng.randbytes(len(piece)), number[: len(piece)] + piece[8:], rng.choice(BAD_UNICODE) + piece)
    rest = b"" if rng.random() < 0.15 else data[end:]
    return data[:start] + rng.choice((*changed, b"", piece * 2, piece * 1000)) + rest


def change_text(data: bytes, rng: random.Random) -> bytes:
    """Replaces a word, a number or a bracket by other text, or by another one of the file."""
    tokens = list(re.finditer(rb'"[^"\n]*"|[\w.+-]+|[\[\]{},:;\n\t]', data))
    token = rng.choice(tokens)
    word = rng.choice(WORDS).encode()
    new = rng.choice((word, word, rng.choice(BAD_UNICODE), b"", rng.choice(tokens)[0], token[0] * 2))
    return data[: token.start()] + new + data[token.end() :]


def change_json(data: bytes, parse, rng: random.Random) -> bytes:
    """Replaces, removes, renames or swaps one value of a JSON or YAML file, or of a line of JSON lines."""
    lines = data.splitlines() if data.count(b"\n{") else [data]
    row = rng.randrange(len(lines))
    values = parse(lines[row])
    slots = list(list_slots(values))
    (container, key), (other, place) = rng.choice(slots), rng.choice(slots)
    value, kind = container[key], rng.choice(("replace", "replace", "swap", "remove", "rename"))
    similar = (value * 1000, value + 1, -value) if isinstance(value, int | float) else ([value], str(value))
    if kind == "remove":
        del container[key]
    elif kind == "rename" and isinstance(container, dict):
        container[rng.choice(("a", "", "../b", "0", "x" * 1000, *container))] = container.pop(key)
    else:
        container[key] = json.loads(json.dumps(other[place])) if kind == "swap" else rng.choice(VALUES + similar)
    lines[row] = json.dumps(values).encode()  # JSON is YAML
    return b"\n".join(lines)


def list_slots(values: Any) -> Iterable[tuple[Any, Any]]:
    """Yields each container and key of nested lists and dictionaries."""
    if isinstance(values, dict | list):
        for key in values if isinstance(values, dict) else range(len(values)):
            yield values, key
            yield from list_slots(values[key])


# --- reading ----------------------------------------------------------------------------------------------------


def find_defects(name: str, numbers: Iterable[int], seed: int = 1) -> int:
    """Reads mutated files of a format, and prints the defects. Returns 1 if there are any.

    The seed and the number determine a file. Each file is named before it is read, because it may end the process.
    """
    preparation.BLOCK_TOKENS, preparation.BATCH_CHARACTERS = 60, 100
    pretraining_plots.draw_training = lambda *arguments: None  # takes longer than reading
    torch.set_num_threads(1)
    gc.freeze()  # Trainer requests garbage collection
    os.environ[COMMAND] = "fuzz"  # messages name flags
    sys.stdout.reconfigure(errors="backslashreplace")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root:
        original, folder = Path(root, "original"), Path(root, "folder")
        folder.mkdir()
        write, patterns, read = FORMATS[name]
        write(folder)
        folder.rename(original)
        files = [file for pattern in patterns for file in sorted(original.glob(pattern))]
        files = [file.relative_to(original) for file in files if file.is_file() and file.suffix != ".py"]
        for file in files:  # what undamaged files load would otherwise seem to be taken by the first damaged file
            shutil.copytree(original, folder)
            read(folder, folder / file)
            shutil.rmtree(folder)
        for number in numbers:
            shutil.copytree(original, folder)
            rng = random.Random(f"{seed} {number}")
            file = rng.choice(files)
            (folder / file).write_bytes(mutate((original / file).read_bytes(), file.name, rng))
            print(f"\r{name} {number} {file}", end=" ", flush=True)
            outcome, detail = read_file(read, folder, folder / file)
            counts[outcome] += 1
            if outcome == "defect":
                print(detail)
            shutil.rmtree(folder)
    print(f"\r{name}:", *(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    return int(counts["defect"] > 0)


def read_file(read, folder: Path, file: Path) -> tuple[str, str]:
    """Returns "read", "refused" or "defect", and what is wrong."""
    outcome, memory, start = "read", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    signal.alarm(PATIENCE)
    try:
        with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
            read(folder, file)
    except REFUSALS as error:
        outcome, text = "refused", str(error)
        has_place = isinstance(error, OSError) or any(each in text for each in (file.name, str(file.parent), "--"))
        # A name in a mutated file can contain a line break, and changed settings are a table.
        if not has_place or (text.count("\n") > 2 and "has other settings" not in text):
            return "defect", f"{type(error).__name__}: {text}"
    except BaseException:
        return "defect", traceback.format_exc()
    finally:
        signal.alarm(0)
    seconds = time.process_time() - start
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    if seconds > SECONDS or megabytes > MEGABYTES:
        return "defect", f"{seconds:.0f} s, {megabytes:.0f} MB"
    return outcome, ""


def read_and_exit(name: str, numbers: Iterable[int], seed: int) -> None:
    sys.exit(find_defects(name, numbers, seed))


def main() -> int:
    """Reads files of each format in a process of its own. Returns how many formats have defects."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("formats", nargs="*", default=[*FORMATS])
    parser.add_argument("--files", type=int, default=3000, help="number of mutated files of each format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, help="read only this file")
    args = parser.parse_args()
    numbers = range(args.files) if args.number is None else [args.number]
    failed = 0
    for name in args.formats:
        process = get_context("fork").Process(target=read_and_exit, args=(name, numbers, args.seed))
        process.start()
        process.join()
        print(f"{name}: exit status {process.exitcode}")
        failed += process.exitcode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
