"""Conversions: configurations, tokenizers, commands, and refused outputs. test_stock_models.py has every head."""

import json
import re
import resource
import shlex
import shutil
import sys
from pathlib import Path

import family_checkpoints
import pytest
import torch
import transformers
from checkpoint_files import PIECES, tensorflow_variables, write_classifier, write_tensorflow
from parity import CONFIG, ours_and_stock, ragged_batch

import snugbert
from snugbert.errors import InputError
from snugbert.families.conversion import convert_model
from snugbert_cli import main

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "convert.md").read_text(encoding="utf-8")
DISTILBERT = {"vocab_size": CONFIG["vocab_size"], "dim": 48, "n_layers": 1, "n_heads": 4, "hidden_dim": 96}
TEXT = "The Cats sat on the [MASK], é!"


@pytest.fixture
def pretrained(tmp_path) -> Path:
    """A SnugBERT with its tokenizer."""
    ours_and_stock("ForPreTraining")[0].save_pretrained(tmp_path / "pretrained")
    pieces = {piece: index for index, piece in enumerate(PIECES)}
    snugbert.SnugBertTokenizer(pieces, do_lower_case=False).save_pretrained(tmp_path / "pretrained")
    return tmp_path / "pretrained"


def test_converted_to_bert_opens_without_snugbert(pretrained, tmp_path, monkeypatch):
    expected = snugbert.SnugBertTokenizer.from_pretrained(pretrained)(TEXT).input_ids
    assert PIECES.index("Cat") in expected
    done = convert_model(pretrained, tmp_path / "bert", "bert")
    assert done.model_class == "BertForPreTraining" and done.difference <= 1e-6
    monkeypatch.setitem(sys.modules, "snugbert", None)  # `import snugbert` fails
    files = {file.name: file for file in (tmp_path / "bert").iterdir()}
    assert set(files) == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    config = json.loads(files["config.json"].read_text())
    assert (config["model_type"], config["architectures"]) == ("bert", ["BertForPreTraining"])
    assert not {"auto_map", "position_embedding_type", "pooler_act"} & config.keys()
    assert "auto_map" not in files["tokenizer_config.json"].read_text()
    assert files["vocab.txt"].read_text("utf-8").split() == PIECES
    model, info = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "bert", output_loading_info=True)
    assert type(model) is transformers.BertForPreTraining and not any(info.values())
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "bert")
    assert type(tokenizer) is transformers.BertTokenizer and tokenizer(TEXT).input_ids == expected


def test_an_interrupted_conversion_does_not_look_complete(pretrained, tmp_path, monkeypatch):
    move = shutil.move

    def stop_at_the_configuration(source, target):
        if target.name == "config.json":
            raise KeyboardInterrupt
        move(source, target)

    monkeypatch.setattr(shutil, "move", stop_at_the_configuration)
    with pytest.raises(KeyboardInterrupt):
        convert_model(pretrained, tmp_path / "bert", "bert")
    files = {file.name for file in (tmp_path / "bert").iterdir()}
    assert files == {"model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}


@pytest.mark.slow
def test_the_commands_of_the_page(pretrained, tmp_path, monkeypatch):
    stock = ours_and_stock("ForPreTraining")[1]
    write_tensorflow(tmp_path / "uncased_L-12_H-768_A-12", tensorflow_variables(stock))
    stock.save_pretrained(tmp_path / "bert-base-uncased")
    distilbert = transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**DISTILBERT))
    distilbert.save_pretrained(tmp_path / "distilbert-base-uncased")
    family_checkpoints.write_checkpoint(tmp_path / "roberta-base", "roberta")
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^snugbert (convert .*)$", PAGE, flags=re.MULTILINE)
    assert len(lines) == 7
    for line in lines:
        assert main(shlex.split(line, comments=True)) == 0, line
    exec(re.search(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE).group(1), names := {})
    assert type(names["model"]) is transformers.BertForPreTraining
    assert type(names["tokenizer"]) is transformers.BertTokenizer


# --- forms of files ---------------------------------------------------------------------------------------------


