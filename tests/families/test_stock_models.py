"""Every head of every kind of checkpoint becomes SnugBERT and comes back."""

import json
import re
from pathlib import Path

import family_checkpoints
import pytest
import torch
import transformers
from checkpoint_files import tensorflow_variables, write_tensorflow
from parity import CONFIG, NUM_LABELS, ours_and_stock, perturb, ragged_batch
from safetensors.torch import load_file

import snugbert
from snugbert.errors import InputError
from snugbert.families.conversion import convert_model
from snugbert.families.reading import CLASSES, STOCK_NAMES
from snugbert.families_snugbert import FAMILY_TYPES, ROBERTA_TYPES

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = ("bert", *FAMILY_TYPES)
SOURCES = [
    pytest.param(kind, head, marks=[] if kind in ("bert", "roberta") else pytest.mark.slow)
    for kind in (*FAMILIES, "distilbert")
    for head in CLASSES[kind]
]
SOURCES.append(pytest.param("tensorflow", "ForPreTraining", marks=pytest.mark.slow))
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "vocab_size": 211, "activation": "relu"}


def write_stock(folder: Path, kind: str, head: str, **fields) -> Path:
    """Writes a checkpoint of transformers, or the TensorFlow release, with random weights. It has no tokenizer."""
    labels = {"num_labels": 2 if head == "ForQuestionAnswering" else NUM_LABELS}
    if kind == "tensorflow":
        return write_tensorflow(folder, tensorflow_variables(ours_and_stock(head)[1]))
    if kind == "distilbert":
        torch.manual_seed(0)
        model = CLASSES[kind][head](transformers.DistilBertConfig(**DISTILBERT | labels | fields))
        perturb(model)
        model.save_pretrained(folder)
        return folder
    name = CLASSES[kind][head].__name__.removeprefix(STOCK_NAMES[kind])
    layers = {"num_hidden_layers": 2 if head == "Model" else 1}  # the names of layers are the same for all heads
    family_checkpoints.write_checkpoint(folder, kind, name, **labels | layers | fields)
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    return folder


def read(folder: Path) -> tuple[dict[str, torch.Tensor], dict]:
    """Reads the weights and the configuration of a folder."""
    config = json.loads((folder / "config.json").read_text())
    del config["transformers_version"]
    return load_file(folder / "model.safetensors"), config


def assert_same_files(folder: Path, other: Path) -> None:
    weights, config = read(folder)
    other_weights, other_config = read(other)
    assert config == other_config
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


def open_stock(folder: Path, kind: str, head: str) -> transformers.PreTrainedModel:
    """Opens a checkpoint in float64. No weight is missing or unused."""
    if kind == "tensorflow":
        return ours_and_stock(head)[1].double().eval()
    has_pooler = any("pooler" in name for name in read(folder)[0])
    needs_option = head == "Model" and kind not in ("electra", "deberta-v2", "distilbert") and not has_pooler
    options = {"add_pooling_layer": False} if needs_option else {}
    model, info = CLASSES[kind][head].from_pretrained(folder, dtype=torch.float64, output_loading_info=True, **options)
    assert not any(info.values()), (folder, info)
    return model.eval()


def assert_equal_outputs(model: transformers.PreTrainedModel, other: transformers.PreTrainedModel, head: str) -> None:
    inputs = make_batch(head, model.config)
    mask = inputs["attention_mask"].bool()
    names = [name for name in inputs if name != "token_type_ids" or model.config.model_type != "distilbert"]
    with torch.no_grad():
        expected, outputs = model(**{name: inputs[name] for name in names}), other(**inputs)
    assert outputs.keys() >= expected.keys()
    for name, value in expected.items():
        pair = [outputs[name], value]
        if value.shape[: mask.dim()] == mask.shape and "pooler" not in name:
            pair = [tensor[mask] for tensor in pair]  # outputs at padding are undefined
        torch.testing.assert_close(*pair, rtol=1e-10, atol=1e-10)


