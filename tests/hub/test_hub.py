"""Every head is pushed, and opened in a process without snugbert. The other tools work there, too."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from fake_hub import Repositories, intercept_pushes, write_cache
from hub.stranger import outputs
from parity import HEADS, ours_and_stock
from peft import LoraConfig, get_peft_model
from sentence_transformers import SentenceTransformer

import snugbert

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread"),
    # PEFT reads an attribute that transformers 5.23 renamed.
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"),
]

HERE = Path(__file__).parent
CODE = {file.name: file.read_bytes() for file in Path(snugbert.__file__).parent.glob("*_snugbert.py")}
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a the cat dog sat on mat ##s".split()
SENTENCES = ["the cat sat on the mat", "the dogs sat", "a cat", "the mat sat on a dog"]
TOKENIZER = snugbert.SnugBertTokenizer({word: index for index, word in enumerate(WORDS)})


def push_all() -> tuple[Repositories, dict[str, list[torch.Tensor]]]:
    """Pushes every head, and a repository whose code fails."""
    expected = {}
    with intercept_pushes() as repositories:
        for head in HEADS:
            ours, _ = ours_and_stock(head)
            ours.push_to_hub(f"org/{head}", max_shard_size="100KB" if head == "Model" else "50GB")
            TOKENIZER.push_to_hub(f"org/{head}")
            expected[head] = outputs(ours, TOKENIZER, SENTENCES)
    poison = dict.fromkeys(CODE, b"raise RuntimeError('remote code runs')\n")
    repositories["org/poisoned"] = repositories["org/ForMaskedLM"] | poison
    return repositories, expected


def save_for_tools(folder: Path) -> dict[str, list[torch.Tensor]]:
    """Saves models for sentence-transformers and PEFT, and an ELECTRA. Returns their results."""
    classifier, _ = ours_and_stock("ForSequenceClassification")
    # ELECTRA's discriminator and RoBERTa's positions. AutoModelForPreTraining returns the class of the folder.
    fields = classifier.config.to_dict() | {"embedding_size": 16, "position_embedding_type": "after_padding"}
    detector = snugbert.SnugBertForReplacedTokenDetection(snugbert.SnugBertConfig.from_dict(fields))
    for name, model in (("classifier", classifier), ("detector", detector), ("plain", ours_and_stock("Model")[0])):
        model.save_pretrained(folder / name)
        TOKENIZER.save_pretrained(folder / name)
    encoder = SentenceTransformer(str(folder / "plain"))
    encoder.save_pretrained(str(folder / "encoder"))
    base = snugbert.SnugBertForSequenceClassification.from_pretrained(folder / "classifier")
    config = LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], init_lora_weights=False)
    adapted = get_peft_model(base, config)
    adapted.save_pretrained(folder / "adapter")
    embeddings = torch.from_numpy(encoder.encode(SENTENCES))
    return {
        "embeddings": [embeddings],
        "detected": outputs(detector, TOKENIZER, SENTENCES),
        "adapted": outputs(adapted, TOKENIZER, SENTENCES),
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> SimpleNamespace:
    """What was pushed and saved, and the results of the process without snugbert."""
    folder = tmp_path_factory.mktemp("world")
    repositories, expected = push_all()
    write_cache(repositories, folder / "home/hub")
    expected |= save_for_tools(folder)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(HERE.parent / "helpers"),
        "HOME": str(folder / "home"),
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, HERE / "stranger.py", folder, " ".join(HEADS), *SENTENCES]
    process = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert process.returncode == 0, process.stderr[-5000:]
    return SimpleNamespace(
        folder=folder,
        repositories=repositories,
        expected=expected,
        tensors=torch.load(folder / "tensors.pt", weights_only=True),
        report=json.loads((folder / "report.json").read_text()),
    )


def assert_same(tensors, expected):
    assert len(tensors) == len(expected) > 0
    for tensor, other in zip(tensors, expected, strict=True):
        torch.testing.assert_close(tensor, other, atol=2e-6, rtol=0)


@pytest.mark.parametrize("head", HEADS)
def test_a_loaded_head_equals_the_pushed_one(head, world):
    assert_same(world.tensors[head], world.expected[head])
    files = world.repositories[f"org/{head}"]
    assert {"tokenizer.json", "tokenizer_config.json", "README.md"} <= files.keys()
    assert {name: content for name, content in files.items() if name.endswith(".py")} == CODE
    assert ("model-00002-of-00004.safetensors" in files) == (head == "Model")
    config = json.loads(files["config.json"])
    assert (config["model_type"], config["architectures"]) == ("snugbert", [f"SnugBert{head}"])


def test_all_heads_load_from_the_repository_of_another(world):
    """Also from a model that was pushed without snugbert."""
    names = [f"SnugBert{head}" for head in HEADS]
    assert world.report["other heads"] == world.report["saved heads"] == names
    assert_same(world.tensors["saved"], world.tensors["changed"])
    pushed = world.folder / "changed"
    assert {file.name: file.read_bytes() for file in pushed.glob("*.py")} == CODE
    assert "# stranger/changed" in (pushed / "README.md").read_text()
    for file in ("config.json", "tokenizer_config.json"):
        source = json.loads(world.repositories["org/ForMaskedLM"][file])
        assert json.loads((pushed / file).read_text())["auto_map"] == source["auto_map"]


@pytest.mark.parametrize("tool", ["embeddings", "adapted", "detected"])
def test_tools_give_the_same_results(tool, world):
    assert_same(world.tensors[tool], world.expected[tool])


def test_installed_classes_are_used_and_no_code_of_the_repository_runs(world):
    assert world.report["poisoned"] == "remote code runs"  # without snugbert
    options = {"trust_remote_code": True, "cache_dir": world.folder / "home/hub"}
    auto_classes = ["AutoConfig", "AutoTokenizer", *(f"AutoModel{head.removeprefix('Model')}" for head in HEADS)]
    for name in auto_classes:
        loaded = getattr(transformers, name).from_pretrained("org/poisoned", **options)
        assert type(loaded).__module__.startswith("snugbert."), name
        assert type(loaded).__name__ == f"SnugBert{name.removeprefix('Auto').replace('ModelFor', 'For')}"