def test_the_configuration_survives_a_round_trip(tmp_path):
    """Untied embeddings with their own bias, labels, problem type and dropout, sharded and in bfloat16."""
    fields = {
        "tie_word_embeddings": False,
        "id2label": {0: "no", 1: "maybe", 2: "yes"},
        "label2id": {"no": 0, "maybe": 1, "yes": 2},
        "problem_type": "multi_label_classification",
        "classifier_dropout": 0.3,
        "hidden_dropout_prob": 0.25,
        "layer_norm_eps": 1e-3,
        "hidden_act": "relu",
        "pad_token_id": 3,
        "type_vocab_size": 1,
        "my_own": [1, 2],
    }
    stock = transformers.BertForMaskedLM(transformers.BertConfig(**CONFIG | fields))
    for parameter in stock.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    stock.save_pretrained(tmp_path / "bert")
    done = convert_model(
        tmp_path / "bert", tmp_path / "snug", "snugbert", dtype=torch.bfloat16, max_shard_size="100KB"
    )
    assert (done.dtype, done.files) == ("bfloat16", len(list((tmp_path / "snug").glob("*.safetensors"))))
    assert done.files > 1 and done.difference <= 1e-12
    convert_model(tmp_path / "snug", tmp_path / "back", "bert")
    back = transformers.BertForMaskedLM.from_pretrained(tmp_path / "back")
    assert back.dtype == torch.bfloat16
    inputs = ragged_batch("Model")
    del inputs["token_type_ids"]
    real = inputs["attention_mask"].bool()
    outputs = [model.double().eval()(**inputs).logits[real] for model in (back, stock.bfloat16())]
    torch.testing.assert_close(*outputs, rtol=1e-10, atol=1e-10)
    for name, value in fields.items():
        assert getattr(back.config, name) == value, name
        assert getattr(snugbert.SnugBertConfig.from_pretrained(tmp_path / "snug"), name) == value, name


def test_sinusoidal_positions_become_weights(tmp_path):
    torch.manual_seed(0)
    ours = snugbert.SnugBertForTokenClassification(
        snugbert.SnugBertConfig(**CONFIG, position_embedding_type="sinusoidal", initializer_range=0.3)
    )
    ours.save_pretrained(tmp_path / "snug")
    done = convert_model(tmp_path / "snug", tmp_path / "bert", "bert")
    assert done.notes == ["Sinusoidal positions became weights. Training would change them."]
    back = transformers.BertForTokenClassification.from_pretrained(tmp_path / "bert")
    inputs = ragged_batch("Model")
    real = inputs["attention_mask"].bool()
    outputs = [model.double().eval()(**inputs).logits[real] for model in (back, ours)]
    torch.testing.assert_close(*outputs, rtol=1e-10, atol=1e-10)
    with pytest.raises(InputError, match=r"would round them\. Add --dtype float32"):
        convert_model(tmp_path / "snug", tmp_path / "half", "bert", dtype=torch.float16)


def test_distilbert_ignores_segments_and_keeps_its_relu(tmp_path):
    labels = {"problem_type": "regression", "id2label": {0: "x", 1: "y", 2: "z"}, "activation": "relu"}
    dropout = {"dropout": 0.15, "attention_dropout": 0.05, "seq_classif_dropout": 0.25}
    config = transformers.DistilBertConfig(**DISTILBERT | labels | dropout)
    model = transformers.DistilBertForSequenceClassification(config)
    model.save_pretrained(tmp_path / "distil", max_shard_size="100KB")
    convert_model(tmp_path / "distil", tmp_path / "snug", "snugbert")
    ours = snugbert.SnugBertForSequenceClassification.from_pretrained(tmp_path / "snug")
    config = ours.config
    assert (config.pooler_act, config.classifier_dropout, config.hidden_dropout_prob) == ("relu", 0.25, 0.15)
    assert (config.attention_probs_dropout_prob, config.hidden_act) == (0.05, "relu")
    assert (config.problem_type, config.id2label) == ("regression", {0: "x", 1: "y", 2: "z"})
    assert not set(config.to_dict()) & {"dim", "n_layers", "qa_dropout", "sinusoidal_pos_embds"}
    inputs = ragged_batch("Model")
    swapped = inputs | {"token_type_ids": 1 - inputs["token_type_ids"]}
    assert torch.equal(ours(**inputs).logits, ours(**swapped).logits)
    with pytest.raises(
        InputError,
        match="the pooler of this ForSequenceClassification uses relu, but BertForSequenceClassification uses tanh",
    ):
        convert_model(tmp_path / "snug", tmp_path / "bert", "bert")
    assert not (tmp_path / "bert").exists()


