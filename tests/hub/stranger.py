"""A process without SnugBERT opens what test_hub.py pushed and saved.

`python stranger.py FOLDER HEADS SENTENCES` writes its results to FOLDER, where the tests check them. HF_HOME has the
pushed repositories. There is no network.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from fake_hub import intercept_pushes
from peft import AutoPeftModelForSequenceClassification
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer


def load(head: str, name: str | Path, **options):
    """Opens a model with the Auto class of a head. Its code is the repository's, run by transformers."""
    auto_class = getattr(transformers, f"AutoModel{head.removeprefix('Model')}")
    model = auto_class.from_pretrained(name, trust_remote_code=True, **options)
    assert_remote(model, model.config)
    return model


def assert_remote(*parts) -> None:
    for part in parts:
        assert type(part).__module__.startswith("transformers_modules."), type(part).__module__


def outputs(model, tokenizer, sentences: list[str]) -> list[torch.Tensor]:
    """All outputs of a model for the sentences."""
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    if type(model).__name__.endswith("ForMultipleChoice"):
        inputs = {name: tensor[None] for name, tensor in inputs.items()}
    with torch.no_grad():
        return list(model.eval()(**inputs).to_tuple())


def main(folder: Path, heads: list[str], sentences: list[str]) -> None:
    report, tensors = {}, {}
    for head in heads:
        model = load(head, f"org/{head}")
        tokenizer = AutoTokenizer.from_pretrained(f"org/{head}", trust_remote_code=True)
        assert_remote(tokenizer)
        tensors[head] = outputs(model, tokenizer, sentences)
    report["other heads"] = [type(load(head, "org/ForMaskedLM")).__name__ for head in heads]
    try:
        load("Model", "org/poisoned")
    except RuntimeError as error:
        report["poisoned"] = str(error)

    model = load("ForSequenceClassification", "org/ForMaskedLM", num_labels=3)
    tensors["changed"] = outputs(model, tokenizer, sentences)
    with intercept_pushes() as repositories:
        model.push_to_hub("stranger/changed")
        tokenizer.push_to_hub("stranger/changed")
    (folder / "changed").mkdir()
    for name, content in repositories["stranger/changed"].items():
        (folder / "changed" / name).write_bytes(content)
    saved = [load(head, folder / "changed", ignore_mismatched_sizes=True) for head in heads]
    report["saved heads"] = [type(model).__name__ for model in saved]
    tensors["saved"] = outputs(saved[heads.index("ForSequenceClassification")], tokenizer, sentences)

    encoder = SentenceTransformer(str(folder / "encoder"), trust_remote_code=True)
    encoder.save_pretrained(str(folder / "passed-on"))  # with its code
    encoder = SentenceTransformer(str(folder / "passed-on"), trust_remote_code=True)
    adapted = AutoPeftModelForSequenceClassification.from_pretrained(folder / "adapter", trust_remote_code=True)
    load("ForPreTraining", folder / "detector").save_pretrained(folder / "detector-again")
    assert_remote(encoder[0].model, adapted.base_model.model)
    tensors["embeddings"] = [torch.from_numpy(encoder.encode(sentences))]
    tensors["adapted"] = outputs(adapted, tokenizer, sentences)
    tensors["detected"] = outputs(load("ForPreTraining", folder / "detector-again"), tokenizer, sentences)
    torch.save(tensors, folder / "tensors.pt")
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    sys.modules["snugbert"] = None  # any attempt to import the package raises ImportError
    main(Path(sys.argv[1]), sys.argv[2].split(), sys.argv[3:])
