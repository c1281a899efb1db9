"""Users without SnugBERT. They have transformers, a Hub and the names of repositories.

`python stranger.py FOLDER` runs two parts. Their results go to FOLDER, where the tests check them.

- use: opens everything that owner.py pushed, fine-tunes, and pushes the result.
- again: has no token. Opens that result, older revisions, and a private repository.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments, pipeline

AUTO_CLASSES = [
    "AutoModel",
    "AutoModelForPreTraining",
    "AutoModelForMaskedLM",
    "AutoModelForNextSentencePrediction",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForQuestionAnswering",
    "AutoModelForMultipleChoice",
]
# Pipeline -> its model and a text.
PIPELINES = {
    "fill-mask": ("AutoModelForMaskedLM", "the [MASK] sat on the mat"),
    "text-classification": ("AutoModelForSequenceClassification", "the cats sat"),
    "token-classification": ("AutoModelForTokenClassification", "the cats sat on the mat"),
    "feature-extraction": ("AutoModel", "the cats sat on the mat"),
}
SENTENCES = ["the cat sat on the mat", "the dogs sat", "a cat", "the mat sat on a dog"]
TRUST = {"trust_remote_code": True}


def load(auto_class: str, name: str, **options):
    return getattr(transformers, auto_class).from_pretrained(name, **TRUST | options)


def outputs(model, tokenizer) -> list[torch.Tensor]:
    """All outputs of a model for the sentences."""
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    if type(model).__name__.endswith("ForMultipleChoice"):
        inputs = {name: tensor[None] for name, tensor in inputs.items()}
    with torch.no_grad():
        return list(model.eval()(**inputs).to_tuple())


def answer(task: str, pipe) -> tuple[list[list[str]], torch.Tensor]:
    """The output of a pipeline for its text: words and numbers."""
    found = pipe(PIPELINES[task][1])
    if task == "feature-extraction":
        return [], torch.tensor(found)
    words = [[value for value in entry.values() if isinstance(value, str)] for entry in found]
    return words, torch.tensor([float(entry["score"]) for entry in found])


def fine_tune(model, tokenizer, name: str, folder: Path) -> Trainer:
    """Trains two steps with transformers' Trainer, which pushes after each step and at the end."""
    torch.manual_seed(0)
    trainer = Trainer(
        model,
        TrainingArguments(
            str(folder),
            max_steps=2,
            save_steps=1,
            save_only_model=True,
            learning_rate=1e-3,
            per_device_train_batch_size=2,
            push_to_hub=True,
            hub_model_id=name,
            hub_strategy="every_save",
            use_cpu=True,
            dataloader_pin_memory=False,
            disable_tqdm=True,
        ),
        train_dataset=[tokenizer(sentence) | {"labels": index % 3} for index, sentence in enumerate(SENTENCES)],
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    trainer.train()
    trainer.push_to_hub()
    return trainer


def refusal(action, *args, **kwargs) -> str:
    """The error that `action` raises, or an empty string."""
    try:
        action(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def code(model) -> list[str]:
    """The commit of the code that the model runs, from the name of its module, and the code itself."""
    module = sys.modules[type(model).__module__]
    return [module.__name__.split(".")[-2], Path(module.__file__).read_text("utf-8")]


def use(folder: Path) -> tuple[dict, dict]:
    report, tensors = {"classes": {}, "others": {}, "answers": {}}, {}
    report["import snugbert"] = refusal(importlib.import_module, "snugbert")
    for auto_class in AUTO_CLASSES:
        name = f"org/{auto_class}"
        tokenizer, model = AutoTokenizer.from_pretrained(name, **TRUST), load(auto_class, name)
        tensors[auto_class] = outputs(model, tokenizer)
        report["classes"][auto_class] = [
            f"{type(thing).__module__}.{type(thing).__name__}" for thing in (model, tokenizer)
        ]
        report["others"][auto_class] = type(load(auto_class, "org/AutoModelForMaskedLM")).__name__
    for task, (auto_class, _) in PIPELINES.items():
        report["answers"][task], tensors[task] = answer(task, pipeline(task, f"org/{auto_class}", **TRUST))
    tensors["trained"] = outputs(
        load("AutoModelForSequenceClassification", "org/trained"),
        AutoTokenizer.from_pretrained("org/trained", **TRUST),
    )
    report["no trust"] = refusal(load, "AutoModel", "org/AutoModel", trust_remote_code=False)

    tokenizer = AutoTokenizer.from_pretrained("org/AutoModelForMaskedLM", **TRUST)
    model = load("AutoModelForSequenceClassification", "org/AutoModelForMaskedLM", num_labels=3)
    tensors["before"] = outputs(model, tokenizer)
    trainer = fine_tune(model, tokenizer, "stranger/fine-tuned", folder / "fine-tuned")
    tensors["fine-tuned"] = outputs(model, tokenizer)
    trainer.save_model(str(folder / "saved"))
    saved = {
        auto_class: load(auto_class, folder / "saved", ignore_mismatched_sizes=True) for auto_class in AUTO_CLASSES
    }
    report["saved"] = {auto_class: type(model).__name__ for auto_class, model in saved.items()}
    tensors["saved"] = outputs(saved["AutoModelForSequenceClassification"], tokenizer)
    model.push_to_hub("stranger/passed-on"), tokenizer.push_to_hub("stranger/passed-on")
    return report, tensors


def again(folder: Path) -> tuple[dict, dict]:
    report, tensors = {"others": {}, "code": {}, "refusals": {}}, {}
    for name in ("stranger/fine-tuned", "stranger/passed-on"):
        tokenizer = AutoTokenizer.from_pretrained(name, **TRUST)
        tensors[name] = outputs(load("AutoModelForSequenceClassification", name), tokenizer)
        opened = [load(auto_class, name, ignore_mismatched_sizes=True) for auto_class in AUTO_CLASSES]
        report["others"][name] = [type(model).__name__ for model in opened]
        report["others"][name] += [type(AutoConfig.from_pretrained(name, **TRUST)).__name__, type(tokenizer).__name__]

    first = json.loads((folder / "push.json").read_text())["first"]
    for case, options in {
        "main": {},
        "tag": {"revision": "v1"},
        "commit": {"revision": first},
        "branch": {"revision": "trials/one"},
        "code of a commit": {"code_revision": first},
    }.items():
        model = load("AutoModelForMaskedLM", "org/history", **options)
        tensors[case], report["code"][case] = outputs(model, tokenizer), code(model)

    report["refusals"] = {
        "private, no token": refusal(load, "AutoModel", "org/private"),
        "poisoned": refusal(load, "AutoModel", "org/poisoned"),
    }
    tensors["private"] = outputs(load("AutoModelForMaskedLM", "org/private", token="hf_owner"), tokenizer)
    return report, tensors


def run_parts(folder: Path, **parts: tuple[Callable[[Path], tuple[dict, dict]], str | None]) -> None:
    """Runs functions one after another, each with its token or none. Writes the report and the tensors they return.

    Each part is a fork of this process, which has only imported packages. The imports take half of a part's time.
    """
    for name, (function, token) in parts.items():
        if os.fork() == 0:
            if token is not None:
                os.environ["HF_TOKEN"] = token
            report, tensors = function(folder)
            torch.save(tensors, folder / f"{name}.pt")
            (folder / f"{name}.json").write_text(json.dumps(report))
            return
        if status := os.waitstatus_to_exitcode(os.wait()[1]):
            sys.exit(status)


if __name__ == "__main__":
    run_parts(Path(sys.argv[1]), use=(use, "hf_stranger"), again=(again, None))