@pytest.fixture
def model_folder(tmp_path) -> Path:
    """A BERT without a tokenizer."""
    ours_and_stock("Model")[1].save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("cased", "options", "lowers"), [(True, {}, False), (False, {}, True), (False, {"do_lower_case": False}, False)]
)
def test_with_only_a_vocabulary_its_tokens_decide_about_case(cased, options, lowers, model_folder, tmp_path):
    pieces = [piece for piece in PIECES if cased or piece != "Cat"]
    (model_folder / "vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")
    done = convert_model(model_folder, tmp_path / "out", "snugbert", **options)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert done.tokenizer == type(tokenizer).__name__ == "SnugBertTokenizer"
    assert tokenizer.do_lower_case == lowers
    assert (tmp_path / "out/vocab.txt").read_text("utf-8").split() == pieces
    assert (tmp_path / "out/tokenization_snugbert.py").exists()


def test_other_tokenizers_keep_their_class(model_folder, tmp_path):
    assert convert_model(model_folder, tmp_path / "none", "bert").tokenizer is None
    own = transformers.GPT2Tokenizer(vocab={"<|endoftext|>": 0, "h": 1, "i": 2, "hi": 3}, merges=[("h", "i")])
    transformers.PreTrainedTokenizerFast(tokenizer_object=own.backend_tokenizer).save_pretrained(model_folder)
    done = convert_model(model_folder, tmp_path / "bytes", "bert")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "bytes")
    assert type(tokenizer).__name__ == done.tokenizer and tokenizer("hi").input_ids == [3]
    settings = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}}
    (model_folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="needs custom code"):
        convert_model(model_folder, tmp_path / "code", "bert")


def test_the_command_prints_a_summary_and_replaces_its_own_files(tmp_path, capsys):
    ours, _ = ours_and_stock("ForNextSentencePrediction")
    ours.save_pretrained(tmp_path / "snug")
    arguments = ["convert", str(tmp_path / "snug"), str(tmp_path / "bert"), "--to", "bert", "--dtype", "float16"]
    assert main([*arguments, "--max_shard_size", "50KB"]) == 0
    printed = capsys.readouterr().out
    files = list((tmp_path / "bert").glob("*.safetensors"))
    assert re.search(rf"{ours.num_parameters():,} parameters in float16, [\d.]+ MB in {len(files)} files", printed)
    # Overwritten with a single file: the shards and the code of a SnugBERT model are removed, other files are kept.
    (tmp_path / "bert" / "modeling_snugbert.py").touch()
    (tmp_path / "bert" / "mine.md").write_text("mine")
    assert main(arguments) == 2
    assert "contains config.json. Choose another folder" in capsys.readouterr().err
    assert main([*arguments, "--overwrite_output_dir"]) == 0
    assert {file.name for file in (tmp_path / "bert").iterdir()} == {"config.json", "model.safetensors", "mine.md"}


@pytest.mark.parametrize(
    ("source", "output", "options", "message"),
    [
        ("nothing", "out", {"to": "brt"}, r"--to: unknown value 'brt'\. Did you mean bert\?"),
        ("nothing", "out", {"dtype": "int8"}, "--dtype: unknown value 'int8'"),
        ("model", "x/../model", {"overwrite_output_dir": True}, "model: input and output are the same folder"),
        ("model", "model/config.json", {}, r"config\.json is a file"),
    ],
)
def test_arguments_are_checked_before_the_model_is_read(source, output, options, message, model_folder, tmp_path):
    with pytest.raises(InputError, match=message):
        convert_model(tmp_path / source, tmp_path / output, **{"to": "bert"} | options)


def test_a_full_disk_leaves_the_old_model(tmp_path):
    source = write_classifier(tmp_path / "source")
    # Full after 100 kB. No partial output remains.
    write_classifier(tmp_path / "output")
    before = {file.name: file.read_bytes() for file in (tmp_path / "output").iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        assert main(["convert", str(source), str(tmp_path / "output"), "--to", "bert", "--overwrite_output_dir"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {file.name: file.read_bytes() for file in (tmp_path / "output").iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output", "source"]
