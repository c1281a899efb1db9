"""Held-out text: `snugbert pretrain`, stock BERT and single examples give the same scores."""

import json
import math
import random
import re

import pytest
import torch
import transformers
import yaml
from family_checkpoints import write_checkpoint
from parity import perturb
from pretraining_command import run

import snugbert
from snugbert.errors import InputError
from snugbert.evaluation.evaluation_arguments import HeldOutTextArguments
from snugbert.evaluation.held_out_text import score_text
from snugbert.reports.pretrained_card import PRETRAINING_HUB_METRICS
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.corpora import VALIDATION_SEED
from snugbert.trainers.pretraining.examples import PretrainingDataset
from snugbert_cli import main

WORDS = [f"{first}{second}" for first in "bdfgk" for second in "aeiou"]
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SIZE |= {"max_position_embeddings": 40}
LENGTH = 30


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with two texts, a tokenizer, and a model whose predictions depend on its input."""
    folder = tmp_path_factory.mktemp("held_out")
    rng = random.Random(0)
    for name, documents in (("train", 5), ("held_out", 30)):
        lines = []
        for _ in range(documents):
            for _ in range(rng.randint(2, 4)):
                sentences = (rng.choices(WORDS, k=rng.randint(2, 9)) for _ in range(2))
                lines.append(" ".join(" ".join(words).capitalize() + "." for words in sentences))
            lines.append("")
        (folder / f"{name}.txt").write_text("\n".join(lines))
    vocab = [*SPECIAL_TOKENS, ".", *WORDS]
    snugbert.SnugBertTokenizer({token: index for index, token in enumerate(vocab)}).save_pretrained(folder / "model")
    model = make(snugbert.SnugBertForPreTraining, snugbert.SnugBertConfig(vocab_size=len(vocab), **SIZE))
    model.save_pretrained(folder / "model")
    return folder


def make(model_class, config):
    """A model with random weights and biases."""
    torch.manual_seed(0)
    model = model_class(config).eval()
    perturb(model, 0.1)
    return model


def evaluate(files, tmp_path, model, **arguments):
    """Runs `snugbert evaluate`, and returns the scores on held-out text in `results.json`."""
    defaults = {"validation_file": files / "held_out.txt", "max_seq_length": LENGTH, "cache_dir": tmp_path / "cache"}
    arguments = defaults | {"model_name_or_path": model, "output_dir": tmp_path / "scores"} | arguments
    assert main(["evaluate", *(text for name, x in arguments.items() for text in (f"--{name}", str(x)))]) == 0
    return json.loads((tmp_path / "scores/results.json").read_text())["held_out_text"]


def score(model, tokenizer, files, **arguments):
    arguments = {"validation_file": [str(files / "held_out.txt")], "max_seq_length": LENGTH} | arguments
    return score_text(model, tokenizer, HeldOutTextArguments(**arguments), cache_dir=str(files / "cache"))


@pytest.mark.parametrize("head", ["ForPreTraining", "ForMaskedLM"])
def test_scores_equal_those_of_pretrain_and_of_stock_bert(head, files, tmp_path):
    """With pairs and with full sentences. The same digits as `snugbert pretrain`."""
    no_nsp = head == "ForMaskedLM"
    arguments = {"train_file": files / "train.txt", "validation_file": files / "held_out.txt", "no_nsp": no_nsp}
    arguments |= {"model_name_or_path": files / "model", "max_seq_length": LENGTH, "cache_dir": files / "cache"}
    assert run(arguments | {"output_dir": tmp_path / "pretrain", "do_eval": True, "use_cpu": True}) == 0
    expected = json.loads((tmp_path / "pretrain/eval_results.json").read_text())
    ours = evaluate(files, tmp_path, files / "model", train_file=files / "train.txt", no_nsp=no_nsp)
    assert ours.pop("seconds") > 0
    entries = yaml.safe_load((tmp_path / "scores/card_metadata.yaml").read_text())["model-index"][0]["results"]
    values = [metric["value"] for entry in entries for metric in entry["metrics"]]
    expected_values = [ours["metrics"][name] for name in PRETRAINING_HUB_METRICS if name in ours["metrics"]]
    assert values == pytest.approx(expected_values, rel=1e-5)
    assert (ours["objective"], ours["token_frequencies"]) == ("mlm" if no_nsp else "nsp", "training text")
    names = ["mlm_loss", "mlm_accuracy"] + ([] if no_nsp else ["nsp_loss", "nsp_accuracy"])
    assert set(ours["metrics"]) == {*names, "bits_per_character"}
    for name in names:
        assert ours["metrics"][name] == expected[f"eval_{name}"]
        assert name == "nsp_loss" or ours["baselines"][name] == expected[f"eval_unigram_{name}"]

    tokenizer = snugbert.SnugBertTokenizer.from_pretrained(files / "model")
    stock = getattr(transformers, f"Bert{head}").from_pretrained(files / "model")
    theirs = score(stock, tokenizer, files, train_file=[str(files / "train.txt")])
    assert theirs.pop("metrics") == pytest.approx(ours["metrics"], rel=1e-5)
    assert theirs.items() <= ours.items()
    # Without training text, the held-out text itself gives the frequencies.
    alone = score(stock, tokenizer, files, max_eval_samples=9)
    assert alone["baselines"]["mlm_loss"] < ours["baselines"]["mlm_loss"] and alone["examples"] == 9
    stock.config.sentence_order = True  # as `snugbert pretrain --objective mlm+order` stores it
    assert score(stock, tokenizer, files)["objective"] == ("mlm" if no_nsp else "sop")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["roberta", "electra", "bert", "fnet"])
def test_other_models(kind, files, tmp_path):
    """Padding changes nothing: single examples, with the loss that the model computes, give the same scores."""
    if kind == "fnet":  # ignores the attention mask
        tokenizer = snugbert.SnugBertTokenizer.from_pretrained(files / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        config = transformers.FNetConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **SIZE)
        make(transformers.FNetForMaskedLM, config).save_pretrained(tmp_path / "model")
    else:
        write_checkpoint(tmp_path / "model", kind)
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    results = evaluate(files, tmp_path, tmp_path / "model")
    assert results["objective"] == "mlm" and "nsp_accuracy" not in results["baselines"]
    lines = [line for line in (files / "held_out.txt").read_text().splitlines() if line]
    assert results["tokens"] == sum(len(tokenizer(line, add_special_tokens=False).input_ids) for line in lines)
    assert results["characters"] == sum(map(len, lines))
    assert results["unknown_tokens"] == 0

    (folder,) = (tmp_path / "cache/snugbert").iterdir()
    corpus = snugbert.open_corpus(folder, tokenizer)
    dataset = PretrainingDataset(corpus, tokenizer, LENGTH, "mlm", seed=VALIDATION_SEED)
    assert results["examples"] == len(dataset)
    collate, losses, counts = SnugBertDataCollatorForPretraining(tokenizer), [], []
    for index in range(len(dataset)):
        batch = collate([dataset[index]])
        counts.append((batch["labels"] >= 0).sum().item())
        losses.append(model(input_ids=batch["input_ids"], labels=batch["labels"]).loss.item() * counts[-1])
    assert results["metrics"]["mlm_loss"] == pytest.approx(sum(losses) / sum(counts), rel=1e-5)


def test_bits_per_character_of_a_uniform_model(files, tmp_path):
    """log2(vocabulary) x tokens / characters, whatever the tokenizer."""
    (tmp_path / "text.jsonl").write_text('{"text": "ba da. \\n\\n fa  zz."}\n' * 3)  # 6 + 7 characters
    for tokens in ([*SPECIAL_TOKENS, ".", *WORDS], [*SPECIAL_TOKENS, ".", *"abdf", *(f"##{c}" for c in "abdf")]):
        tokenizer = snugbert.SnugBertTokenizer({token: index for index, token in enumerate(tokens)})
        model = snugbert.SnugBertForMaskedLM(snugbert.SnugBertConfig(vocab_size=len(tokens), **SIZE))
        torch.nn.init.zeros_(model.get_output_embeddings().weight)
        results = score(model, tokenizer, tmp_path, validation_file=[str(tmp_path / "text.jsonl")])
        num_tokens = 3 * (6 if "ba" in tokens else 9)
        assert (results["tokens"], results["characters"]) == (num_tokens, 39)
        assert results["unknown_tokens"] == pytest.approx(3 / num_tokens)
        assert results["metrics"]["mlm_loss"] == pytest.approx(math.log(len(tokens)))
        assert results["metrics"]["bits_per_character"] == pytest.approx(math.log2(len(tokens)) * num_tokens / 39)
        nats = results["baselines"]["mlm_loss"]
        assert results["baselines"]["bits_per_character"] == pytest.approx(nats / math.log(2) * num_tokens / 39)


def test_errors(files):
    tokenizer = snugbert.SnugBertTokenizer.from_pretrained(files / "model")
    model = snugbert.SnugBertForMaskedLM.from_pretrained(files / "model")
    for arguments, words in [
        ({"max_seq_length": 41}, "--max_seq_length must be between 5 and the limit (40)."),
        ({"sentence_order": True}, "--sentence_order: this model does not predict the order of segments"),
        ({"train_file": ["missing.txt"]}, "missing.txt: no such file"),
    ]:
        with pytest.raises(InputError, match=re.escape(words)):
            score(model, tokenizer, files, **arguments)
    torch.nn.init.constant_(model.get_output_embeddings().bias, torch.nan)
    with pytest.raises(InputError, match="the loss is NaN or infinite"):
        score(model, tokenizer, files)
