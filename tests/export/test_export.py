"""`snugbert export`: every head and family in every engine, dtypes, scores, cards and errors."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import family_checkpoints
import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from onnxruntime import InferenceSession
from parity import HEADS
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch.onnx._internal.exporter._registration import ONNXRegistry
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from snugbert import SnugBertModel
from snugbert.errors import InputError
from snugbert.export import graph, onnx_engine, openvino_engine, stock_engine
from snugbert.export.export import export_model, make_batches, make_texts
from snugbert.families.comparing import FLOAT32_TOLERANCE, find_difference
from snugbert.prediction.predictor import Predictor
from snugbert_cli import main

pytestmark = pytest.mark.usefixtures("one_thread", "graphs")
TAGS = ["O", "B-PER", "I-PER"]
TAGGER = {
    "id2label": dict(enumerate(TAGS)),
    "label2id": {tag: index for index, tag in enumerate(TAGS)},
    "max_position_embeddings": 512,
}
ANSWERS = ["no", "perhaps", "yes", "always"]
PAIRS = {"id2label": dict(enumerate(ANSWERS)), "text_columns": ["premise", "hypothesis"]}
SEVERAL = PAIRS | {"problem_type": "multi_label_classification"}
# Every head, and every kind of encoder. The head, the family, the engine, fields, and what the example prints.
CASES = [
    ("Model", "bert", "onnx", {}, ""),
    ("ForPreTraining", "bert", "onnx", {}, ""),
    ("ForPreTraining", "electra", "onnx", {}, ""),
    ("ForMaskedLM", "roberta", "onnx", {}, ""),
    ("ForNextSentencePrediction", "bert", "onnx", {}, ""),
    ("ForSequenceClassification", "bert", "onnx", SEVERAL, None),
    ("ForSequenceClassification", "roberta", "bert", PAIRS, None),
    ("ForQuestionAnswering", "bert", "onnx", {}, ""),
    ("ForMultipleChoice", "bert", "onnx", {}, ""),
    ("ForMultipleChoice", "bert", "openvino", {}, ""),
    ("ForTokenClassification", "deberta-v2", "onnx", TAGGER, "-PER'"),
]


@pytest.fixture(scope="module")
def graphs() -> Iterator[None]:
    """Exports each model once, because torch needs seconds for a graph, and reads torch's operators once."""
    written: dict[tuple, dict[str, bytes]] = {}

    def write_once(model, input_names, file):
        # The seed is fixed, so class and configuration determine the weights. The kind of problem does not matter.
        fields = model.config.to_dict() | {"problem_type": None}
        key = (type(model), json.dumps(fields, default=str), graph.MOST_BYTES)
        if key not in written:
            graph.write_graph(model, input_names, file)
            written[key] = {each.name: each.read_bytes() for each in file.parent.iterdir()}
        for name, content in written[key].items():
            (file.parent / name).write_bytes(content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        for engine in (onnx_engine, openvino_engine):
            patch.setattr(engine, "write_graph", write_once)
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Returns a function that writes a tiny checkpoint of a head and family."""
    root = tmp_path_factory.mktemp("checkpoints")
    size = {"num_hidden_layers": 1, "max_position_embeddings": 130}

    def write(head: str, family: str = "bert", **fields) -> Path:
        folder = root / "-".join([family, head, *fields])
        if not folder.exists():
            family_checkpoints.write_checkpoint(folder, family, head, **size | fields)
        return folder

    return write


def test_bert_in_float16_with_default_labels(checkpoint, tmp_path, capsys):
    """Servers need the labels in the configuration. transformers omits default labels."""
    arguments = ["export", str(checkpoint("ForTokenClassification")), str(tmp_path / "out")]
    assert main([*arguments, "--to", "bert", "--dtype", "float16"]) == 0
    printed = capsys.readouterr().out
    assert "Weights: float16," in printed
    assert 1e-5 < float(re.search(r"Check: outputs differ by at most (\S+)", printed)[1]) < 1
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    assert config["label2id"] == {"LABEL_0": 0, "LABEL_1": 1}
    # In Python, the dtype may be from torch.
    assert export_model(checkpoint("Model"), tmp_path / "python", "bert", dtype=torch.float16).dtype == "float16"
    assert SnugBertModel.from_pretrained(tmp_path / "python", dtype="auto").dtype == torch.float16


def test_every_head_is_exported():
    assert {head for head, *_ in CASES} == set(HEADS)


@pytest.mark.slow
@pytest.mark.parametrize(("head", "family", "to", "fields", "printed"), CASES)
def test_every_head_equals_the_original_and_its_card_runs(
    checkpoint, tmp_path, head, family, to, fields, printed, monkeypatch, capsys
):
    source = checkpoint(head, family, **fields)
    if head == "ForNextSentencePrediction":
        monkeypatch.setattr(graph, "MOST_BYTES", 1000)  # as if a protobuf file held no more: weights get a second file
    done = export_model(source, tmp_path / "out", to)
    assert (tmp_path / "out/onnx/model.onnx.data").exists() == (head == "ForNextSentencePrediction")
    assert 0 < done.difference < FLOAT32_TOLERANCE / 10 and done.num_texts > 40
    if head == "Model":
        outputs = InferenceSession(tmp_path / "out/onnx/model.onnx").get_outputs()
        assert [output.name for output in outputs] == ["last_hidden_state", "pooler_output"]
    card = ModelCard.load(tmp_path / "out" / "README.md").text
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"^```python\n(.*?)^```$", card, flags=re.DOTALL | re.MULTILINE)[1], {})
    found = capsys.readouterr().out
    if printed is not None:
        assert found and printed in found
        return
    pair = AutoTokenizer.from_pretrained(source)("The first text of a pair.", "The second text.", return_tensors="pt")
    (logits,) = AutoModelForSequenceClassification.from_pretrained(source)(**pair).logits.tolist()
    several = [answer for answer, logit in zip(ANSWERS, logits, strict=True) if logit > 0]
    expected = several if fields is SEVERAL else [ANSWERS[np.argmax(logits)]]
    assert found == f"{expected}\n" and "classifies pairs of texts" in card


@pytest.mark.slow
def test_the_check_sees_every_output_and_length(checkpoint, tmp_path):
    source = checkpoint("ForQuestionAnswering", max_position_embeddings=512)
    export_model(source, tmp_path / "out", "bert")
    tokenizer, run = AutoTokenizer.from_pretrained(source), stock_engine.load(tmp_path / "out")
    texts = make_texts(tokenizer, 512)
    batches = make_batches(texts, tokenizer, "ForQuestionAnswering", tokenizer.model_input_names, 512, size=16)
    lengths = {len(tokenizer(text, verbose=False)["input_ids"]) - 2 for text in texts}
    assert set(range(1, 13)) <= lengths and max(lengths) > 512 == max(batch["input_ids"].shape[1] for batch in batches)

    def compare(other, batches=batches):
        return find_difference([(batch, run(batch), other(batch)) for batch in batches], "ForQuestionAnswering")

    assert compare(run) == (0, 0)
    for name in ("start_logits", "end_logits"):

        def change(batch, name=name):
            outputs = run(batch)
            values = outputs[name].copy()
            values[batch["attention_mask"] == 0] = np.nan  # padding is not compared
            values[-1, 0] += 0.5
            return outputs | {name: values}

        assert compare(change)[0] == pytest.approx(0.5, abs=1e-5)
    broken = [run(batches[0]) | {"end_logits": np.full(batches[0]["input_ids"].shape, np.nan)}]
    assert compare(lambda batch: broken[0], batches[:1])[0] == np.inf


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_int8_is_smaller_than_float16(checkpoint, tmp_path, to, monkeypatch, capsys):
    source = checkpoint("ForSequenceClassification", **PAIRS)
    words = family_checkpoints.WORDS[:40]
    texts = [" ".join(words[start:]) for start in range(8)]
    (tmp_path / "text.txt").write_text("\n".join(texts) + "\n")
    sizes, differences = {}, {}
    for variant in ("float16", "calibrated", "int8"):
        dtype = "int8" if variant == "calibrated" else variant
        calibration = ["--calibration_file", str(tmp_path / "text.txt")] if variant == "calibrated" else []
        output = tmp_path / variant
        arguments = ["--to", to, "--dtype", dtype, *calibration]
        assert main(["export", str(source), str(output), *arguments]) == 0
        printed = capsys.readouterr().out
        assert f"Weights: {dtype}," in printed
        differences[variant] = re.search(r"Check: outputs differ by at most (\S+)", printed)[1]
        sizes[variant] = sum(file.stat().st_size for file in (output / to).iterdir())
        card = ModelCard.load(output / "README.md")
        assert card.data.library_name == to and f"weights: {dtype}" in card.text
        assert ("calibrated on text" in card.text) == (variant == "calibrated")
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"^```python\n(.*?)^```$", card.text, flags=re.DOTALL | re.MULTILINE)[1], {})
    assert capsys.readouterr().out.strip("[']\n") in ANSWERS
    assert sizes["float16"] > sizes["int8"]
    assert 1e-4 < float(differences["int8"]) < 1
    if to == "onnx":  # without calibration, products of two activations stay in float32
        operators = [node.op_type for node in onnx_engine.onnx.load(tmp_path / "int8/onnx/model.onnx").graph.node]
        assert operators.count("MatMul") == 2
    assert differences["calibrated"] != differences["int8"]


@pytest.mark.slow
def test_a_wrong_export_is_refused_and_nothing_is_written(checkpoint, tmp_path, monkeypatch):
    load, added = onnx_engine.load, 2e-4

    def load_wrong(folder):
        run = load(folder)
        return lambda batch: {name: values + added for name, values in run(batch).items()}

    monkeypatch.setattr(onnx_engine, "load", load_wrong)
    with pytest.raises(InputError, match=r"ONNX Runtime .* the outputs differ by 2\.\de-04, .* The limit is 1e-04"):
        export_model(checkpoint("ForSequenceClassification", **PAIRS), tmp_path / "out", "onnx")
    added = np.nan  # refused in every dtype
    with pytest.raises(InputError, match="the outputs differ by inf"):
        export_model(checkpoint("ForSequenceClassification", **PAIRS), tmp_path / "out", "onnx", dtype="float16")
    assert list(tmp_path.iterdir()) == []
    added = 2e-4  # float16 has no limit
    export_model(checkpoint("ForSequenceClassification", **PAIRS), tmp_path / "out", "onnx", dtype="float16")


@pytest.mark.slow
def test_an_existing_model_is_replaced_only_on_request(checkpoint, tmp_path):
    source, output = checkpoint("Model"), tmp_path / "out"
    export_model(source, output, "onnx")
    (output / "mine.txt").write_text("kept")
    (output / "README.md").write_text("my own card")
    (output / "config.json").unlink()  # a folder with the model of an engine counts, too
    with pytest.raises(InputError, match="already contains"):
        export_model(source, output, "bert")
    assert (output / "onnx/model.onnx").exists()
    export_model(source, output, "bert", overwrite_output_dir=True)
    assert (output / "mine.txt").exists() and not (output / "onnx").exists()
    assert (output / "model.safetensors").exists() and (output / "config.json").exists()
    assert (output / "README.md").read_text() == "my own card"


@pytest.mark.parametrize(
    ("head", "arguments", "message"),
    [
        ("Model", ["--to", "bert", "--dtype", "int8"], "no int8 BERT for CPUs"),
        ("Model", ["--to", "onnx", "--calibration_file", __file__], "--calibration_file needs --dtype int8"),
        ("Model", ["--to", "onnx", "--text_file", "none.txt"], "--text_file: none.txt: no such file"),
        ("Model", ["--to", "onx"], "--to: unknown value 'onx'. Did you mean onnx?"),
        ("Model", ["--to", "bert", "--dtype", "bfloat16"], "--dtype: unknown value 'bfloat16'"),
    ],
)
def test_errors(checkpoint, tmp_path, capsys, head, arguments, message):
    assert main(["export", str(checkpoint(head)), str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


WORDS = "a good film but not ok the bad one is what it was".split()
LONG = " ".join(WORDS * 20)
TEXTS = [" ".join(WORDS[start:end]) for start in range(4) for end in range(5, 13, 2)] + [LONG]
# Heads, what is stored in config.json besides the default, and rows to predict.
PREDICTED = {
    "ForSequenceClassification": (
        {"thresholds": {"LABEL_1": 0.9}, "document_windows": {"max_seq_length": 32, "doc_stride": 8}},
        [{"text": text} for text in TEXTS],
    ),
    "ForTokenClassification": (TAGGER, [{"text": text} for text in TEXTS]),
    "ForQuestionAnswering": ({}, [{"question": "what is it?", "context": text} for text in TEXTS]),
    "ForMultipleChoice": ({}, [{"text": "good", "choices": TEXTS[: 2 + row % 3]} for row in range(9)]),
    "Model": ({}, [{"text": text} for text in TEXTS]),
}


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "openvino"])
@pytest.mark.parametrize("head", PREDICTED)
def test_an_export_predicts_as_the_original(checkpoint, tmp_path, head, to):
    fields, rows = PREDICTED[head]
    original, exported = checkpoint(head, **fields), tmp_path / "export"
    if head == "Model":
        modules = [Transformer(str(original)), Pooling(16, "mean"), Normalize()]
        original = tmp_path / "encoder"
        SentenceTransformer(modules=modules).save_pretrained(str(original))
    export_model(original, exported, to)
    assert not list(exported.glob("*.safetensors"))
    found = []
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for model in (original, exported):
        output = tmp_path / f"{model.name}.jsonl"
        arguments = ["--input_file", str(tmp_path / "rows.jsonl"), "--output_file", str(output)]
        assert main(["predict", "--model_name_or_path", str(model), *arguments, "--max_batch_tokens", "200"]) == 0
        found.append([json.loads(line) for line in output.read_text().splitlines()])
    before, after = (json.dumps(rows) for rows in found)
    numbers = re.compile(r"-?\d+\.[\de-]+")
    assert numbers.sub("", before) == numbers.sub("", after)
    values = [np.array(numbers.findall(text), float) for text in (before, after)]
    np.testing.assert_allclose(*values, atol=1e-4)
    assert np.std(values[0]) > 1e-4
    if head != "Model":
        assert len(Predictor(exported)(rows)) == len(rows)


@pytest.mark.slow
def test_an_export_is_scored_but_not_trained(checkpoint, tmp_path, capsys):
    source = checkpoint("ForSequenceClassification", **PAIRS)
    (tmp_path / "dev.csv").write_text("premise,hypothesis,label\na good film,a film,yes\nnot good,good,no\n")
    export_model(source, tmp_path / "export", "onnx")
    scores = []
    for model in (source, tmp_path / "export"):
        command = ["glue", "--model_name_or_path", str(model), "--output_dir", str(tmp_path / "scored")]
        assert main([*command, "--validation_file", str(tmp_path / "dev.csv"), "--overwrite_output_dir"]) == 0
        scores.append(json.loads((tmp_path / "scored/results.json").read_text())["metrics"])
    assert scores[0] == scores[1] and scores[0]["eval"]["accuracy"] >= 0
    assert main([*command, "--train_file", str(tmp_path / "dev.csv"), "--overwrite_output_dir"]) == 2
    assert "export is an export and can only predict. Use the model it was exported from" in capsys.readouterr().err
    assert main(["evaluate", "--model_name_or_path", str(tmp_path / "export"), "--pairs_file", __file__]) == 2
