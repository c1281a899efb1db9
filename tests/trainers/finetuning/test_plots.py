"""What a fine-tuning run leaves for people: what the pictures show, the tables, and the card as the Hub reads it."""

import json
import math
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from huggingface_hub import EvalResult, ModelCard
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from sklearn.metrics import confusion_matrix

import snugbert
from snugbert.trainers.finetuning.card import write_finetuning_card
from snugbert.trainers.finetuning.plots import (
    ANSWER_LENGTHS,
    draw_confusion_matrix,
    draw_entity_scores,
    draw_f1_by_answer_length,
    draw_learning_curve,
    draw_thresholds,
)
from snugbert.trainers.finetuning.results import write_results
from snugbert.trainers.finetuning.tables import means_table, results_table, suite_table

pytestmark = pytest.mark.usefixtures("one_thread", "pictures")

# --- pictures ---------------------------------------------------------------------------------------------------


@pytest.fixture
def picture(tmp_path, monkeypatch):
    """Calls a function that draws, and gives the figure behind the PNG; its words must lie in it, and be legible."""
    figures = []
    save = Figure.savefig

    def recorded(figure, *args, **kwargs):
        figures.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", recorded)

    def draw(function, *args):
        file = tmp_path / "picture.png"
        function(*args, file)
        (figure,) = figures
        figures.clear()
        image = Image.open(file)
        assert image.format == "PNG" and image.size == tuple(figure.bbox.size.astype(int))
        assert image.getpixel((0, 0))[:3] == (255, 255, 255)
        extent = figure.get_tightbbox()  # inches
        assert extent.x0 >= 0 and extent.y0 >= 0 and extent.x1 <= figure.bbox_inches.x1
        assert extent.y1 <= figure.bbox_inches.y1
        assert all(text.get_fontsize() >= 4.5 for text in figure.findobj(Text))
        return figure

    return draw


def words(texts) -> list[str]:
    return [text.get_text() for text in texts]


def overlap(texts) -> bool:
    return any(a.get_window_extent().overlaps(b.get_window_extent()) for a, b in pairwise(texts))


@pytest.mark.parametrize("classes", [2, 5, 20, 77])
def test_confusion_matrix_is_that_of_scikit_learn(picture, classes):
    generator = np.random.default_rng(classes)
    right = generator.integers(0, classes - 1, 40 * classes)  # none of the last label
    given = np.where(generator.random(len(right)) < 0.8, right, generator.integers(0, classes, len(right)))
    labels = [f"the_label_{i}" for i in range(classes)]
    labels[1] = "costs $5 or $6, in " + "a very " * 100 + "long name"
    figure = picture(draw_confusion_matrix, right, given, labels)
    panel = figure.axes[0]
    counts = confusion_matrix(right, given, labels=range(classes))
    shares = confusion_matrix(right, given, labels=range(classes), normalize="true")
    np.testing.assert_allclose(panel.images[0].get_array(), shares)
    assert panel.get_title("left") == f"{counts.trace():,} of {len(right):,} right ({(right == given).mean():.1%})"
    rows = words(panel.get_yticklabels())
    assert rows[0] == f"the_label_0 ({counts[0].sum()})" and rows[-1].endswith(" (0)")
    assert len(rows) == classes and len(rows[1]) < 50
    assert not overlap(panel.get_xticklabels()) and not overlap(panel.get_yticklabels())

    cells = {(round(text.get_position()[1]), round(text.get_position()[0])): text for text in panel.texts}
    for (row, column), text in cells.items():
        shown = text.get_text().split("\n")
        assert shown[0] == f"{counts[row, column]:,}"
        assert shown[1:] == ([f"{shares[row, column]:.0%}"] if classes <= 30 and counts[row, column] else [])
        corners = panel.transData.transform([(0, 0), (1, 1)])
        width, height = np.abs(corners[1] - corners[0])
        box = text.get_window_extent()
        assert box.width <= width and box.height <= height
    assert all((i, i) in cells for i in range(classes - 1))
    assert len(cells) == classes**2 if classes <= 30 else len(cells) >= (shares > 0.02).sum()


def test_confusion_matrix_of_more_labels_than_can_be_read(picture):
    ids = np.arange(200)
    panel = picture(draw_confusion_matrix, *2 * [np.repeat(ids, 1000)], [f"label {i}" for i in ids]).axes[0]
    np.testing.assert_array_equal(panel.images[0].get_array(), np.eye(200))
    assert words(panel.get_xticklabels()) == [f"label {i}" for i in ids[::2]] and not overlap(panel.get_yticklabels())
    assert not panel.texts


