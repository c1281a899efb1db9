"""What a pretraining run leaves beside its model, and the FLOPs in its log."""

import json
import re

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from matplotlib.figure import Figure
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from snugbert import SnugBertConfig, SnugBertForPreTraining
from snugbert.packed_batches import pack
from snugbert.trainers.pretraining.card import write_pretraining_card
from snugbert.trainers.pretraining.plot import draw_training
from snugbert.trainers.pretraining.throughput import peak_flops, training_flops

pytestmark = pytest.mark.usefixtures("pictures")

SETTINGS = {"parameters": 5_515_010, "learning rate": 1e-3, "phases": "128:90%,512:10%"}
DATA = {"files": "books/train-*.txt.gz | more_*", "word pieces": 12_041_234}


def log_line(number: int, next_sentences: bool) -> dict[str, float]:
    line = {"step": number, "tokens": 4096 * number, "learning_rate": 1e-3 / number}
    line |= {"mlm_loss": 6 - number / 1000, "mlm_accuracy": 0.1}
    return line | ({"nsp_loss": 0.6, "nsp_accuracy": 0.7} if next_sentences else {})


def evaluated(line: dict[str, float]) -> dict[str, float]:
    return {"step": line["step"]} | {f"eval_{name}": value / 2 for name, value in line.items() if "_" in name}


def pixels(image_file, color: tuple[int, int, int]) -> int:
    return int((np.asarray(Image.open(image_file).convert("RGB")) == color).all(-1).sum())


BLUE, ORANGE = (0x2B, 0x6C, 0xB0), (0xD9, 0x48, 0x0F)  # of training and validation


@pytest.mark.parametrize("lines", [1, 3000])
def test_training_alone_and_with_validation(tmp_path, monkeypatch, lines):
    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **kw: (figures.append(figure), save(figure, *args, **kw))
    )
    log, picture = tmp_path / "metrics.jsonl", tmp_path / "training.png"
    training = [log_line(number, next_sentences=False) for number in range(1, lines + 1)]
    whole = "".join(json.dumps(line) + "\n" for line in training)
    log.write_text(whole)
    draw_training(log, picture)
    blue, width = pixels(picture, BLUE), Image.open(picture).width
    assert blue > 50 and pixels(picture, ORANGE) == 0

    # A run that was killed leaves half a line; next sentences are a second column.
    training = [log_line(number, next_sentences=True) for number in range(1, lines + 1)]
    mixed = [*training, evaluated(training[-1]), {"step": lines, "train_runtime": 3.0}]
    log.write_text("".join(json.dumps(line) + "\n" for line in mixed) + '{"tokens": 4096, "mlm_lo')
    draw_training(log, picture, {"mlm_loss": 6.5, "mlm_accuracy": 0.05, "nsp_accuracy": 0.5})
    assert pixels(picture, BLUE) > 1.5 * blue and pixels(picture, ORANGE) > 50
    assert Image.open(picture).width > 1.5 * width
    panels = figures[-1].axes
    assert [panel.get_ylabel() for panel in panels] == [
        name for name in ("loss (nats)", "accuracy", "learning rate") for _ in range(2)
    ]
    named = [{text.get_text() for text in panel.get_legend().get_texts()} for panel in panels[:4]]
    assert all(any(text.startswith("validation, last") for text in texts) for texts in named)
    baselines = [[text for text in texts if "without context" in text] for texts in named]
    assert baselines == [["without context 6.500"], [], ["without context 5.0%"], ["without context 50.0%"]]


def test_nothing_is_drawn_of_nothing(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "train_runtime": 3.0}\n\n{"tok')
    draw_training(tmp_path / "metrics.jsonl", tmp_path / "training.png")
    assert not (tmp_path / "training.png").exists()


def test_model_card(tmp_path):
    write_pretraining_card(
        tmp_path,
        name="me/mini",
        language="en",
        data=DATA,
        settings=SETTINGS,
        figures={"mlm_loss": 5.9194, "mlm_accuracy": 0.1461, "eval_runtime": 3.0},
        baselines={"mlm_loss": 6.5421},
        dataset_name="me/books",
    )
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "transformers" and card.data.pipeline_tag == "fill-mask"
    assert card.data.language == "en" and card.data.datasets == ["me/books"] and card.data.license is None
    assert card.text.count("# me/mini\n") == 1 and "training.png" not in card.text
    rows = [re.split(r" (?<!\\)\| ", line[2:-2]) for line in card.text.splitlines() if line.startswith("| ")]
    assert ["files", r"books/train-\*.txt.gz \| more\_\*"] in rows and ["word pieces", "12,041,234"] in rows
    assert ["learning rate", "0.001"] in rows and ["phases", "128:90%,512:10%"] in rows
    assert ["masked token loss, nats", "5.919", "6.542"] in rows and ["masked token accuracy", "14.6%", ""] in rows
    snippet, with_package = re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)
    compile(snippet, "README.md", "exec"), compile(with_package, "README.md", "exec")
    assert '"me/mini", trust_remote_code=True' in snippet


def test_a_card_of_ones_own_stays(tmp_path):
    file, facts = tmp_path / "README.md", {"language": None, "data": DATA, "settings": SETTINGS}
    write_pretraining_card(tmp_path, name="first", **facts)
    (tmp_path / "training.png").touch()
    write_pretraining_card(tmp_path, name="second", **facts)
    assert "# second" in file.read_text() and "](training.png)" in file.read_text()
    file.write_text("# My words\n")
    write_pretraining_card(tmp_path, name="third", **facts)
    assert file.read_text() == "# My words\n"


def test_flops_of_a_packed_batch_are_those_that_the_model_takes():
    # Every token but [CLS] has a label, so the last layer reads all; sequences are equally long, so eager pads none.
    config = SnugBertConfig.from_size("tiny", vocab_size=50, attn_implementation="eager")
    model = SnugBertForPreTraining(config)
    batch = pack({name: [np.arange(1, 8)] * 4 for name in ("input_ids", "labels")})
    batch["labels"][0, batch["cu_seq_lens_q"][:-1].long()] = -100
    batch["next_sentence_label"] = torch.tensor([0, 1, 0, 1])
    with FlopCounterMode(display=False) as counter:
        model(**batch)
    assert training_flops(config, batch).item() == 3 * counter.get_total_flops()

    # The next-sentence head: [CLS] through the last layer, pooler and classifier.
    H, inner, length = config.hidden_size, config.intermediate_size, 7
    of_cls = 2 * (2 * H * H + 2 * H * inner) + 4 * H * length + 2 * (H * H + H * 2)
    with_head = training_flops(config, batch)
    del batch["next_sentence_label"]
    assert with_head - training_flops(config, batch) == 3 * 4 * of_cls


def test_peak_flops_are_measured_without_touching_the_random_state():
    state = torch.get_rng_state()
    assert 1e8 < peak_flops("cpu", torch.float32) < 1e15
    assert torch.equal(torch.get_rng_state(), state)
