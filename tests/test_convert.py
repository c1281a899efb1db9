"""Conversion beside stock transformers: every head, every form of file, and what is refused."""

import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import transformers
from parity import CONFIG, HEADS, NUM_LABELS, ours_and_stock, ragged_batch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import snugbert
from snugbert.convert import convert, find
from snugbert.errors import InputError
from snugbert_cli import main

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "convert.md").read_text(encoding="utf-8")
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
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "Cat", "sat", "on", "##s", "é"]
DTYPES = (torch.float64, torch.float32)
TEXT = "The Cats sat on the [MASK], é!"


@pytest.fixture(autouse=True)
def _verbosity():
    """The command makes transformers quiet, for all tests that follow."""
    before = transformers.utils.logging.get_verbosity()
    yield
    transformers.utils.logging.set_verbosity(before)


def distilbert(head: str, **fields):
    torch.manual_seed(0)
    labels = {"num_labels": 2} if head == "ForQuestionAnswering" else {}
    config = transformers.DistilBertConfig(**DISTILBERT | labels | fields)
    model = getattr(transformers, f"DistilBert{head}")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def batch_of(head: str) -> dict[str, torch.Tensor]:
    inputs = ragged_batch(head)
    return {name: inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids")}


def difference(expected, model, inputs: dict[str, torch.Tensor], dtype: torch.dtype = DTYPES[0]) -> float:
    """Largest difference of any output at real tokens, relative where outputs are larger than 1."""
    of_expected = dict(inputs)
    if expected.config.model_type == "distilbert":
        del of_expected["token_type_ids"]
    with torch.no_grad():
        theirs = expected.to(dtype).eval()(**of_expected)
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


def names_in(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


# --- TensorFlow -------------------------------------------------------------------------------------------------


def tensorflow_variables(stock) -> dict:
    """The weights of stock BERT as Google's code named and shaped them, with what its optimizer kept."""
    variables = {}
    for name, parameter in stock.named_parameters():
        part, _, kind = name.replace("encoder.layer.", "encoder.layer_").rpartition(".")
        value = parameter.detach().numpy()
        if part.endswith("LayerNorm"):
            kind = {"weight": "/gamma", "bias": "/beta"}[kind]
        elif part.endswith("embeddings"):
            kind = ""
        elif part == "cls.predictions":
            kind = "/output_bias"
        elif part == "cls.predictions.decoder":
            continue  # the word embeddings again
        elif part == "cls.seq_relationship":
            kind = f"/output_{kind}s".replace("biass", "bias")
        elif kind == "weight":
            kind, value = "/kernel", value.T
        else:
            kind = "/bias"
        variable = part.replace(".", "/") + kind
        variables |= {variable: value, f"{variable}/adam_m": 0 * value, f"{variable}/adam_v": 0 * value}
    return variables


@pytest.fixture(scope="module")
def write_tensorflow():
    """A function that writes variables as Google's release does, in a folder with configuration and vocabulary."""
    if find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed (pip install snugbert[tensorflow])")
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf

    def write(folder: Path, variables: dict) -> Path:
        folder.mkdir()
        names = ["global_step", *variables]
        tensors = [tf.constant(7, tf.int64), *(tf.constant(value) for value in variables.values())]
        prefix = str(folder / "bert_model.ckpt")
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors)
        fields = {name: value for name, value in CONFIG.items() if name != "num_labels"}
        (folder / "bert_config.json").write_text(json.dumps(fields))
        (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
        return folder

    return write


# --- every head -------------------------------------------------------------------------------------------------


class Table:
    """The rows of the table of conversions: (from, to) -> heads and largest differences in float64 and float32."""

    def __init__(self):
        self.rows = {}

    def add(self, row: tuple[str, str], head: str, *differences: float):
        heads, *before = self.rows.get(row, ("", 0.0, 0.0))
        worst = [max(pair) for pair in zip(before, differences, strict=True)]
        heads = f"{heads}, {head}" if heads else head
        for name, all_heads in (("all eight", HEADS), ("all six of its own", DISTILBERT_HEADS)):
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
    """Every head of SnugBERT, converted to BERT, and what it is compared with."""
    folder = tmp_path_factory.mktemp("bert")
    snugbert.SnugBertTokenizer({piece: i for i, piece in enumerate(PIECES)}, do_lower_case=False).save_pretrained(
        folder / "tokenizer"
    )
    outputs = {}
    for head in HEADS:
        ours, _ = ours_and_stock(head)
        ours.save_pretrained(folder / "snug" / head)
        shutil.copytree(folder / "tokenizer", folder / "snug" / head, dirs_exist_ok=True)
        done = convert(folder / "snug" / head, folder / head, "bert")
        assert done.model_class == f"Bert{head}" and done.difference <= 1e-6
        back = getattr(transformers, f"Bert{head}").from_pretrained(folder / head)
        table.add(("SnugBERT", "BERT"), head, *(difference(ours, back, batch_of(head), dtype) for dtype in DTYPES))
        outputs[head] = ours.float()(**batch_of(head))[0].detach()
    torch.save(outputs, folder / "outputs.pt")
    torch.save({head: batch_of(head) for head in HEADS}, folder / "inputs.pt")
    return folder


# Run where `import snugbert` fails: it knows nothing but transformers and the folders.
STRANGER = """
    import sys
    sys.modules["snugbert"] = None
    import torch, transformers
    from pathlib import Path
    folder = Path(sys.argv[1])
    inputs = torch.load(folder / "inputs.pt", weights_only=True)
    outputs = torch.load(folder / "outputs.pt", weights_only=True)
    for head, batch in inputs.items():
        auto_class = getattr(transformers, "AutoModel" + head.removeprefix("Model"))
        model, info = auto_class.from_pretrained(folder / head, output_loading_info=True)
        assert type(model) is getattr(transformers, "Bert" + head), type(model)
        assert not any(info.values()), info
        output = model.eval()(**batch)[0]
        if output.dim() == 3 or head == "ForQuestionAnswering":
            real = batch["attention_mask"].bool()
            output, outputs[head] = output[real], outputs[head][real]
        torch.testing.assert_close(output, outputs[head], atol=1e-6, rtol=1e-6)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder / head)
        assert type(tokenizer) is transformers.BertTokenizer, type(tokenizer)
    fill = transformers.pipeline("fill-mask", model=str(folder / "ForMaskedLM"))
    print(tokenizer(sys.argv[2]).input_ids, len(fill("the [MASK] sat")))
"""


def test_what_is_converted_to_bert_opens_where_snugbert_is_not_installed(bert_folders, tmp_path):
    for head in HEADS:
        files = {file.name for file in (bert_folders / head).iterdir()}
        assert files == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
        config = json.loads((bert_folders / head / "config.json").read_text())
        assert (config["model_type"], config["architectures"]) == ("bert", [f"Bert{head}"])
        assert not {"auto_map", "position_embedding_type", "pooler_act"} & config.keys()
        assert "auto_map" not in (bert_folders / head / "tokenizer_config.json").read_text()
        assert (bert_folders / head / "vocab.txt").read_text("utf-8").split() == PIECES
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STRANGER), bert_folders, TEXT],
        capture_output=True,
        text=True,
        env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    ids = snugbert.SnugBertTokenizer.from_pretrained(bert_folders / "tokenizer")(TEXT).input_ids
    assert PIECES.index("Cat") in ids
    assert process.stdout.splitlines()[-1] == f"{ids} 5"