def test_entity_scores(picture):
    scores = {
        "PER": {"precision": 0.95, "recall": 0.85, "f1": 0.897, "number": 1617},
        "PRODUCT": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "number": 0},
        "LOC": {"precision": 1.0, "recall": 1.0, "f1": 1.0, "number": 1},
    }
    figure = picture(draw_entity_scores, scores)
    (panel,) = figure.axes
    assert words(panel.get_yticklabels()) == ["PER (1,617)", "PRODUCT (0)", "LOC (1)"]
    assert panel.yaxis_inverted()  # the first type on top
    assert [bar.get_width() for bar in panel.patches] == [0.897, 0.0, 1.0]
    marks = {line.get_label(): list(line.get_xdata()) for line in panel.lines}
    assert marks == {"precision": [0.95, 0.0, 1.0], "recall": [0.85, 0.0, 1.0]}
    assert words(panel.texts) == ["F1 89.7%", "none", "F1 100.0%"]
    assert words(figure.legends[0].get_texts()) == ["F1", "recall", "precision"]
    many = picture(draw_entity_scores, {f"TYPE {i}": scores["PER"] for i in range(40)})
    assert not overlap(many.axes[0].get_yticklabels()) and many.get_figheight() > 10


def test_f1_by_answer_length(picture):
    lengths = np.array([0, 1, 1, 1, 7, 10, 11, 500])
    f1 = np.array([100.0, 90.0, 60.0, 30.0, 50.0, 40.0, 0.0, 80.0])
    figure = picture(draw_f1_by_answer_length, lengths, f1)
    (panel,) = figure.axes
    groups = ["no answer\n(1)", "1\n(3)", "6-10\n(2)", "11-20\n(1)", "21 or more\n(1)"]
    assert words(panel.get_xticklabels()) == groups
    assert [bar.get_height() for bar in panel.patches] == [100.0, 60.0, 45.0, 0.0, 80.0]
    assert words(panel.texts) == ["100.0", "60.0", "45.0", "0.0", "80.0"]
    assert panel.get_ylim() == (0, 100)
    # By hand: the deviation of 90, 60, 30 is 30, that of 50 and 40 the root of 50.
    intervals = [segment[:, 1].tolist() for segment in panel.collections[0].get_segments()]
    of_three, of_two = 1.96 * 30 / math.sqrt(3), 1.96 * math.sqrt(50) / math.sqrt(2)
    expected = [[100, 100], [60 - of_three, 60 + of_three], [45 - of_two, 45 + of_two], [0, 0], [80, 80]]
    np.testing.assert_allclose(intervals, expected)
    assert words(figure.legends[0].get_texts()) == ["all questions (8), 56.2"]
    picture(draw_f1_by_answer_length, np.array([3]), np.array([66.7]))  # one bar


def test_answer_lengths_leave_none_out():
    assert [low for low, _ in ANSWER_LENGTHS] == [0, *(high + 1 for _, high in ANSWER_LENGTHS[:-1])]


@pytest.mark.parametrize(
    "chosen, f1_there", [(-np.inf, 50.0), (-5.0, 50.0), (-2.0, 51.0), (0.5, 52.0), (9.0, 53.0), (np.inf, 53.0)]
)
def test_thresholds(picture, chosen, f1_there):
    thresholds = np.array([-np.inf, -2.0, 0.0, 3.0])
    exact_at, f1_at = np.array([50.0, 40.0, 45.0, 41.0]), np.array([50.0, 51.0, 52.0, 53.0])
    figure = picture(draw_thresholds, thresholds, exact_at, f1_at, chosen)
    f1, exact, line = figure.axes[0].lines
    assert list(f1.get_xdata())[1:-1] == list(exact.get_xdata())[1:-1] == [-2.0, 0.0, 3.0]
    low, high = figure.axes[0].get_xlim()
    assert low == f1.get_xdata()[0] < -2.0 and high == f1.get_xdata()[-1] > 3.0
    assert list(f1.get_ydata()) == [*f1_at, 53.0] and list(exact.get_ydata()) == [*exact_at, 41.0]
    assert set(line.get_xdata()) == {chosen if np.isfinite(chosen) else low if chosen < 0 else high}
    assert low <= line.get_xdata()[0] <= high
    assert words(figure.legends[0].get_texts())[0] == f"F1, at the line {f1_there}"
    assert words(figure.legends[0].get_texts())[2] == f"chosen, {chosen:.2f}"


