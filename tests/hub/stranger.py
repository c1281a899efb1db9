"""A process without SnugBERT opens what test_hub.py pushed and saved.

`python stranger.py FOLDER SENTENCES` writes its results to FOLDER, where the tests check them. HF_HOME has the pushed
repositories. There is no network.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from fake_hub import intercept_pushes
from peft import AutoPeftModelForSequenceClassification
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

HEADS = [
    "Model",
    "ForPreTraining",
    "ForMaskedLM",
    "ForNextSentencePrediction",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
]


def load(head: str, name: str | Path, **options):
    """Opens a model with the Auto class of a head. Its code is the repository's."""
    auto_class = getattr(transformers, f"AutoModel{head.removeprefix('Model')}")
    model = auto_class.from_pretrained(name, trust_remote_code=True, **options)
    assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
    return model


def outputs(model, tokenizer, sentences: list[str]) -> list[torch.Tensor]:
    """All outputs of a model for the sentences."""
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    if type(model).__name__.endswith("ForMultipleChoice"):
        inputs = {name: tensor[None] for name, tensor in inputs.items()}
    with torch.no_grad():
        return list(model.eval()(**inputs).to_tuple())


def fine_tune(model, tokenizer, sentences: list[str], folder: Path) -> None:
    args = TrainingArguments(
        str(folder / "run"), max_steps=2, learning_rate=1e-3, save_strategy="no", use_cpu=True, disable_tqdm=True
    )
    rows = [tokenizer(sentence) | {"labels": index % 3} for index, sentence in enumerate(sentences)]
    collator = DataCollatorWithPadding(tokenizer)
    trainer = Trainer(model, args, collator, rows, processing_class=tokenizer)
    trainer.train()
    trainer.save_model(str(folder / "fine-tuned"))


def main(folder: Path, sentences: list[str]) -> None:
    report, tensors = {}, {}
    for head in HEADS:
        tokenizer, model = (
            AutoTokenizer.from_pretrained(f"org/{head}", trust_remote_code=True),
            load(head, f"org/{head}"),
        )
        tensors[head] = outputs(model, tokenizer, sentences)
    report["tokenizer"] = f"{type(tokenizer).__module__}.{type(tokenizer).__name__}"
    report["other heads"] = [type(load(head, "org/ForMaskedLM")).__name__ for head in HEADS]
    try:
        load("Model", "org/poisoned")
    except RuntimeError as error:
        report["poisoned"] = str(error)

    model = load("ForSequenceClassification", "org/ForMaskedLM", num_labels=3)
    before = outputs(model, tokenizer, sentences)
    fine_tune(model, tokenizer, sentences, folder)
    tensors["fine-tuned"] = outputs(model, tokenizer, sentences)
    report["change"] = (tensors["fine-tuned"][0] - before[0]).abs().max().item()
    saved = [load(head, folder / "fine-tuned", ignore_mismatched_sizes=True) for head in HEADS]
    report["saved heads"] = [type(model).__name__ for model in saved]
    tensors["saved"] = outputs(saved[HEADS.index("ForSequenceClassification")], tokenizer, sentences)
    with intercept_pushes() as repositories:
        model.push_to_hub("stranger/fine-tuned")
    for name, content in repositories["stranger/fine-tuned"].items():
        (folder / "fine-tuned" / name).write_bytes(content)

    encoder = SentenceTransformer(str(folder / "encoder"), trust_remote_code=True)
    encoder.save_pretrained(str(folder / "passed-on"))  # with its code
    encoder = SentenceTransformer(str(folder / "passed-on"), trust_remote_code=True)
    adapted = AutoPeftModelForSequenceClassification.from_pretrained(folder / "adapter", trust_remote_code=True)
    load("ForPreTraining", folder / "detector").save_pretrained(folder / "detector-again")
    for model in (encoder[0].model, adapted.base_model.model):
        assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
    tensors["embeddings"] = [torch.from_numpy(encoder.encode(sentences))]
    tensors["adapted"] = outputs(adapted, tokenizer, sentences)
    tensors["detected"] = outputs(load("ForPreTraining", folder / "detector-again"), tokenizer, sentences)
    torch.save(tensors, folder / "tensors.pt")
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    sys.modules["snugbert"] = None  # any attempt to import the package raises ImportError
    main(Path(sys.argv[1]), sys.argv[2:])
