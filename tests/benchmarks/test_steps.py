"""Measurements of steps, memory, FLOPs and predictions. Sides that do not compute the same are not measured."""

import sys

import family_checkpoints
import forked
import pytest
import torch
from benchmark_files import BENCHMARKS
from markdown_tables import cells
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForTokenClassification, DebertaV2Config, RobertaConfig

from snugbert import SnugBertConfig

pytestmark = pytest.mark.long

FLAGS = ["--batch_size", "4", "--pairs", "1"]
TRAINING = [*FLAGS, "--steps", "1"]


def read_rows(capsys) -> dict[str, dict[str, str]]:
    """The rows of the table by their work. The ratio of times is the ratio of the speeds."""
    titles, *lines = cells(capsys.readouterr().out)
    rows = {line[0]: dict(zip(titles, line, strict=True)) for line in lines}
    for row in rows.values():
        ratio = float(row["ratio: median (min-max)"].split()[0])
        ours, stock = (float(row[f"tokens/s {side}"].replace(",", "")) for side in ("ours", "stock"))
        assert ratio == pytest.approx(ours / stock, rel=0.02, abs=0.01)
        assert 0 < float(row["fill"].rstrip("%")) <= 100
    return rows


def run_code(code: str, path: list[str]) -> None:
    sys.path[:] = path
    exec(code, {})


def test_pretraining_step(data_dir, minilm, capsys, monkeypatch):
    """Memory is measured in forked processes, which import nothing again."""
    import side_by_side
    from pretraining_step import main

    def run_forked(command, **_):
        return forked.run(run_code, command[-1], [str(BENCHMARKS), *sys.path])

    monkeypatch.setattr(side_by_side.subprocess, "run", run_forked)
    text = str(data_dir / "sample_text/sample_text.txt")
    settings = ["--tokenizer_name", str(minilm), "--size", "tiny", "--max_seq_length", "32"]
    main([*TRAINING, *settings, "--train_file", text])
    (row,) = read_rows(capsys).values()
    # Between the size of weights and gradients (4.4 million parameters, float32) and a small multiple.
    ours, _, stock, _ = row["peak MB ours / stock"].split()
    assert 35 < float(ours) < 500 and 35 < float(stock) < 500


def test_finetuning_and_inference(little_data, tiny_model, capsys, monkeypatch):
    import finetuning
    import inference
    import side_by_side

    model = ["--model_name_or_path", tiny_model, "--glue_dir", str(little_data / "glue"), "--skip_memory"]
    files = ["--conll_file", str(little_data / "conll2003/train.jsonl.gz")]
    files += ["--squad_file", str(little_data / "squad/train-v1.1-first44.jsonl.gz")]
    tasks = ["mrpc", "conll2003", "squad"]
    training, predicting = [*TRAINING, *model, *files, "--tasks", *tasks], [*FLAGS, *model, "--tasks", "mrpc"]
    finetuning.main([*training, "--dtype", "float32"])
    assert [*read_rows(capsys)] == [f"{task}, float32, dropout 0.1" for task in tasks]
    inference.main([*predicting, "--max_samples", "6"])
    assert [*read_rows(capsys)] == ["mrpc dev, 6 examples, float32", "mrpc dev, 6 examples, float32, packed"]

    build = side_by_side.build

    def build_another(side, *arguments, **overrides):
        model = build(side, *arguments, **overrides)
        if side == "ours":
            model.bert.embeddings.word_embeddings.weight.data[1:] *= 1.1
        return model

    monkeypatch.setattr(side_by_side, "build", build_another)
    for main, flags in ((finetuning.main, training), (inference.main, predicting)):
        with pytest.raises(SystemExit, match=r"mrpc.* of ours and stock differ by .* in float32\. Not measured"):
            main(flags)