def test_learning_curve(picture):
    training = [{"loss": 1 / step, "learning_rate": 1e-5, "epoch": step / 10, "step": step} for step in range(1, 31)]
    validation = [
        {"eval_loss": 0.5, "eval_accuracy": 0.8, "epoch": 1.0, "step": 10},
        {"eval_loss": 0.4, "eval_accuracy": 0.9, "epoch": 2.0, "step": 20},
        {"train_runtime": 3.0, "train_loss": 0.2, "epoch": 3.0, "step": 30},
    ]
    loss, accuracy = picture(draw_learning_curve, training + validation, "accuracy").axes
    assert [panel.get_title("left") for panel in (loss, accuracy)] == ["loss", "accuracy"]
    assert list(loss.lines[0].get_xdata()) == [line["epoch"] for line in training]
    assert list(loss.lines[1].get_ydata()) == [0.5, 0.4]
    assert list(accuracy.lines[0].get_xdata()) == [1.0, 2.0] and list(accuracy.lines[0].get_ydata()) == [0.8, 0.9]
    assert words(loss.get_legend().get_texts()) == ["training, last 0.0333", "validation, last 0.4000"]
    assert words(accuracy.get_legend().get_texts()) == ["validation, last 0.9000"]

    # Chosen by the loss, there is nothing more to show; percent have two digits; one point is a dot.
    assert len(picture(draw_learning_curve, training + validation, "loss").axes) == 1
    (panel,) = picture(draw_learning_curve, [{"eval_f1": 88.125, "epoch": 1.0}], "f1").axes
    assert words(panel.get_legend().get_texts()) == ["validation, last 88.12"] and panel.lines[0].get_marker() == "o"


def test_nothing_is_drawn_of_nothing(tmp_path):
    file, none = tmp_path / "picture.png", np.array([])
    draw_confusion_matrix(none, none, ["a", "b"], file)
    draw_entity_scores({}, file)
    draw_f1_by_answer_length(none, none, file)
    draw_thresholds(none, none, none, 0.0, file)
    draw_learning_curve([{"train_runtime": 3.0, "epoch": 1.0}], "accuracy", file)
    assert not file.exists()


# --- tables -----------------------------------------------------------------------------------------------------


def cells(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "---" not in line]


def test_results_table():
    figures = {
        "eval": {"accuracy": 0.91234, "matthews_correlation": -0.5, "pearson": float("nan"), "f1": None},
        "eval_mm": {"accuracy": 1.0},
        "predict": {"exact_match": 81.256, "total": 10570},
        "predict_ax": {},
    }
    examples = {"eval": 1500, "eval_mm": 2, "predict": 10570, "predict_ax": 3}
    assert cells(results_table(figures, {"eval": ("always 'yes'", {"accuracy": 0.5})}, examples)) == [
        ["examples", "figure", "this model", "baseline"],
        ["validation (1,500)", "accuracy", "0.9123", "0.5000 (always 'yes')"],
        ["validation (1,500)", "matthews correlation", "-0.5000", ""],
        ["validation (1,500)", "pearson", "-", ""],
        ["validation (1,500)", "f1", "-", ""],
        ["validation mismatched (2)", "accuracy", "1.0000", ""],
        ["test (10,570)", "exact match", "81.26", ""],
        ["test (10,570)", "total", "10,570", ""],
    ]
    entities = {"f1": 0.5, "LOC_precision": 1.0, "LOC_recall": 0.25, "LOC_f1": 0.4, "LOC_number": 1248}
    assert cells(results_table({"eval": entities}, {}, {"eval": 7})) == [
        ["examples", "figure", "this model", "baseline"],
        ["validation (7)", "f1", "0.5000", ""],
        ["examples", "type", "entities", "precision", "recall", "f1"],
        ["validation (7)", "LOC", "1,248", "1.0000", "0.2500", "0.4000"],
    ]


def test_means_table():
    nan = float("nan")
    rows = [
        {"batch_size": 16, "learning_rate": 5e-5, "mean": 0.91, "std": 0.01, "scores": [0.90, 0.91, 0.92]},
        {"batch_size": 32, "learning_rate": 2e-5, "mean": 89.0, "std": 1.41421},
        {"batch_size": 32, "learning_rate": 3e-5, "mean": 0.5, "std": nan},
        {"batch_size": 32, "learning_rate": 4e-5, "mean": nan, "std": nan},
    ]
    assert cells(means_table(["batch_size", "learning_rate"], rows)) == [
        ["batch size", "learning rate", "mean ± standard deviation"],
        ["16", "5e-05", "0.9100 ± 0.0100"],
        ["32", "2e-05", "89.00 ± 1.41"],
        ["32", "3e-05", "0.5000"],
        ["32", "4e-05", "-"],
    ]