def make_batch(head: str, config: transformers.PreTrainedConfig) -> dict[str, torch.Tensor]:
    """Draws a right-padded batch. Positions are the model's own."""
    inputs = ragged_batch("Model" if head == "ForReplacedTokenDetection" else head)
    mask = inputs["attention_mask"]
    first_id = 7  # after all special tokens
    tokens = inputs["input_ids"] % (config.vocab_size - first_id) + first_id
    segments = 0 if config.model_type == "distilbert" else inputs["token_type_ids"] % (config.type_vocab_size or 2)
    return {
        "input_ids": torch.where(mask.bool(), tokens, config.pad_token_id),
        "attention_mask": mask,
        "token_type_ids": segments * mask,
    }


@pytest.mark.parametrize(("kind", "head"), SOURCES)
def test_every_head_becomes_snugbert_and_comes_back(tmp_path, kind, head):
    """Converting back gives the source. DistilBERT and the TensorFlow release come back as BERT."""
    source, ours, back = (tmp_path / name for name in ("source", "ours", "back"))
    write_stock(source, kind, head)
    stock = open_stock(source, kind, head)
    done = convert_model(source, ours, "snugbert")
    assert done.model_class == f"SnugBert{head}" and done.difference <= 1e-12
    assert_equal_outputs(stock, open_stock(ours, "snugbert", head), head)
    if kind == "distilbert" and head in ("ForSequenceClassification", "ForMultipleChoice"):
        return  # their pooler uses relu
    to = kind if kind in FAMILIES else "bert"
    done = convert_model(ours, back, to)
    assert done.model_class == CLASSES[to][head].__name__ and done.difference <= 1e-12
    if kind in FAMILIES:
        assert not done.notes
        assert_same_files(back, source)
    else:
        assert_equal_outputs(stock, open_stock(back, "bert", head), head)


@pytest.mark.parametrize(
    ("family", "head", "to"),
    [
        ("roberta", "ForMaskedLM", "bert"),
        ("camembert", "ForSequenceClassification", "bert"),
        ("roberta", "ForMaskedLM", "electra"),
        ("electra", "ForTokenClassification", "camembert"),
        ("bert", "ForMaskedLM", "roberta"),
        ("bert", "ForMultipleChoice", "electra"),
        ("bert", "ForQuestionAnswering", "xlm-roberta"),
    ],
)
def test_a_model_becomes_another_family(tmp_path, family, head, to):
    """Other combinations need no test: names, positions and configuration are converted independently."""
    write_stock(tmp_path / "source", family, head, **{"embedding_size": 32} if family == "electra" else {})
    done = convert_model(tmp_path / "source", tmp_path / "result", to)
    models = open_stock(tmp_path / "source", family, head), open_stock(tmp_path / "result", to, head)
    assert_equal_outputs(*models, head)
    position_notes = [note for note in done.notes if "for padding" in note]
    assert len(position_notes) == ((family in ROBERTA_TYPES) != (to in ROBERTA_TYPES))
    assert bool([note for note in done.notes if "changes training" in note]) == ("Sequence" in head)


def test_the_encoder_of_a_discriminator_becomes_bert(tmp_path):
    write_stock(tmp_path / "electra", "electra", "ForReplacedTokenDetection", embedding_size=32)
    done = convert_model(tmp_path / "electra", tmp_path / "bert", "bert")
    assert done.model_class == "BertModel" and any("ForReplacedTokenDetection was dropped" in n for n in done.notes)
    stock = transformers.ElectraModel.from_pretrained(tmp_path / "electra").double().eval()
    bert = transformers.BertModel.from_pretrained(tmp_path / "bert", add_pooling_layer=False).double().eval()
    inputs = make_batch("Model", stock.config)
    states = [model(**inputs).last_hidden_state[inputs["attention_mask"].bool()] for model in (stock, bert)]
    torch.testing.assert_close(*states, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("family", "tied"), [("roberta", "lm_head.decoder.weight"), ("electra", "generator_lm_head.weight")]
)
def test_old_files_are_read(family, tied, tmp_path):
    """Old names, a buffer, a pooler that the head does not use, tied weights stored twice, a .bin file."""
    source = write_stock(tmp_path / "source", family, "ForMaskedLM")
    convert_model(source, tmp_path / "expected", "snugbert")
    weights = load_file(source / "model.safetensors")
    norms = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old = {re.sub(r"LayerNorm\.\w+$", lambda match: norms[match[0]], name): tensor for name, tensor in weights.items()}
    old[tied] = weights[f"{family}.embeddings.word_embeddings.weight"].clone()
    old[f"{family}.embeddings.position_ids"] = torch.arange(514)[None]
    if family == "roberta":
        old |= {"roberta.pooler.dense.weight": torch.ones(32, 32), "roberta.pooler.dense.bias": torch.ones(32)}
    (source / "model.safetensors").unlink()
    torch.save(old, source / "pytorch_model.bin")
    done = convert_model(source, tmp_path / "out", "snugbert")
    assert_same_files(tmp_path / "out", tmp_path / "expected")
    assert done.notes == ["The pooler was dropped. ForMaskedLM does not use it."] * (family == "roberta")


