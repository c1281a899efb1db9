"""Conversions of every head compared with stock transformers, tokenizers, and refused outputs."""

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
from parity import CONFIG, HEADS, NUM_LABELS, ours_and_stock, ragged_batch

import snugbert
from snugbert.errors import InputError
from snugbert.families.conversion import convert_model
from snugbert_cli import main

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "convert.md").read_text(encoding="utf-8")
DISTILBERT = {
    "vocab_size": CONFIG["vocab_size"],
    "dim": 48,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 96,
    "max_position_embeddings": 40,
    "activation": "relu",
    "dropout": 0.15,
    "attention_dropout": 0.05,
    "seq_classif_dropout": 0.25,
    "num_labels": NUM_LABELS,
}
DISTILBERT_HEADS = [head for head in HEADS if hasattr(transformers, f"DistilBert{head}")]
DTYPES = (torch.float64, torch.float32)
TEXT = "The Cats sat on the [MASK], é!"


def distilbert(head: str, **fields):
    torch.manual_seed(0)
    labels = {"num_labels": 2} if head == "ForQuestionAnswering" else {}
    config = transformers.DistilBertConfig(**DISTILBERT | labels | fields)
    model = getattr(transformers, f"DistilBert{head}")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def make_batch(head: str) -> dict[str, torch.Tensor]:
    inputs = ragged_batch(head)
    return {name: inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids")}


def difference(expected, model, inputs: dict[str, torch.Tensor], dtype: torch.dtype = DTYPES[0]) -> float:
    """Largest difference of any output at tokens, relative if outputs are larger than 1."""
    expected_inputs = dict(inputs)
    if expected.config.model_type == "distilbert":
        del expected_inputs["token_type_ids"]
    with torch.no_grad():
        theirs = expected.to(dtype).eval()(**expected_inputs)
        ours = model.to(dtype).eval()(**inputs)
    real = inputs["attention_mask"].bool()
    largest = 0.0
    assert theirs.keys() <= ours.keys()
    for name in theirs:
        pair = [outputs[name] for outputs in (theirs, ours)]
        assert pair[0].shape == pair[1].shape
        if pair[0].dim() == 3 or name in ("start_logits", "end_logits"):
            pair = [tensor[real] for tensor in pair]
        largest = max(largest, float((pair[0] - pair[1]).abs().max() / pair[0].abs().max().clamp(min=1)))
    return largest


# --- every head -------------------------------------------------------------------------------------------------


class Table:
    """Table of conversions: (from, to) -> heads, and largest differences in float64 and float32."""

    def __init__(self):
        self.rows = {}

    def add(self, row: tuple[str, str], head: str, *differences: float):
        heads, *before = self.rows.get(row, ("", 0.0, 0.0))
        worst = [max(pair) for pair in zip(before, differences, strict=True)]
        heads = f"{heads}, {head}" if heads else head
        for name, all_heads in (("all eight", HEADS), ("all six", DISTILBERT_HEADS)):
            heads = name if heads == ", ".join(all_heads) else heads
        self.rows[row] = (heads, *worst)

    def __str__(self):
        lines = ["| from | to | heads | in float64 | in float32 |", "| --- | --- | --- | --- | --- |"]
        for (source, to), (heads, exact, rounded) in self.rows.items():
            found = [f"{difference:.0e}" if difference else "0" for difference in (exact, rounded)]
            lines.append(f"| {source} | {to} | {heads} | {' | '.join(found)} |")
        return "\n".join(lines)


@pytest.fixture(scope="module")
def table():
    return Table()


@pytest.fixture(scope="module")
def bert_folders(tmp_path_factory, table) -> Path:
    """Every head of SnugBERT converted to BERT."""
    folder = tmp_path_factory.mktemp("bert")
    snugbert.SnugBertTokenizer({piece: i for i, piece in enumerate(PIECES)}, do_lower_case=False).save_pretrained(
        folder / "tokenizer"
    )
    for head in HEADS:
        ours, _ = ours_and_stock(head)
        ours.save_pretrained(folder / "snug" / head)
        shutil.copytree(folder / "tokenizer", folder / "snug" / head, dirs_exist_ok=True)
        done = convert_model(folder / "snug" / head, folder / head, "bert")
        assert done.model_class == f"Bert{head}" and done.difference <= 1e-6
        back = getattr(transformers, f"Bert{head}").from_pretrained(folder / head)
        table.add(("SnugBERT", "BERT"), head, *(difference(ours, back, make_batch(head), dtype) for dtype in DTYPES))
    return folder


def test_converted_to_bert_opens_without_snugbert(bert_folders, monkeypatch):
    """`import snugbert` fails. The fixture compares the outputs."""
    expected = snugbert.SnugBertTokenizer.from_pretrained(bert_folders / "tokenizer")(TEXT).input_ids
    assert PIECES.index("Cat") in expected
    monkeypatch.setitem(sys.modules, "snugbert", None)
    for head in HEADS:
        files = {file.name for file in (bert_folders / head).iterdir()}
        assert files == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
        config = json.loads((bert_folders / head / "config.json").read_text())
        assert (config["model_type"], config["architectures"]) == ("bert", [f"Bert{head}"])
        assert not {"auto_map", "position_embedding_type", "pooler_act"} & config.keys()
        assert "auto_map" not in (bert_folders / head / "tokenizer_config.json").read_text()
        assert (bert_folders / head / "vocab.txt").read_text("utf-8").split() == PIECES
        auto_class = getattr(transformers, "AutoModel" + head.removeprefix("Model"))
        model, info = auto_class.from_pretrained(bert_folders / head, output_loading_info=True)
        assert type(model) is getattr(transformers, f"Bert{head}") and not any(info.values())
        tokenizer = transformers.AutoTokenizer.from_pretrained(bert_folders / head)
        assert type(tokenizer) is transformers.BertTokenizer and tokenizer(TEXT).input_ids == expected
    fill = transformers.pipeline("fill-mask", model=str(bert_folders / "ForMaskedLM"))
    assert len(fill("the [MASK] sat")) == 5


def test_the_commands_of_the_page(bert_folders, tmp_path, monkeypatch):
    shutil.copytree(bert_folders / "snug" / "ForPreTraining", tmp_path / "pretrained")
    _, stock = ours_and_stock("ForMaskedLM")
    write_tensorflow(tmp_path / "uncased_L-12_H-768_A-12", tensorflow_variables(ours_and_stock("ForPreTraining")[1]))
    for folder, model in (("bert-base-uncased", stock), ("distilbert-base-uncased", distilbert("ForMaskedLM"))):
        model.save_pretrained(tmp_path / folder)
        shutil.copytree(bert_folders / "tokenizer", tmp_path / folder, dirs_exist_ok=True)
    family_checkpoints.write_checkpoint(tmp_path / "roberta-base", "roberta")
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^snugbert (convert .*)$", PAGE, flags=re.MULTILINE)
    assert len(lines) == 7
    for line in lines:
        assert main(shlex.split(line, comments=True)) == 0, line
    exec(re.search(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE).group(1), names := {})
    assert type(names["model"]) is transformers.BertForPreTraining
    assert type(names["tokenizer"]) is transformers.BertTokenizer


def measure(table: Table, row: tuple[str, str], head: str, source: Path, expected) -> None:
    """Converts `source`, and adds the difference between the result and the saved model to the table."""
    to = row[1].lower()
    output = source.parent / f"{source.name}-as-{to}"
    done = convert_model(source, output, to)
    assert done.difference <= 1e-6
    model_class = getattr(*{"snugbert": (snugbert, f"SnugBert{head}"), "bert": (transformers, f"Bert{head}")}[to])
    options = {"add_pooling_layer": False} if "no pooler" in " ".join(done.notes) else {}
    model, info = model_class.from_pretrained(output, output_loading_info=True, **options)
    assert not any(info.values()), info
    table.add(row, head, *(difference(expected, model, make_batch(head), dtype) for dtype in DTYPES))


def test_every_head_of_bert_becomes_snugbert(table, tmp_path):
    for head in HEADS:
        _, stock = ours_and_stock(head)
        stock.save_pretrained(tmp_path / head)
        measure(table, ("BERT", "SnugBERT"), head, tmp_path / head, stock)


def test_every_head_of_distilbert_becomes_snugbert_and_some_become_bert(table, tmp_path):
    for head in DISTILBERT_HEADS:
        model = distilbert(head)
        model.save_pretrained(tmp_path / head)
        measure(table, ("DistilBERT", "SnugBERT"), head, tmp_path / head, model)
    for head in ("Model", "ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"):
        measure(table, ("DistilBERT", "BERT"), head, tmp_path / head, distilbert(head))


def test_the_tensorflow_release_becomes_snugbert_and_bert(table, tmp_path):
    _, stock = ours_and_stock("ForPreTraining")
    write_tensorflow(tmp_path / "google", tensorflow_variables(stock))
    for name in ("SnugBERT", "BERT"):
        measure(table, ("TensorFlow", name), "ForPreTraining", tmp_path / "google", stock)


def test_a_real_bert_on_real_text(table, tmp_path, minilm, data_dir):
    lines = [line for line in (data_dir / "sample_text/sample_text.txt").read_text("utf-8").splitlines() if line][:6]
    convert_model(minilm, tmp_path / "snug", "snugbert")
    convert_model(tmp_path / "snug", tmp_path / "bert", "bert")
    inputs = []
    for folder in (minilm, tmp_path / "snug", tmp_path / "bert"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        inputs.append(dict(tokenizer(lines, padding=True, truncation=True, max_length=64, return_tensors="pt")))
    for other in inputs[1:]:
        assert other.keys() == inputs[0].keys() and all(torch.equal(other[name], inputs[0][name]) for name in other)
    stock = transformers.BertModel.from_pretrained(minilm)
    for row, folder in (
        (("MiniLM, a real BERT", "SnugBERT"), "snug"),
        (("MiniLM, from SnugBERT", "BERT"), "bert"),
    ):
        model = transformers.AutoModel.from_pretrained(tmp_path / folder)
        table.add(row, "Model", *(difference(stock, model, inputs[0], dtype) for dtype in DTYPES))


def test_the_table_of_conversions(bert_folders, table):
    """`pytest -s` prints what was measured."""
    print(f"\n{table}")
    assert table.rows  # tests of some rows may have been skipped
    for row, (_, exact, rounded) in table.rows.items():
        assert exact <= 1e-12 and rounded <= 1e-6, row


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
    inputs = make_batch("ForMaskedLM")
    del inputs["token_type_ids"]
    assert difference(stock.bfloat16(), back, inputs) <= 1e-12
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
    assert difference(ours, back, make_batch("ForTokenClassification")) <= 1e-12
    with pytest.raises(InputError, match=r"would round them\. Add --dtype float32"):
        convert_model(tmp_path / "snug", tmp_path / "half", "bert", dtype=torch.float16)


def test_distilbert_ignores_segments_and_keeps_its_relu(tmp_path):
    model = distilbert("ForSequenceClassification", problem_type="regression", id2label={0: "x", 1: "y", 2: "z"})
    model.save_pretrained(tmp_path / "distil", max_shard_size="100KB")
    convert_model(tmp_path / "distil", tmp_path / "snug", "snugbert")
    ours = snugbert.SnugBertForSequenceClassification.from_pretrained(tmp_path / "snug")
    config = ours.config
    assert (config.pooler_act, config.classifier_dropout, config.hidden_dropout_prob) == ("relu", 0.25, 0.15)
    assert (config.attention_probs_dropout_prob, config.hidden_act) == (0.05, "relu")
    assert (config.problem_type, config.id2label) == ("regression", {0: "x", 1: "y", 2: "z"})
    assert not set(config.to_dict()) & {"dim", "n_layers", "qa_dropout", "sinusoidal_pos_embds"}
    inputs = make_batch("ForSequenceClassification")
    swapped = inputs | {"token_type_ids": 1 - inputs["token_type_ids"]}
    assert torch.equal(ours(**inputs).logits, ours(**swapped).logits)
    with pytest.raises(
        InputError,
        match="the pooler of this ForSequenceClassification uses relu, but BertForSequenceClassification uses tanh",
    ):
        convert_model(tmp_path / "snug", tmp_path / "bert", "bert")
    assert not (tmp_path / "bert").exists()


def test_tokenizers_are_converted(tmp_path):
    _, stock = ours_and_stock("Model")
    stock.save_pretrained(tmp_path / "model")

    def convert_with(name, write, to="snugbert", **options):
        folder = shutil.copytree(tmp_path / "model", tmp_path / name)
        write(folder)
        done = convert_model(folder, tmp_path / f"{name}-out", to, **options)
        return done.tokenizer, tmp_path / f"{name}-out"

    def vocabulary(pieces):
        return lambda folder: (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")

    # With only a vocabulary, text is lowercased if all tokens are lowercase.
    lower = [piece for piece in PIECES if piece != "Cat"]
    for name, pieces, options, expected in (
        ("cased", PIECES, {}, False),
        ("uncased", lower, {}, True),
        ("flag", lower, {"do_lower_case": False}, False),
    ):
        kind, folder = convert_with(name, vocabulary(pieces), **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        assert kind == type(tokenizer).__name__ == "SnugBertTokenizer" and tokenizer.do_lower_case == expected
        assert (folder / "vocab.txt").read_text("utf-8").split() == pieces
        assert (folder / "tokenization_snugbert.py").exists()

    def with_own_tokens(folder):
        tokenizer = transformers.BertTokenizer({piece: i for i, piece in enumerate(PIECES)}, model_max_length=33)
        tokenizer.add_tokens(["snug"])
        tokenizer.add_special_tokens({"extra_special_tokens": ["[E1]"]})
        tokenizer.save_pretrained(folder)

    _, folder = convert_with("own", with_own_tokens)
    convert_model(folder, tmp_path / "own-bert", "bert")
    for other in (folder, tmp_path / "own-bert"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(other)
        assert tokenizer("snug [E1] cats").input_ids == [2, 12, 13, 6, 10, 3] and tokenizer.model_max_length == 33

    def byte_level(folder):
        own = transformers.GPT2Tokenizer(vocab={"<|endoftext|>": 0, "h": 1, "i": 2, "hi": 3}, merges=[("h", "i")])
        transformers.PreTrainedTokenizerFast(tokenizer_object=own.backend_tokenizer).save_pretrained(folder)

    kind, folder = convert_with("bytes", byte_level, to="bert")
    assert type(transformers.AutoTokenizer.from_pretrained(folder)).__name__ == kind
    assert transformers.AutoTokenizer.from_pretrained(folder)("hi").input_ids == [3]
    assert convert_with("none", lambda folder: None)[0] is None

    def settings(**values):
        return lambda folder: (folder / "tokenizer_config.json").write_text(json.dumps(values))

    for name, values, message in (
        (
            "empty",
            {"tokenizer_class": "BertTokenizer"},
            "no tokenizer. Expected one of these files: tokenizer.json, vocab.txt",
        ),
        ("code", {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}}, "needs custom code"),
    ):
        with pytest.raises(InputError, match=message):
            convert_with(name, settings(**values), to="bert")


def test_the_command_prints_a_summary(tmp_path, capsys):
    ours, _ = ours_and_stock("ForNextSentencePrediction")
    ours.save_pretrained(tmp_path / "snug")
    arguments = ["convert", str(tmp_path / "snug"), str(tmp_path / "bert"), "--to", "bert", "--dtype", "float16"]
    assert main([*arguments, "--max_shard_size", "50KB"]) == 0
    printed = capsys.readouterr().out
    assert "(snugbert) to" in printed and "BertForNextSentencePrediction" in printed
    files = list((tmp_path / "bert").glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files) / 1e6
    assert f"{ours.num_parameters():,} parameters in float16, {size:,.1f} MB in {len(files)} files" in printed
    assert re.search(r"differ by at most [\d.e-]+ in float64", printed)
    # Overwritten with a single file: the shards and the code of a SnugBERT model are removed, other files are kept.
    (tmp_path / "bert" / "modeling_snugbert.py").touch()
    (tmp_path / "bert" / "mine.md").write_text("mine")
    assert main(arguments) == 2
    assert "contains a model (config.json). Choose another folder" in capsys.readouterr().err
    assert main([*arguments, "--overwrite_output_dir"]) == 0
    files = {file.name for file in (tmp_path / "bert").iterdir()}
    assert files == {"config.json", "model.safetensors", "mine.md"}
    assert main(["convert", "a", "b", "--to", "bert", "--max_shard_size", "5XB"]) == 2
    assert "expected a size such as 500MB or 5GB, not '5XB'" in capsys.readouterr().err


def test_the_output_folder_is_protected(tmp_path):
    source = write_classifier(tmp_path / "source")
    with pytest.raises(InputError, match="source: input and output are the same folder"):
        convert_model(source, tmp_path / "x" / ".." / "source", "bert", overwrite_output_dir=True)
    with pytest.raises(InputError, match=r"config\.json: the output is a file"):
        convert_model(source, source / "config.json", "bert")
    # The disk is full after 100 kB: the old model is unchanged, and no partial output remains.
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