def test_the_family(little_data, capsys, monkeypatch):
    """The benchmark stops if the sides' weights, names or positions differ."""
    import families

    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 96}
    models = {
        "roberta": RobertaConfig(**sizes, **families.ROBERTA, vocab_size=30522),
        "deberta": DebertaV2Config(**families.DEBERTA | sizes, vocab_size=30522),
    }
    monkeypatch.setattr(families, "MODELS", models)
    families.main([*TRAINING, "--glue_dir", str(little_data / "glue"), "--max_samples", "8", "--skip_memory"])
    assert [*read_rows(capsys)] == [f"{name}, {work}, bfloat16" for name in models for work in ("step", "inference")]


def test_flops_equal_torchs_count():
    from side_by_side import needed_flops

    # Without padding, and with every token of the last layer needed, stock BERT computes nothing extra.
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 50, "num_labels": 5}
    stock = BertForTokenClassification(BertConfig(**sizes, num_hidden_layers=3, attn_implementation="eager"))
    batch = {"input_ids": torch.ones(4, 7, dtype=torch.long), "attention_mask": torch.ones(4, 7, dtype=torch.long)}
    with FlopCounterMode(display=False) as counter:
        stock(**batch)
    config = SnugBertConfig(**sizes, num_hidden_layers=3)
    assert needed_flops("TokenClassification", config, batch) == counter.get_total_flops()


@pytest.mark.usefixtures("one_thread")
def test_prediction(data_dir, tmp_path, monkeypatch, capsys):
    import prediction

    labels = {"classifier": ["negative", "positive"], "tagger": ["O", "B-PER", "I-PER"], "plain": ["LABEL_0"]}
    heads = ("ForSequenceClassification", "ForTokenClassification", "Model")
    for (name, names), head in zip(labels.items(), heads, strict=True):
        fields = {"id2label": dict(enumerate(names)), "label2id": {label: index for index, label in enumerate(names)}}
        # Large weights, so that labels are not decided by rounding.
        family_checkpoints.write_checkpoint(tmp_path / name, "bert", head, initializer_range=0.2, **fields)
    encoder = Transformer(str(tmp_path / "plain"))
    pooling = Pooling(encoder.get_embedding_dimension(), "mean")
    SentenceTransformer(modules=[encoder, pooling]).save_pretrained(str(tmp_path / "embedder"))
    monkeypatch.setattr(prediction, "MOST_CHARACTERS", 200)  # the tiny vocabulary has a token per character
    argv = ["--glue_dir", str(data_dir / "glue"), "--squad_file", str(data_dir / "squad/dev-v1.1.jsonl.gz")]
    for name in ("classifier", "tagger", "embedder"):
        argv += [f"--{name}", str(tmp_path / name)]
    argv += ["--max_rows", "5", "--rounds", "1"]
    prediction.main(argv)
    _, *rows = cells(capsys.readouterr().out)
    assert [row[0] for row in rows] == [
        "classifier, SST-2",
        "entities, paragraphs",
        "embeddings, paragraphs",
        "embeddings, paragraphs, next to sentence-transformers",
    ]
    for row in rows:
        assert row[1] == "5" and row[5] == "0" and float(row[2].split()[0]) > 0 and float(row[6]) < 1e-4
    monkeypatch.setattr(prediction, "TOLERANCE", 0)
    with pytest.raises(SystemExit, match=r"scores differ by .* Not measured\."):
        prediction.main(argv)

    import exports

    for task, model in (("sst2", "classifier"), ("conll", "tagger")):
        files = ["--glue_dir", str(data_dir / "glue"), "--conll_file", str(data_dir / "conll2003/valid.txt.gz")]
        exports.main(["--task", task, "--model", str(tmp_path / model), *files, "--max_rows", "9", "--rounds", "1"])
        rows = [row for row in cells(capsys.readouterr().out) if len(row) == 6][1:]
        assert rows[0][3].startswith("1.00") and rows[0][4:] == [*rows[1][4:]] and rows[1][4] == "100.0%"