def test_microsofts_files_of_deberta_v3_are_converted(tmp_path):
    """Half precision, and names of the masked token head that the configuration does not announce."""
    source = write_stock(tmp_path / "source", "deberta-v2", "ForMaskedLM", legacy=False)
    weights, config = read(source)
    weights = {name: tensor.half() for name, tensor in weights.items()}
    weights["mask_predictions.dense.weight"] = torch.zeros(32, 32).half()
    (source / "model.safetensors").unlink()
    torch.save(weights, source / "pytorch_model.bin")
    (source / "config.json").write_text(
        json.dumps({name: value for name, value in config.items() if name not in ("legacy", "architectures", "dtype")})
    )
    stock = CLASSES["deberta-v2"]["ForMaskedLM"].from_pretrained(source, legacy=False, dtype=torch.float64).eval()
    inputs = make_batch("ForMaskedLM", stock.config)
    mask = inputs["attention_mask"].bool()
    for to in ("snugbert", "deberta-v2"):
        done = convert_model(source, tmp_path / to, to)
        assert done.dtype == "float16" and done.difference <= 1e-12
        model = CLASSES[to]["ForMaskedLM"].from_pretrained(tmp_path / to, dtype=torch.float64).eval()
        with torch.no_grad():
            pair = model(**inputs).logits[mask], stock(**inputs).logits[mask]
        torch.testing.assert_close(*pair, rtol=1e-10, atol=1e-10)


def test_the_declared_class_may_be_a_siblings(tmp_path):
    source = write_stock(tmp_path / "source", "camembert", "ForTokenClassification")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["RobertaForTokenClassification"]}))
    assert convert_model(source, tmp_path / "out", "camembert").model_class == "CamembertForTokenClassification"


RELATIVE = {"position_embedding_type": "relative"}


@pytest.mark.parametrize(
    ("head", "fields", "to", "message"),
    [
        ("ForMaskedLM", {"embedding_size": 16, "prediction_act": "gelu"}, "roberta", "equal sizes.* --to electra"),
        ("ForMaskedLM", {"embedding_size": 16, **RELATIVE}, "deberta-v2", "needs equal sizes. No stock model"),
        ("ForMaskedLM", {"prediction_act": "relu"}, "bert", "head uses relu, .* uses gelu. No stock"),
        ("ForMaskedLM", {"hidden_act": "relu"}, "electra", "head uses relu, .* uses gelu.* --to bert"),
        ("ForSequenceClassification", {"pooler_act": "gelu"}, "camembert", "uses gelu, but .* tanh.* --to electra"),
        ("ForSequenceClassification", {}, "electra", "uses tanh, but Electra.* uses gelu.* --to bert"),
        ("Model", {}, "electra", "ElectraModel has no pooler. Load SnugBertModel with"),
        ("ForMaskedLM", {}, "deberta-v2", "no relative positions, but DebertaV2ForMaskedLM needs them.* --to bert"),
        ("ForMaskedLM", RELATIVE, "roberta", "relative positions, but .* has none.* --to deberta-v2"),
        ("ForPreTraining", {}, "roberta", "roberta has no ForPreTraining. Use `snugbert convert --to bert`"),
        ("ForTokenClassification", {"pad_token_id": None}, "xlm-roberta", "XLM.* start after the padding id"),
    ],
)
def test_what_cannot_be_equal_is_refused(head, fields, to, message, tmp_path):
    model = CLASSES["snugbert"][head](snugbert.SnugBertConfig(**CONFIG | fields))
    model.save_pretrained(tmp_path / "source")
    with pytest.raises(InputError, match=message):
        convert_model(tmp_path / "source", tmp_path / "result", to)
    assert not (tmp_path / "result").exists()
