"""The models and tokenizers that commands open, and what they refuse."""

import json
import logging
import re

import pytest
import torch
import transformers
from checkpoint_files import write_checkpoint
from huggingface_hub import HfApi
from huggingface_hub.errors import EntryNotFoundError
from parity import CONFIG, ours_and_stock, ragged_batch
from safetensors.torch import load_file, save_file
from transformers import BertTokenizer

import snugbert
from snugbert import SnugBertTokenizer
from snugbert.cli.model_arguments import SIZE_NAMES, ModelArguments, TokenizerArguments
from snugbert.configuration_snugbert import SIZES
from snugbert.errors import InputError
from snugbert.families.conversion import convert_model
from snugbert.families.loading import check_ids, load_config, load_model, load_tokenizer, write_vocab_txt

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(CONFIG["vocab_size"] - 5))]
VOCABULARY = {piece: index for index, piece in enumerate(PIECES)}


def as_in_a_command(folder, auto_class=transformers.AutoModelForMaskedLM, trained=False, **flags):
    """Loads a model as every command does for `--model_name_or_path`."""
    arguments = ModelArguments(model_name_or_path=str(folder), **flags)
    return load_model(auto_class, arguments, load_config(arguments, load_tokenizer(arguments)), trained=trained)


@pytest.fixture
def bert_folder(tmp_path):
    """Returns a function that writes a BERT checkpoint for masked tokens after `change` has changed its names."""
    _, stock = ours_and_stock("ForMaskedLM")

    def write(change=str, **form):
        folder = tmp_path / f"bert{len(list(tmp_path.iterdir()))}"
        weights = {change(name): tensor for name, tensor in stock.state_dict().items() if change(name)}
        write_checkpoint(folder, weights, architectures=["BertForMaskedLM"], **form)
        snugbert.SnugBertTokenizer(VOCABULARY).save_pretrained(folder)
        return folder

    write.stock = stock
    return write


def test_private_repositories_get_the_token(tmp_path, monkeypatch):
    """The check that a repository exists, and the downloads."""
    seen = []

    def record(*arguments, token=None, **_):
        seen.append(token)
        raise EntryNotFoundError("no such file")

    monkeypatch.setattr(HfApi, "model_info", lambda self, *arguments, token=None, **_: seen.append(token))
    monkeypatch.setattr(transformers.utils.hub, "hf_hub_download", record)
    arguments = ModelArguments(model_name_or_path="me/private", token="hf_owner", cache_dir=str(tmp_path))
    # AutoTokenizer of transformers 5.17 asks for config.json once without the token.
    for load, requests_without in (
        (lambda: load_tokenizer(arguments), 1),
        (lambda: load_config(arguments, snugbert.SnugBertTokenizer(VOCABULARY)), 0),
        (lambda: load_model(transformers.AutoModelForMaskedLM, arguments, snugbert.SnugBertConfig(**CONFIG)), 0),
    ):
        seen.clear()
        with pytest.raises((InputError, OSError)):
            load()
        assert seen.count("hf_owner") > 1 and len(seen) - seen.count("hf_owner") <= requests_without


@pytest.mark.parametrize("tokenizer_class", ["BertTokenizer", "PreTrainedTokenizerFast", "Unknown"])
def test_a_foreign_auto_map_of_any_tokenizer_is_not_saved(tokenizer_class, tmp_path):
    snugbert.SnugBertTokenizer(VOCABULARY).save_pretrained(tmp_path)
    transformers.BertConfig(**CONFIG).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": tokenizer_class, "auto_map": {"AutoTokenizer": ["evil/repo--tok.Evil", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    load_tokenizer(TokenizerArguments(tokenizer_name=str(tmp_path))).save_pretrained(tmp_path / "saved")
    assert "evil" not in (tmp_path / "saved" / "tokenizer_config.json").read_text()


def test_ids_without_a_token_are_refused_before_text_is_prepared(tmp_path):
    """`BertTokenizer` gives a token that is listed twice its last id, and the first one to nobody."""
    words = [*PIECES[:5], "the", "cat", "the", "mat"]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    with pytest.raises(InputError, match=r"vocab\.txt, line 8: 'the' is already on line 6"):
        load_tokenizer(TokenizerArguments(tokenizer_name=str(tmp_path)))
    transformers.BertTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=str(tmp_path)))
    assert (len(tokenizer), tokenizer.get_vocab()["mat"]) == (8, 8)
    with pytest.raises(InputError, match=r"the folder: no token has the id 5\. .* line 6 repeats another line"):
        check_ids(tokenizer, "the folder")
    check_ids(snugbert.SnugBertTokenizer(VOCABULARY), "the folder")