# Devlin et al. (2018), table 1: MNLI matched and mismatched, QQP, QNLI, SST-2, CoLA, STS-B, MRPC, RTE, average.
PUBLISHED = {
    "OpenAI GPT": (82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0, 75.1),
    "BERT-base": (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 79.6),
    "BERT-large": (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1, 82.1),
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_suite_average_is_the_published_one(model):
    matched, mismatched, qqp, qnli, sst2, cola, stsb, mrpc, rte, _ = PUBLISHED[model]
    figures = {
        "cola": {"eval": {"matthews_correlation": cola / 100}},
        "mnli": {"eval": {"accuracy": matched / 100}, "eval_mm": {"accuracy": mismatched / 100}, "predict_ax": {}},
        "mrpc": {"eval": {"accuracy": 0.1, "f1": mrpc / 100, "combined_score": 0.1}},
        "qnli": {"eval": {"accuracy": qnli / 100}},
        "qqp": {"eval": {"accuracy": 0.1, "f1": qqp / 100}},
        "rte": {"eval": {"accuracy": rte / 100}},
        "sst2": {"eval": {"accuracy": sst2 / 100}, "predict": {"accuracy": 0.1}},
        "stsb": {"eval": {"pearson": 0.1, "spearmanr": stsb / 100}},
        "wnli": {"eval": {"accuracy": 0.563}},
    }
    table = suite_table(figures)
    header, row = cells(table)
    assert header == "MNLI-m MNLI-mm QQP QNLI SST-2 CoLA STS-B MRPC RTE average WNLI".split()
    assert row == [*map(str, PUBLISHED[model]), "56.3"] and "without" not in table

    some = suite_table({"mnli": {"eval": figures["mnli"]["eval"]}, "rte": figures["rte"]})
    header, row = cells(some)
    assert row == [str(matched), "-", "-", "-", "-", "-", "-", "-", str(rte), f"{(matched + rte) / 2:.1f}"]
    assert "without MNLI-mm, QQP, QNLI, SST-2, CoLA, STS-B, MRPC." in some


def test_results_files(tmp_path):
    results = {
        "task": "CoLA",
        "figures": {"eval": {"matthews_correlation": 0.52}},
        "examples": {"eval": 1043},
        "baselines": {"eval": {"answer": "always 'acceptable'", "matthews_correlation": 0.0}},
        "sweep": {"std": float("nan"), "name": "Zürich"},
    }
    write_results(tmp_path, results, "| batch size |")
    text = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert text.startswith("# CoLA\n") and "| 0.5200 | 0.0000 (always 'acceptable') |" in text
    assert text.endswith("\n| batch size |\n")
    written = (tmp_path / "results.json").read_text(encoding="utf-8")
    assert json.loads(written) == results | {"sweep": {"std": None, "name": "Zürich"}}
    with pytest.raises(TypeError):
        write_results(tmp_path, results | {"settings": object()})
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == written
    assert sorted(file.name for file in tmp_path.iterdir()) == ["results.json", "results.md"]


# --- the model card ---------------------------------------------------------------------------------------------

CARD = {
    "name": "me/mnli",
    "task": "MNLI",
    "pipeline_tag": "text-classification",
    "dataset": ("GLUE (MNLI)", "nyu-mll/glue", "mnli"),
    "language": "en",
    "base_model": "google-bert/bert-base-uncased",
    "labels": ["entailment", "neutral", "contradiction"],
    "examples": {"eval": 90, "eval_mm": 90, "predict": 70, "predict_ax": 11},
    "settings": {
        **{"learning_rate": 3e-5, "seed": 0, "weight_decay": 0.0, "bf16": False, "class_weights": None},
        **{"train_file": "/home/ada/train.csv", "max_eval_samples": 90},
    },
    "figures": {
        "eval": {"accuracy": 0.8412345678, "combined_score": 0.7, "pearson": float("nan")},
        "eval_mm": {"accuracy": 0.83},
        "predict": {"exact_match": 80.5, "pearson": 0.9, "f1": None},
        "predict_ax": {},
    },
    "baselines": {"eval": ("always 'entailment'", {"accuracy": 0.3545})},
}


def test_the_hub_reads_what_the_card_says(tmp_path):
    for name in ("learning_curve.png", "eval_mm_confusion_matrix.png", "confusion_matrix.png", "another.png"):
        (tmp_path / name).touch()
    write_finetuning_card(tmp_path, **CARD)
    card = ModelCard.load(tmp_path / "README.md")

    def result(split, metric, name, value):
        return EvalResult(
            task_type="text-classification",
            task_name="MNLI",
            dataset_type="nyu-mll/glue",
            dataset_name="GLUE (MNLI)",
            dataset_config="mnli",
            dataset_args={"first": 90} if split.startswith("validation") else None,
            dataset_split=split,
            metric_type=metric,
            metric_name=name,
            metric_value=value,
        )

    assert card.data.eval_results == [
        result("validation", "accuracy", "Accuracy", 0.841235),
        result("validation_mismatched", "accuracy", "Accuracy", 0.83),
        result("test", "exact_match", "Exact match", 80.5),
        result("test", "pearsonr", "Pearson correlation", 0.9),
    ]
    assert card.data.model_name == "me/mnli" and card.data.metrics == ["accuracy", "exact_match", "pearsonr"]
    assert card.data.base_model == "google-bert/bert-base-uncased" and card.data.pipeline_tag == "text-classification"
    assert card.data.datasets == ["nyu-mll/glue"] and card.data.language == "en"
    assert ModelCard(str(card)).data.to_dict() == card.data.to_dict()
    assert ["validation (90)", "accuracy", "0.8412", "0.3545 (always 'entailment')"] in cells(card.text)
    assert cells(card.text)[-5:] == [
        ["setting", "value"],
        ["learning rate", "3e-05"],
        ["seed", "0"],
        ["weight decay", "0"],
        ["max eval samples", "90"],
    ]
    assert re.findall(r"!\[(.+)\]\((.+)\)", card.text) == [
        ("Loss and score over the epochs of training", "learning_curve.png"),
        ("Confusion matrix: a row for each right label, a column for each predicted one", "confusion_matrix.png"),
        (
            "Confusion matrix: a row for each right label, a column for each predicted one, "
            "validation mismatched examples",
            "eval_mm_confusion_matrix.png",
        ),
    ]


def test_a_folder_is_no_base_model_of_the_hub(tmp_path):
    checkpoint = tmp_path / "secret" / "pretrained"
    checkpoint.mkdir(parents=True)
    own = {"dataset": ("my reviews, 2024", None, None), "base_model": str(checkpoint), "figures": {"predict": {}}}
    write_finetuning_card(tmp_path, **CARD | own, sweep="| batch size |")
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.base_model is None and card.data.datasets is None and card.data.eval_results is None
    assert "fine-tuned from pretrained on my reviews, 2024" in card.text and "secret" not in card.content
    assert "## All runs\n\n| batch size |" in card.text and "## Results" not in card.text
    write_finetuning_card(tmp_path, **CARD | own | {"figures": CARD["figures"]})
    assert ModelCard.load(tmp_path / "README.md").data.eval_results[0].dataset_type == "my-reviews-2024"


@pytest.mark.parametrize(
    "pipeline_tag, head, labels",
    [
        ("text-classification", "SequenceClassification", ["bad", "good"]),
        ("text-classification", "SequenceClassification", None),
        ("token-classification", "TokenClassification", ["O", "B-PER", "I-PER"]),
        ("question-answering", "QuestionAnswering", None),
    ],
)
def test_the_snippet_of_the_card_runs(tmp_path, capsys, pipeline_tag, head, labels):
    vocabulary = "[PAD] [UNK] [CLS] [SEP] [MASK] ada lovelace was born in london where ? a the first second".split()
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    snugbert.SnugBertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    number = len(labels) if labels else 2 if pipeline_tag == "question-answering" else 1
    config = snugbert.SnugBertConfig.from_size("tiny", vocab_size=len(vocabulary), num_labels=number)
    torch.manual_seed(0)
    getattr(snugbert, f"SnugBertFor{head}")(config).save_pretrained(tmp_path)

    facts = {"name": str(tmp_path), "pipeline_tag": pipeline_tag, "labels": labels}
    write_finetuning_card(tmp_path, **CARD | facts)
    text = ModelCard.load(tmp_path / "README.md").text
    assert ("gives texts or pairs of texts a number" in text) == (labels is None and head == "SequenceClassification")
    for snippet in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(snippet, names := {})
        printed = capsys.readouterr().out
        assert isinstance(names["model"], torch.nn.Module)
        match pipeline_tag:
            case "text-classification":
                assert printed.count("'score'") == 2 * number
            case "token-classification":
                assert printed.startswith("[")
            case "question-answering":
                assert ("'answer'" in printed) == ("import snugbert" in snippet)
