"""Users who have installed SnugBERT.

`python owner.py FOLDER` runs two parts. Their results go to FOLDER, where the tests check them.

- push: pushes every head, a model in training, branches, a private model, and a repository whose code fails.
- open: has no token. Opens a repository whose code fails, and calls commands, first with missing repositories, then
  without a network.
"""

import errno
import hashlib
import io
import os
import socket
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path

import torch
import transformers
from huggingface_hub import CommitOperationAdd, HfApi, close_session
from stranger import AUTO_CLASSES, PIPELINES, answer, fine_tune, outputs, run_parts
from transformers import pipeline

import snugbert
from snugbert_cli import main

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a the cat dog sat on mat ##s".split()
TOKENIZER = snugbert.SnugBertTokenizer({word: index for index, word in enumerate(WORDS)})


def new_model(auto_class: str, seed: int = 0):
    """A small model with random weights."""
    torch.manual_seed(seed)
    config = snugbert.SnugBertConfig(
        vocab_size=len(WORDS),
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=40,
        num_labels=3,
    )
    model = getattr(transformers, auto_class).from_config(config)
    with torch.no_grad():  # initial weights are so small that every sentence gives nearly the same output
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def push(folder: Path) -> tuple[dict, dict]:
    report, tensors, models = {"answers": {}}, {}, {}
    for auto_class in AUTO_CLASSES:
        models[auto_class] = model = new_model(auto_class)
        # Only one model is sharded.
        model.push_to_hub(f"org/{auto_class}", max_shard_size="100KB" if auto_class == "AutoModel" else "50GB")
        TOKENIZER.push_to_hub(f"org/{auto_class}")
        tensors[auto_class] = outputs(model, TOKENIZER)
    for task, (auto_class, _) in PIPELINES.items():
        pipe = pipeline(task, model=models[auto_class], tokenizer=TOKENIZER)
        report["answers"][task], tensors[task] = answer(task, pipe)

    model = new_model("AutoModelForSequenceClassification")
    fine_tune(model, TOKENIZER, "org/trained", folder / "trained")
    tensors["trained"] = outputs(model, TOKENIZER)

    api = HfApi()
    first, branch, second = (new_model("AutoModelForMaskedLM", seed) for seed in (1, 2, 3))
    report["first"] = first.push_to_hub("org/history").oid
    api.create_tag("org/history", tag="v1")
    branch.push_to_hub("org/history", revision="trials/one")
    second.push_to_hub("org/history")
    file = Path(snugbert.__file__).parent / "modeling_snugbert.py"
    changed = file.read_bytes() + b"\nSECOND_EDITION = True\n"
    api.upload_file(path_or_fileobj=changed, path_in_repo=file.name, repo_id="org/history")
    for case, model in (("first", first), ("branch", branch), ("second", second)):
        tensors[case] = outputs(model, TOKENIZER)

    first.push_to_hub("org/private", private=True)
    push_failing_code(api, models["AutoModelForMaskedLM"])
    return report, tensors


def push_failing_code(api: HfApi, model) -> None:
    """Pushes a model whose code fails."""
    model.push_to_hub("org/poisoned"), TOKENIZER.push_to_hub("org/poisoned")
    poison = b"raise RuntimeError('remote code runs')\n"
    files = Path(snugbert.__file__).parent.glob("*_snugbert.py")
    operations = [CommitOperationAdd(file.name, poison) for file in files]
    api.create_commit("org/poisoned", operations, commit_message="Code that must not run")


def open_installed(folder: Path) -> tuple[dict, dict]:
    (folder / "data.csv").write_text("sentence,label\n" + "the cat sat,yes\na dog,no\nthe mat,maybe\n" * 3)
    report, tensors = {"modules": {}}, {}
    for trust in (None, True, False):
        options = {"trust_remote_code": trust}
        things = [
            getattr(transformers, auto_class).from_pretrained("org/poisoned", **options) for auto_class in AUTO_CLASSES
        ]
        things.append(transformers.AutoConfig.from_pretrained("org/poisoned", **options))
        things.append(transformers.AutoTokenizer.from_pretrained("org/poisoned", **options))
        pipe = pipeline("fill-mask", "org/poisoned", **options)
        things += [pipe.model, pipe.tokenizer]
        report["modules"][str(trust)] = sorted({type(thing).__module__ for thing in things})
        tensors[str(trust)] = outputs(pipe.model, pipe.tokenizer)
    report["remote"] = [name for name in sys.modules if name.startswith("transformers_modules")]

    local = folder / "local"
    model = new_model("AutoModelForSequenceClassification")
    model.save_pretrained(local), TOKENIZER.save_pretrained(local), TOKENIZER.save_pretrained(folder / "run")
    model.save_pretrained(folder / "run")
    model.save_pretrained(folder / "run" / "checkpoint-1")
    before = state(folder)
    report["commands"] = {
        "no such repository": glue(folder, "org/none"),
        "no token": glue(folder, "org/private"),
        "no tokenizer": glue(folder, "org/private", "--token", "hf_owner"),
        "push without a token": glue(folder, str(local), "--push_to_hub", "--hub_model_id", "org/new"),
    }
    report["watched"], report["changed"] = len(before), changed(before, state(folder))
    cut_report, cut_tensors = cut(folder)
    return report | {"cut": cut_report}, tensors | cut_tensors


def refuse_connection(*args, **kwargs):
    raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def cut(folder: Path) -> tuple[dict, dict]:
    local = str(folder / "local")
    before = state(folder)
    close_session()  # and its open connections
    socket.socket.connect = socket.create_connection = refuse_connection
    time.sleep = lambda seconds: None  # the client tries five times per file, and would wait 23 seconds in between
    report = {
        "commands": {
            "no network": glue(folder, "org/none"),
            "push without a network": glue(
                folder, local, "--push_to_hub", "--hub_model_id", "org/new", "--hub_token", "hf_owner"
            ),
        }
    }
    # A model that was loaded before opens from the cache.
    cached = transformers.AutoModelForMaskedLM.from_pretrained("org/poisoned")
    report["changed"] = changed(before, state(folder))
    return report, {"cached": outputs(cached, TOKENIZER)}


def glue(folder: Path, model: str, *argv: str) -> list:
    """Returns exit status and stderr of `snugbert glue`. Its output folder holds a run that must not be lost."""
    words = io.StringIO()
    files = ["--train_file", str(folder / "data.csv"), "--output_dir", str(folder / "run"), "--overwrite_output_dir"]
    with redirect_stderr(words):
        status = main(["glue", "--model_name_or_path", model, *files, "--max_steps", "1", "--use_cpu", *argv])
    return [status, words.getvalue()]


def state(folder: Path) -> dict[str, str]:
    """The models in a folder, and the files of the Hub's cache: path -> digest of the content."""
    parts = (folder / "local", folder / "run", Path(os.environ["HF_HOME"]) / "hub")
    files = (path for part in parts for path in part.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The files that are missing or have changed."""
    return [path for path, digest in before.items() if after.get(path) != digest]


if __name__ == "__main__":
    run_parts(Path(sys.argv[1]), push=(push, "hf_owner"), open=(open_installed, None))