def test_another_architecture_is_refused(bert_folder):
    folder = bert_folder(model_type="distilbert")
    with pytest.raises(ValueError, match=r"Unsupported model type 'distilbert'\. `from_pretrained` and"):
        snugbert.SnugBertModel.from_pretrained(folder)
    with pytest.raises(InputError, match=r"is a 'distilbert' model\. Expected snugbert, bert, roberta, xlm-"):
        as_in_a_command(folder)


PREFIXES = ("module.", "module._orig_mod.", "module.student.", "base_model.model.")


def test_weights_of_a_second_model_do_not_replace_the_first(bert_folder):
    folder = bert_folder()
    weights = load_file(folder / "model.safetensors")
    teacher = {f"teacher.{name}": weight + 1 for name, weight in weights.items()}
    save_file(weights | teacher, folder / "model.safetensors", {"format": "pt"})
    expected = bert_folder.stock.bert.encoder.layer[2].output.dense.weight
    assert torch.equal(as_in_a_command(folder).bert.encoder.layer[2].output.dense.weight, expected)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_of_all_names_is_dropped(bert_folder, prefix, tmp_path):
    inputs = ragged_batch("ForMaskedLM")
    real = inputs["attention_mask"].bool()
    expected = bert_folder.stock(**inputs).logits[real]
    for form in ({}, {"binary": True}, {"shards": 3}) if prefix == PREFIXES[-1] else ({},):
        folder = bert_folder(lambda name: prefix + name, **form)
        torch.testing.assert_close(as_in_a_command(folder, trained=True)(**inputs).logits[real], expected)
    options = {}
    if {"student", "base_model"} & set(prefix.split(".")):  # the mapping is applied before `module.` is dropped
        options["key_mapping"] = {r"^(module\.student|base_model\.model)\.": "module."}
    model = snugbert.SnugBertForMaskedLM.from_pretrained(folder, **options)
    torch.testing.assert_close(model(**inputs).logits[real], expected)
    convert_model(folder, tmp_path / "converted", "bert")
    converted = transformers.BertForMaskedLM.from_pretrained(tmp_path / "converted")
    torch.testing.assert_close(converted(**inputs).logits[real], expected)


def test_a_checkpoint_without_an_encoder_is_refused(bert_folder):
    """Otherwise training would start from random weights."""
    for change, found in (
        (lambda name: name if name.startswith("cls.") else None, "heads only"),
        (lambda name: f"transformer.h.{name.replace('.', '_')}", "transformer.h.bert_embeddings_"),
        (lambda name: name.replace("bert.", "teacher." if "layer.0" in name else "student."), "student.embeddings"),
    ):
        folder = bert_folder(change)
        for flags in ({}, {"allow_missing_weights": True}, {"trained": True}):
            with pytest.raises(InputError, match=f"no encoder weights. Expected .*, found {found}"):
                as_in_a_command(folder, **flags)


def test_a_missing_weight_of_the_encoder_needs_a_flag(bert_folder, caplog):
    missing = "bert.encoder.layer.1.output.dense.weight"
    folder = bert_folder(lambda name: name if name != missing else None)
    with pytest.raises(InputError, match=rf"encoder weights are missing .*: {missing}\. .*--allow_missing_w"):
        as_in_a_command(folder)
    with pytest.raises(InputError, match=rf"has no weights for {missing}"):
        as_in_a_command(folder, trained=True, allow_missing_weights=True)
    model = as_in_a_command(folder, allow_missing_weights=True)
    assert f"missing weights were initialized randomly: {missing}" in caplog.text
    others = {name: weight for name, weight in model.state_dict().items() if name != missing}
    assert all(torch.equal(weight, bert_folder.stock.state_dict()[name]) for name, weight in others.items())
    with pytest.raises(InputError, match=r"missing .*: bert\.encoder\.layer\.3\.attention"):
        as_in_a_command(bert_folder(), config_overrides="num_hidden_layers=4")
    # Students with fewer layers and encoders without heads need nothing.
    as_in_a_command(bert_folder(), config_overrides="num_hidden_layers=2")
    bare = bert_folder(lambda name: name.removeprefix("bert.") if name.startswith("bert.") else None)
    model = as_in_a_command(bare, transformers.AutoModelForSequenceClassification)
    assert torch.equal(model.bert.embeddings.LayerNorm.bias, bert_folder.stock.bert.embeddings.LayerNorm.bias)