def test_the_commands_of_the_page(bert_folders, write_tensorflow, tmp_path, monkeypatch):
    shutil.copytree(bert_folders / "snug" / "ForPreTraining", tmp_path / "pretrained")
    _, stock = ours_and_stock("ForMaskedLM")
    write_tensorflow(tmp_path / "uncased_L-12_H-768_A-12", tensorflow_variables(ours_and_stock("ForPreTraining")[1]))
    for folder, model in (("bert-base-uncased", stock), ("distilbert-base-uncased", distilbert("ForMaskedLM"))):
        model.save_pretrained(tmp_path / folder)
        shutil.copytree(bert_folders / "tokenizer", tmp_path / folder, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^snugbert (convert .*)$", PAGE, flags=re.MULTILINE)
    assert len(lines) == 5
    for line in lines:
        assert main(shlex.split(line, comments=True)) == 0, line
    exec(re.search(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE).group(1), names := {})
    assert type(names["model"]) is transformers.BertForPreTraining
    assert type(names["tokenizer"]) is transformers.BertTokenizer


def measure(table: Table, row: tuple[str, str], head: str, source: Path, expected) -> None:
    """Converts `source`, and adds to `table` how far what can be loaded is from the model that was saved there."""
    to = row[1].lower()
    output = source.parent / f"{source.name}-as-{to}"
    done = convert(source, output, to)
    assert done.difference <= 1e-6
    model_class = getattr(*{"snugbert": (snugbert, f"SnugBert{head}"), "bert": (transformers, f"Bert{head}")}[to])
    options = {"add_pooling_layer": False} if "no pooler" in " ".join(done.notes) else {}
    model, info = model_class.from_pretrained(output, output_loading_info=True, **options)
    assert not any(info.values()), info
    table.add(row, head, *(difference(expected, model, batch_of(head), dtype) for dtype in DTYPES))


def test_every_head_of_bert_becomes_snugbert(table, tmp_path):
    for head in HEADS:
        _, stock = ours_and_stock(head)
        stock.save_pretrained(tmp_path / head)
        measure(table, ("BERT", "SnugBERT"), head, tmp_path / head, stock)


def test_every_head_of_distilbert_becomes_snugbert_and_where_it_can_bert(table, tmp_path):
    for head in DISTILBERT_HEADS:
        model = distilbert(head)
        model.save_pretrained(tmp_path / head)
        measure(table, ("DistilBERT", "SnugBERT"), head, tmp_path / head, model)
    for head in ("Model", "ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"):
        measure(table, ("DistilBERT", "BERT"), head, tmp_path / head, distilbert(head))


def test_the_tensorflow_release_becomes_both(table, tmp_path, write_tensorflow):
    _, stock = ours_and_stock("ForPreTraining")
    write_tensorflow(tmp_path / "google", tensorflow_variables(stock))
    for name in ("SnugBERT", "BERT"):
        measure(table, ("TensorFlow", name), "ForPreTraining", tmp_path / "google", stock)


def test_a_real_bert_on_real_text(table, tmp_path, minilm, data_dir):
    lines = [line for line in (data_dir / "sample_text/sample_text.txt").read_text("utf-8").splitlines() if line][:6]
    convert(minilm, tmp_path / "snug", "snugbert")
    convert(tmp_path / "snug", tmp_path / "bert", "bert")
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
    """`pytest -s` prints what was measured; it is the table of docs/how-to/convert.md."""
    print(f"\n{table}")
    shown = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (\d[\d.e-]*) \| (\d[\d.e-]*) \|$", PAGE, flags=re.MULTILINE)
    assert len(shown) == 8
    found = [(*row, *values) for row, values in table.rows.items()]
    for *row, exact, rounded in found + [(*row[:3], *map(float, row[3:])) for row in shown]:
        assert tuple(row) in {row[:3] for row in shown}  # tests of the others may have been skipped
        assert exact <= 1e-12 and rounded <= 1e-6, row


# --- forms of files ---------------------------------------------------------------------------------------------


def write_checkpoint(folder: Path, weights: dict[str, torch.Tensor], binary: bool = False, shards: int = 1, **fields):
    """A BERT folder; fields of None are left out of its configuration."""
    folder.mkdir()
    config = {"model_type": "bert", **CONFIG, **fields}
    config = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    stem, suffix = ("pytorch_model", "bin") if binary else ("model", "safetensors")
    shard_of = {}
    for shard in range(shards):
        part = {name: weights[name].clone() for name in sorted(weights)[shard::shards]}
        name = f"{stem}.{suffix}" if shards == 1 else f"{stem}-{shard + 1:05}-of-{shards:05}.{suffix}"
        shard_of |= dict.fromkeys(part, name)
        torch.save(part, folder / name) if binary else save_file(part, folder / name)
    if shards > 1:
        index = {"metadata": {}, "weight_map": shard_of}
        (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return folder


def test_every_form_of_a_bert_file_becomes_snugbert(tmp_path):
    _, stock = ours_and_stock("ForPreTraining")
    weights = stock.state_dict()
    # Files of google-bert hold tied weights once. Their configuration says BertForMaskedLM.
    google = {name: tensor for name, tensor in weights.items() if not name.startswith("cls.predictions.decoder")}
    google_fields = {
        "architectures": ["BertForMaskedLM"],
        "tokenizer_class": "BertTokenizer",
        "auto_map": {"AutoModelForCausalLM": "other.Model"},
    }
    old = {
        re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", name)): tensor
        for name, tensor in google.items()
    } | {"bert.embeddings.position_ids": torch.arange(40)[None]}
    variants = {
        "everything": (weights, {"architectures": ["BertForPreTraining"]}),
        "google": (google, google_fields),
        "old": (old, {"model_type": None}),
    }
    output = tmp_path / "output"
    for variant, form in (
        ("everything", {"binary": True}),
        ("google", {}),
        ("google", {"shards": 3}),
        ("old", {"binary": True}),
        ("old", {"binary": True, "shards": 3}),
    ):
        tensors, fields = variants[variant]
        source = write_checkpoint(tmp_path / f"{variant}{form}", tensors, **form, **fields)
        done = convert(source, output, "snugbert", overwrite_output_dir=True)
        assert done.model_class == "SnugBertForPreTraining"
        assert ["config.json says ForMaskedLM" in note for note in done.notes] == [True] * (variant == "google")
        assert names_in(output) == set(google)  # tied weights are stored once
        config = json.loads((output / "config.json").read_text())
        assert "tokenizer_class" not in config and "AutoModelForCausalLM" not in config["auto_map"]
        ours = transformers.AutoModelForPreTraining.from_pretrained(output)
        assert type(ours) is snugbert.SnugBertForPreTraining
        for name, tensor in weights.items():
            assert torch.equal(ours.state_dict()[name], tensor), (source, name)
    assert (output / "modeling_snugbert.py").exists()
    assert "AutoModelForTokenClassification" in json.loads((output / "config.json").read_text())["auto_map"]

    # Both, and not equal: transformers does not tie them, whatever the configuration says.
    untied = weights | {"cls.predictions.decoder.weight": 2 * weights["cls.predictions.decoder.weight"]}
    convert(write_checkpoint(tmp_path / "untied", untied), output, "snugbert", overwrite_output_dir=True)
    ours = snugbert.SnugBertForPreTraining.from_pretrained(output)
    assert not ours.config.tie_word_embeddings
    assert torch.equal(ours.cls.predictions.decoder.weight, untied["cls.predictions.decoder.weight"])

    bare = {name.removeprefix("bert."): tensor for name, tensor in weights.items() if name.startswith("bert.")}
    without_pooler = {name: tensor for name, tensor in bare.items() if not name.startswith("pooler.")}
    for name, variant in (("bare", bare), ("without_pooler", without_pooler)):
        done = convert(write_checkpoint(tmp_path / name, variant), tmp_path / f"{name}-snug", "snugbert")
        assert done.model_class == "SnugBertModel" and names_in(tmp_path / f"{name}-snug") == set(variant)
        assert ["no pooler" in note for note in done.notes] == [True] * (name == "without_pooler")
    # transformers before version 4 wrote a pooler with every head.
    _, stock = ours_and_stock("ForTokenClassification")
    pooler = {name: tensor for name, tensor in weights.items() if name.startswith("bert.pooler.")}
    source = write_checkpoint(
        tmp_path / "tagger", stock.state_dict() | pooler, architectures=["BertForTokenClassification"]
    )
    done = convert(source, tmp_path / "tagger-snug", "snugbert")
    assert done.notes == ["The pooler, which ForTokenClassification does not use, was left out."]
    assert names_in(tmp_path / "tagger-snug") == set(stock.state_dict())


def test_what_a_configuration_says_survives_there_and_back(tmp_path):
    """Untied embeddings with a bias of their own, labels, problem, dropout, in shards and in bfloat16."""
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
    done = convert(tmp_path / "bert", tmp_path / "snug", "snugbert", dtype=torch.bfloat16, max_shard_size="100KB")
    assert (done.dtype, done.files) == ("bfloat16", len(list((tmp_path / "snug").glob("*.safetensors"))))
    assert done.files > 1 and done.difference <= 1e-12
    convert(tmp_path / "snug", tmp_path / "back", "bert")
    back = transformers.BertForMaskedLM.from_pretrained(tmp_path / "back")
    assert back.dtype == torch.bfloat16
    inputs = batch_of("ForMaskedLM")
    del inputs["token_type_ids"]
    assert difference(stock.bfloat16(), back, inputs) <= 1e-12
    for name, value in fields.items():
        assert getattr(back.config, name) == value, name
        assert getattr(snugbert.SnugBertConfig.from_pretrained(tmp_path / "snug"), name) == value, name


def test_computed_positions_become_a_table(tmp_path):
    torch.manual_seed(0)
    ours = snugbert.SnugBertForTokenClassification(
        snugbert.SnugBertConfig(**CONFIG, position_embedding_type="sinusoidal", initializer_range=0.3)
    )
    ours.save_pretrained(tmp_path / "snug")
    done = convert(tmp_path / "snug", tmp_path / "bert", "bert")
    assert done.notes == ["The computed positions became a table, which training would change."]
    back = transformers.BertForTokenClassification.from_pretrained(tmp_path / "bert")
    assert difference(ours, back, batch_of("ForTokenClassification")) <= 1e-12
    with pytest.raises(InputError, match="would round them; add --dtype float32"):
        convert(tmp_path / "snug", tmp_path / "half", "bert", dtype=torch.float16)


def test_distilbert_is_indifferent_to_segments_and_keeps_its_relu(tmp_path):
    model = distilbert("ForSequenceClassification", problem_type="regression", id2label={0: "x", 1: "y", 2: "z"})
    model.save_pretrained(tmp_path / "distil", max_shard_size="100KB")
    convert(tmp_path / "distil", tmp_path / "snug", "snugbert")
    ours = snugbert.SnugBertForSequenceClassification.from_pretrained(tmp_path / "snug")
    config = ours.config
    assert (config.pooler_act, config.classifier_dropout, config.hidden_dropout_prob) == ("relu", 0.25, 0.15)
    assert (config.attention_probs_dropout_prob, config.hidden_act) == (0.05, "relu")
    assert (config.problem_type, config.id2label) == ("regression", {0: "x", 1: "y", 2: "z"})
    assert not set(config.to_dict()) & {"dim", "n_layers", "qa_dropout", "sinusoidal_pos_embds"}
    inputs = batch_of("ForSequenceClassification")
    swapped = inputs | {"token_type_ids": 1 - inputs["token_type_ids"]}
    assert torch.equal(ours(**inputs).logits, ours(**swapped).logits)
    with pytest.raises(
        InputError, match="BERT's pooler has tanh, and that of this ForSequenceClassification has relu"
    ):
        convert(tmp_path / "snug", tmp_path / "bert", "bert")
    assert not (tmp_path / "bert").exists()


def test_tokenizers_go_along(tmp_path):
    _, stock = ours_and_stock("Model")
    stock.save_pretrained(tmp_path / "model")

    def convert_with(name, write, to="snugbert", **options):
        folder = shutil.copytree(tmp_path / "model", tmp_path / name)
        write(folder)
        done = convert(folder, tmp_path / f"{name}-out", to, **options)
        return done.tokenizer, tmp_path / f"{name}-out"

    def vocabulary(pieces):
        return lambda folder: (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")

    # A vocabulary alone does not say whether text is lower-cased, but whether it can be anything else.
    lower = [piece for piece in PIECES if piece != "Cat"]
    for name, pieces, options, expected in (
        ("cased", PIECES, {}, False),
        ("uncased", lower, {}, True),
        ("told", lower, {"do_lower_case": False}, False),
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
    convert(folder, tmp_path / "own-bert", "bert")
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
        ("empty", {"tokenizer_class": "BertTokenizer"}, "has no vocabulary, neither tokenizer.json nor vocab.txt"),
        ("code", {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}}, "code of its own"),
    ):
        with pytest.raises(InputError, match=message):
            convert_with(name, settings(**values), to="bert")


def test_the_command_says_what_it_did(tmp_path, capsys):
    ours, _ = ours_and_stock("ForNextSentencePrediction")
    ours.save_pretrained(tmp_path / "snug")
    arguments = ["convert", str(tmp_path / "snug"), str(tmp_path / "bert"), "--to", "bert", "--dtype", "float16"]
    assert main([*arguments, "--max_shard_size", "50KB"]) == 0
    printed = capsys.readouterr().out
    assert "(snugbert) to" in printed and "BertForNextSentencePrediction" in printed
    files = list((tmp_path / "bert").glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files) / 1e6
    assert f"{ours.num_parameters():,} parameters in float16, {size:,.1f} MB in {len(files)} files" in printed
    assert re.search(r"differ by [\d.e-]+ at most", printed)
    # Once more over it, in one file: nothing of the shards stays, what is not a model's does.
    (tmp_path / "bert" / "mine.md").write_text("mine")
    assert main(arguments) == 2
    assert "already holds a model (config.json); choose another folder" in capsys.readouterr().err
    assert main([*arguments, "--overwrite_output_dir"]) == 0
    files = {file.name for file in (tmp_path / "bert").iterdir()}
    assert files == {"config.json", "model.safetensors", "mine.md"}
    assert main(["convert", "a", "b", "--to", "bert", "--max_shard_size", "5XB"]) == 2
    assert "'5XB' is no size such as 500MB" in capsys.readouterr().err


def test_a_model_of_the_hub(tmp_path):
    """From the cache: the tests have no network."""
    _, stock = ours_and_stock("Model")
    stock.save_pretrained(tmp_path / "models--me--bert" / "snapshots" / "0123")
    (tmp_path / "models--me--bert" / "refs").mkdir()
    (tmp_path / "models--me--bert" / "refs" / "v1").write_text("0123")
    folder = find("me/bert", revision="v1", cache_dir=str(tmp_path))
    assert convert(folder, tmp_path / "snug", "snugbert").model_class == "SnugBertModel"
    with pytest.raises(InputError, match="there is no folder me/other, and from the Hub: "):
        find("me/other", revision="v1", cache_dir=str(tmp_path))
    with pytest.raises(InputError, match=r"there is no folder \./bert\.$"):
        find("./bert")


# --- what is refused --------------------------------------------------------------------------------------------


class Payload:
    """Unpickled, it writes a file."""

    def __reduce__(self):
        return Path.write_text, (self.file, "run")

    def __init__(self, file: Path):
        self.file = file


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A function that makes a good classifier's folder, whole or in shards, to be spoilt."""
    _, stock = ours_and_stock("ForSequenceClassification")
    folder = tmp_path_factory.mktemp("good")

    def make(target: Path, **options) -> Path:
        name = str(sorted(options.items()))
        if not (folder / name).exists():
            fields = {"architectures": ["BertForSequenceClassification"]}
            write_checkpoint(folder / name, stock.state_dict(), **fields | options)
        return shutil.copytree(folder / name, target)

    return make


def test_a_pickle_that_runs_code_is_not_opened(good, tmp_path):
    source = good(tmp_path / "source", binary=True)
    payload = {"weight": torch.zeros(2), "more": Payload(tmp_path / "proof")}
    for legacy in (False, True):
        torch.save(payload, source / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
        with pytest.raises(InputError, match=r"pytorch_model\.bin .* could run code. It was not opened"):
            convert(source, tmp_path / "output", "snugbert")
    assert not (tmp_path / "proof").exists() and not (tmp_path / "output").exists()
    torch.load(source / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "proof").read_text() == "run"  # it would have


def cut(file: str):
    def spoil(folder: Path):
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[: len(content) * 2 // 3])

    return spoil


def fields(**changes):
    def spoil(folder: Path):
        values = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps({n: v for n, v in values.items() if v is not None}))

    return spoil


def weights(change):
    def spoil(folder: Path):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return spoil


CASES = {
    "shard": (
        {"shards": 3},
        lambda folder: (folder / "model-00002-of-00003.safetensors").unlink(),
        r"source is not whole: of its 3 shards there is no model-00002-of-00003\.safetensors\.$",
    ),
    "no index": (
        {"shards": 2},
        lambda folder: (folder / "model.safetensors.index.json").unlink(),
        r"has model-00001-of-00002\.safetensors, but not model\.safetensors\.index\.json",
    ),
    "exchanged shard": (
        {"shards": 2},
        lambda folder: shutil.copy(
            folder / "model-00001-of-00002.safetensors", folder / "model-00002-of-00002.safetensors"
        ),
        r"index\.json promises .*, which no shard holds",
    ),
    "short safetensors": ({}, cut("model.safetensors"), r"source/model\.safetensors is cut short"),
    "short shard": (
        {"shards": 2},
        cut("model-00002-of-00002.safetensors"),
        r"model-00002-of-00002\.safetensors is cut short",
    ),
    "short bin": ({"binary": True}, cut("pytorch_model.bin"), r"source/pytorch_model\.bin is damaged"),
    "no weights": ({}, lambda folder: (folder / "model.safetensors").unlink(), "there are no weights in .*source"),
    "no config": ({}, lambda folder: (folder / "config.json").unlink(), r"there is no config\.json in .*source\.$"),
    "short config": ({}, cut("config.json"), r"config\.json is not JSON"),
    "roberta": (
        {},
        fields(model_type="roberta"),
        "is of a model of type 'roberta'; what is accepted is snugbert, bert, distilbert, and the TensorFlow release",
    ),
    "decoder": (
        {},
        fields(architectures=["BertLMHeadModel"]),
        "is of a BertLMHeadModel; what is accepted is BertModel",
    ),
    "cross-attention": ({}, fields(is_decoder=True), "config.json cannot be used: .*SnugBERT is an encoder"),
    "relative positions": ({}, fields(position_embedding_type="relative_key"), "known are absolute and sinusoidal"),
    "ambiguous": (
        {},
        fields(architectures=None),
        'names no "architectures", and the weights could be of BertForSequenceClassification or BertForTokenClassif',
    ),
    "another head": (
        {},
        fields(architectures=["BertForQuestionAnswering"]),
        r"lacks weights of ForQuestionAnswering, which would be random: qa_outputs\.bias, qa_outputs\.weight\.$",
    ),
    "missing": (
        {},
        weights(lambda tensors: tensors.pop("bert.pooler.dense.weight")),
        r"which would be random: bert\.pooler\.dense\.weight\.$",
    ),
    "unknown": (
        {},
        weights(lambda tensors: tensors.update({"adapter.down": torch.zeros(2), "adapter.up": torch.zeros(2)})),
        r"holds weights that ForSequenceClassification does not have: adapter\.down, adapter\.up\.$",
    ),
    "labels": ({}, fields(num_labels=5), r"classifier\.weight has the shape \[3, 48\], but .* it must be \[5, 48\]"),
    "not finite": (
        {},
        weights(lambda tensors: tensors["classifier.bias"].fill_(torch.nan)),
        "differ by nan; nothing was written",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_named(case, good, tmp_path):
    options, spoil, message = CASES[case]
    source = good(tmp_path / "source", **options)
    spoil(source)
    with pytest.raises(InputError, match=message):
        convert(source, tmp_path / "output", "snugbert")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_tensorflow_checkpoint_that_is_not_whole(write_tensorflow, tmp_path, monkeypatch):
    _, stock = ours_and_stock("ForPreTraining")
    variables = tensorflow_variables(stock)

    def refused(name, changes, message, spoil=lambda folder: None):
        source = write_tensorflow(tmp_path / name, {n: v for n, v in (variables | changes).items() if v is not None})
        spoil(source)
        with pytest.raises(InputError, match=message):
            convert(source / "bert_model.ckpt", tmp_path / "output", "snugbert")
        assert not (tmp_path / "output").exists()

    data = "bert_model.ckpt.data-00000-of-00001"
    refused("no data", {}, f"not whole: .*{data}; No such file", lambda folder: (folder / data).unlink())
    refused("short", {}, "bert_model.ckpt is not whole", cut(data))
    refused("short index", {}, "bert_model.ckpt is not whole", cut("bert_model.ckpt.index"))
    refused("unknown", {"extra/kernel": variables["bert/pooler/dense/kernel"]}, "does not have: extra/kernel")
    refused("missing", {"bert/pooler/dense/bias": None}, r"lacks .* bert\.pooler\.dense\.bias")
    refused(
        "config",
        {},
        r"there is no bert_config\.json in",
        lambda folder: (folder / "bert_config.json").unlink(),
    )
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    refused_source = tmp_path / "missing"
    with pytest.raises(InputError, match=r"pip install snugbert\[tensorflow\]"):
        convert(refused_source, tmp_path / "output", "snugbert")


def test_the_output_folder_is_guarded(good, tmp_path):
    source = good(tmp_path / "source")
    with pytest.raises(InputError, match="source is both input and output"):
        convert(source, tmp_path / "x" / ".." / "source", "bert", overwrite_output_dir=True)
    with pytest.raises(InputError, match=r"config\.json is a file, not a folder"):
        convert(source, source / "config.json", "bert")
    # A disk that is full after 100 kB: what was there stays as it was, and of the new model nothing is left.
    good(tmp_path / "output")
    before = {file.name: file.read_bytes() for file in (tmp_path / "output").iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        assert main(["convert", str(source), str(tmp_path / "output"), "--to", "bert", "--overwrite_output_dir"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {file.name: file.read_bytes() for file in (tmp_path / "output").iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output", "source"]
