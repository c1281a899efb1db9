"""Any masked language model of transformers loads, and predicts single tokens without computing the other logits."""

import json
import re

import pytest
import torch
import transformers
from masked_models import ARCHITECTURES, SIZE, make_model, make_tokenizer

from snugbert import SnugBertConfig, SnugBertForMaskedLM
from snugbert.cli.model_arguments import ModelArguments
from snugbert.errors import InputError
from snugbert.evaluation.masked_models import load_masked_model, predict_tokens
from snugbert.families.loading import max_tokens


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_saved_model_predicts_the_same_tokens(architecture, tmp_path):
    model, tokenizer = make_model(architecture)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded, _ = load_masked_model(ModelArguments(model_name_or_path=str(tmp_path)))
    in_family = architecture in ("bert", "roberta", "electra")
    assert isinstance(loaded, SnugBertForMaskedLM if in_family else type(model)) and not loaded.training
    longest = max_tokens(loaded, tokenizer)
    assert longest == {"roberta": 64, "distilbert": 512}.get(architecture, 66)  # RoBERTa reserves two positions
    predict_tokens(model, torch.full((1, longest), 7), torch.tensor([1]))
    input_ids = torch.randint(5, len(tokenizer), (4, 7))
    positions = torch.tensor([1, 5, 3, 1])
    shapes = []
    loaded.get_output_embeddings().register_forward_hook(lambda _, inputs, output: shapes.append(output.shape[:-1]))
    with torch.no_grad():
        expected = model(input_ids=input_ids).logits[torch.arange(4), positions]
    torch.testing.assert_close(predict_tokens(loaded, input_ids, positions), expected)
    assert shapes[0].numel() == 4
    loaded.get_output_embeddings = lambda: None  # a model whose projection cannot be changed
    torch.testing.assert_close(predict_tokens(loaded, input_ids, positions), expected)
    with torch.no_grad():  # a later call computes all logits again
        assert loaded(input_ids=input_ids).logits.shape[:2] == (4, 7)


@pytest.mark.parametrize("architecture", ["bert", "deberta-v2"])
def test_configuration_flags_apply_to_all_models(architecture, tmp_path):
    for part in make_model(architecture):
        part.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_dropout_prob": 0, "eos_token_id": 0}))

    def load(overrides):
        args = ModelArguments(model_name_or_path=str(tmp_path), config_overrides=overrides)
        args.attn_implementation = "eager"
        return load_masked_model(args)[0].config

    config = load("layer_norm_eps=0.5,hidden_dropout_prob=0.1,eos_token_id=-1")
    assert config._attn_implementation == "eager" and type(config.eos_token_id) is int
    assert (config.layer_norm_eps, config.hidden_dropout_prob) == (0.5, 0.1)
    for overrides, reason in (
        ("unknown=1", "with unknown=1: key unknown isn't"),
        ("layer_norm_eps", "expected name=value, found 'layer_norm_eps'"),
    ):
        with pytest.raises(InputError, match=reason):
            load(overrides)


def test_relative_positions_leave_the_longest_input_to_the_tokenizer():
    relative = {"position_embedding_type": "relative", "position_buckets": 8}
    tokenizer = make_tokenizer("bert")
    model = SnugBertForMaskedLM(SnugBertConfig(vocab_size=len(tokenizer), **SIZE, **relative)).eval()
    for length in (20, 512):
        tokenizer.model_max_length = length
        assert max_tokens(model, tokenizer) == length
        predict_tokens(model, torch.full((1, length), 7), torch.tensor([length - 1]))


def test_models_that_cannot_be_scored(tmp_path, minilm):
    for name, model_class, config in (
        ("discriminator", transformers.ElectraForPreTraining, transformers.ElectraConfig(vocab_size=200, **SIZE)),
        ("gpt", transformers.GPT2LMHeadModel, transformers.GPT2Config(vocab_size=200, n_embd=32, n_layer=1, n_head=2)),
        ("small", transformers.DebertaV2ForMaskedLM, transformers.DebertaV2Config(vocab_size=50, **SIZE)),
        ("damaged", transformers.DebertaV2ForMaskedLM, transformers.DebertaV2Config(vocab_size=50, **SIZE)),
    ):
        model_class(config).save_pretrained(tmp_path / name)
        make_tokenizer("bert").save_pretrained(tmp_path / name)
    config.hidden_size = 48
    config.save_pretrained(tmp_path / "damaged")
    for folder, words in (
        (tmp_path / "discriminator", "cls.predictions"),
        (minilm, "has no weights for cls.predictions."),  # no head
        (tmp_path / "gpt", "is a 'gpt2' model, which does not predict masked tokens."),
        (tmp_path / "small", "--tokenizer_name: the tokenizer has 74 tokens, but the model's vocabulary has only 50."),
        (tmp_path / "damaged", "damaged do not fit its configuration."),
    ):
        with pytest.raises(InputError, match=re.escape(words)):
            load_masked_model(ModelArguments(model_name_or_path=str(folder)))