def test_weights_that_no_head_has_are_listed(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    ours, _ = ours_and_stock("ForTokenClassification")
    ours.save_pretrained(tmp_path)
    snugbert.SnugBertTokenizer(VOCABULARY).save_pretrained(tmp_path)
    # Weights of another head are not listed, because fine-tuning starts from such checkpoints.
    model = as_in_a_command(tmp_path, transformers.AutoModelForQuestionAnswering)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []  # transformers' reports
    assert torch.equal(model.bert.encoder.layer[2].output.dense.weight, ours.bert.encoder.layer[2].output.dense.weight)
    file = tmp_path / "model.safetensors"
    others = {f"lstm.{index}.weight": torch.zeros(2) for index in range(7)}
    others |= {f"classifier.{name}.weight": torch.zeros(2) for name in ("first", "more", "other")}
    others["classifier.dense.weight"] = torch.zeros(2)  # of a RoBERTa that classifies
    save_file(load_file(file) | others, file, {"format": "pt"})
    names = r"classifier\.first\.weight, .*lstm\.4\.weight and 2 more"
    as_in_a_command(tmp_path)
    assert re.search(rf"ignored weights that this model does not use: {names}", caplog.text)
    with pytest.raises(InputError, match=rf"contains weights that SnugBERT does not use: {names}. Ignoring them"):
        as_in_a_command(tmp_path, trained=True)
    caplog.clear()
    shallow = as_in_a_command(tmp_path, config_overrides="num_hidden_layers=2")
    assert len(shallow.bert.encoder.layer) == 2 and "bert.encoder.layer.2.attention" in caplog.text


SPECIAL = {"[PAD]": 3, "[UNK]": 1, "[CLS]": 2, "[SEP]": 0, "[MASK]": 4}


def test_a_token_is_on_the_line_of_its_id(tmp_path):
    tokenizer = SnugBertTokenizer({"café": 5, **SPECIAL})
    tokenizer.add_tokens(["added"])
    write_vocab_txt(tokenizer, tmp_path)
    assert (tmp_path / "vocab.txt").read_bytes() == "[SEP]\n[UNK]\n[CLS]\n[PAD]\n[MASK]\ncafé\n".encode()
    assert BertTokenizer(vocab=str(tmp_path / "vocab.txt")).convert_tokens_to_ids("café") == 5
    # No file is written if the ids have gaps.
    (tmp_path / "gaps").mkdir()
    write_vocab_txt(SnugBertTokenizer({"far": 9, **SPECIAL}), tmp_path / "gaps")
    assert not (tmp_path / "gaps" / "vocab.txt").exists()


def test_the_help_names_all_sizes():
    assert SIZE_NAMES == tuple(SIZES)


def test_the_tokenizer_of_another_model_is_refused(tmp_path):
    """It would give each token the embedding of another token."""
    swapped = VOCABULARY | {"w0": VOCABULARY["w1"], "w1": VOCABULARY["w0"]}
    for name, vocabulary in (("own", VOCABULARY), ("other", swapped)):
        SnugBertTokenizer(vocabulary).save_pretrained(tmp_path / name)
    snugbert.SnugBertConfig(**CONFIG).save_pretrained(tmp_path / "own")
    args = ModelArguments(model_name_or_path=str(tmp_path / "own"), tokenizer_name=str(tmp_path / "other"))
    with pytest.raises(InputError, match=r"--tokenizer_name: 2 tokens, such as 'w[01]', have other ids than in the"):
        load_config(args, load_tokenizer(args))
    for file in (tmp_path / "own").glob("*token*"):
        file.unlink()
    transformers.BertConfig(**CONFIG).save_pretrained(tmp_path / "own")  # transformers opens an empty tokenizer
    load_config(args, load_tokenizer(args))
