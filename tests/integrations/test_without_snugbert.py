"""The same tools in a process where `import snugbert` fails. The model folders contain the code."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from sentence_transformers import CrossEncoder, SentenceTransformer

import snugbert

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread"),
    # PEFT reads an attribute that transformers 5.23 renamed.
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"),
]
TEXTS = ["A plane is taking off.", "A man plays a very large flute, and nobody listens.", "Hi."]

# A script that uses only the tools and the folder that it gets.
STRANGER = """
    import sys
    sys.modules["snugbert"] = None  # any attempt to import the package raises ImportError
    import numpy as np, torch, transformers
    from pathlib import Path
    from peft import AutoPeftModelForSequenceClassification
    from sentence_transformers import CrossEncoder, SentenceTransformer
    folder, texts = Path(sys.argv[1]), sys.argv[2:]
    trust = {"trust_remote_code": True}
    encoder = SentenceTransformer(str(folder / "encoder"), **trust)
    encoder.save_pretrained(str(folder / "passed_on"))  # with its code
    encoder = SentenceTransformer(str(folder / "passed_on"), **trust)
    ranker = CrossEncoder(str(folder / "classifier"), **trust)
    inputs = ranker.tokenizer(texts, padding=True, return_tensors="pt")
    adapted = AutoPeftModelForSequenceClassification.from_pretrained(folder / "adapter", **trust)
    offloaded = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder / "classifier", device_map={"": "disk"}, **trust
    )
    detector = transformers.AutoModelForPreTraining.from_pretrained(folder / "detector", **trust)
    detector.save_pretrained(folder / "detector-again")
    detector = transformers.AutoModelForPreTraining.from_pretrained(folder / "detector-again", **trust)
    for model in (encoder[0].model, ranker[0].model, adapted.base_model.model, offloaded, detector):
        assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
    with torch.inference_mode():
        np.savez(
            folder / "results.npz",
            embeddings=encoder.encode(texts),
            scores=ranker.predict([(text, texts[0]) for text in texts]),
            adapted=adapted.eval()(**inputs).logits,
            offloaded=offloaded(**inputs).logits,
            detected=detector(**inputs).logits,
        )
"""


def test_the_tools_work_without_snugbert(checkpoints, tmp_path):
    base = str(checkpoints["ours"] / "my-snugbert")
    encoder, ranker = SentenceTransformer(base), CrossEncoder(base)
    encoder.save_pretrained(str(tmp_path / "encoder")), ranker.save_pretrained(str(tmp_path / "classifier"))
    classifier = snugbert.SnugBertForSequenceClassification.from_pretrained(tmp_path / "classifier")
    inputs = ranker.tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        expected = {
            "embeddings": encoder.encode(TEXTS),
            "scores": ranker.predict([(text, TEXTS[0]) for text in TEXTS]),
            "offloaded": classifier(**inputs).logits,
        }
    # ELECTRA's discriminator and RoBERTa's positions. AutoModelForPreTraining returns the class of the folder.
    fields = {"hidden_size": 32, "num_attention_heads": 2, "embedding_size": 16, "num_hidden_layers": 1}
    detector = snugbert.SnugBertForReplacedTokenDetection(
        snugbert.SnugBertConfig(**fields, position_embedding_type="after_padding")
    )
    detector.save_pretrained(tmp_path / "detector")
    with torch.inference_mode():
        expected["detected"] = detector.eval()(**inputs).logits
    config = LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], init_lora_weights=False)
    adapted = get_peft_model(classifier, config).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    with torch.inference_mode():
        expected["adapted"] = adapted(**inputs).logits

    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STRANGER), tmp_path, *TEXTS],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    results = np.load(tmp_path / "results.npz")
    assert np.abs(results["adapted"] - results["offloaded"]).max() > 0.01
    for name, values in expected.items():
        np.testing.assert_allclose(results[name], values, atol=2e-5, err_msg=name)
