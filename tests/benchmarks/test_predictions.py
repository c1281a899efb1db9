"""The benchmark of `snugbert predict`, with tiny models."""

from pathlib import Path

import family_checkpoints
import pytest
from markdown_tables import cells
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_thread")]
LABELS = {0: "negative", 1: "positive"}
TAGS = {0: "O", 1: "B-PER", 2: "I-PER"}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A classifier, a tagger and an embedding model."""
    root = tmp_path_factory.mktemp("models")
    for name, head, labels in (
        ("classifier", "ForSequenceClassification", LABELS),
        ("tagger", "ForTokenClassification", TAGS),
        ("plain", "Model", {}),
    ):
        fields = {"id2label": labels, "label2id": {label: index for index, label in labels.items()}} if labels else {}
        # Large weights, so that labels are not decided by rounding.
        family_checkpoints.write_checkpoint(root / name, "bert", head, initializer_range=0.2, **fields)
    encoder = Transformer(str(root / "plain"))
    pooling = Pooling(encoder.get_embedding_dimension(), "mean")
    SentenceTransformer(modules=[encoder, pooling]).save_pretrained(str(root / "embedder"))
    return root


def test_prediction(models, data_dir, monkeypatch, capsys):
    import prediction

    monkeypatch.setattr(prediction, "MOST_CHARACTERS", 200)  # the tiny vocabulary has a token per character
    argv = ["--glue_dir", str(data_dir / "glue"), "--squad_file", str(data_dir / "squad/dev-v1.1.jsonl.gz")]
    for name in ("classifier", "tagger", "embedder"):
        argv += [f"--{name}", str(models / name)]
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
