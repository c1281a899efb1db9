"""Checkpoints with more positions: short texts, long texts, files, and refused requests."""

import json

import family_checkpoints
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from parity import CONFIG, packed
from safetensors.torch import load_file

import snugbert
from snugbert.errors import InputError
from snugbert.families.conversion import convert_model
from snugbert.families.reading import CLASSES
from snugbert.families.stock_models import continue_rows
from snugbert_cli import main

pytestmark = pytest.mark.usefixtures("one_thread")

BEFORE, AFTER = 40, 100
ROBERTA_POSITIONS = "roberta.embeddings.position_embeddings.weight"
PADDING_ROWS = {"roberta": 2}  # rows for padding, which precede the positions


def make_inputs(vocab_size: int, lengths: list[int]) -> dict[str, torch.Tensor]:
    """Draws sequences of tokens that are not special, padded on the right."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(5, vocab_size, mask.shape, generator=generator)
    return {"input_ids": ids * mask + (1 - mask), "attention_mask": mask}  # padding is 1 in RoBERTa, ignored in others


def get_logits(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(**inputs).logits


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_short_texts_keep_their_outputs_and_long_ones_work(family, tmp_path):
    """Stock and SnugBERT agree on long texts, padded and packed. Short texts have the same bits as before."""
    rows = PADDING_ROWS.get(family, 0)
    source = family_checkpoints.write_checkpoint(
        tmp_path / "source", family, max_position_embeddings=BEFORE + rows, pad_token_id=1
    )
    (source / "generator").mkdir()  # as `snugbert pretrain --objective electra` writes it
    for to in (family, "snugbert"):
        done = convert_model(source, tmp_path / to, to, max_position_embeddings=AFTER)
        assert done.difference <= 1e-12 and "Positions 40 to 99 are new" in done.notes[0]
        assert f"Convert {source / 'generator'} in the same way" in done.notes[1]
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / to)
        assert tokenizer.model_max_length == AFTER
        assert len(tokenizer("the movie " * AFTER, truncation=True).input_ids) == AFTER
    assert json.loads((tmp_path / family / "config.json").read_text())["max_position_embeddings"] == AFTER + rows
    stock_class = CLASSES[family]["ForMaskedLM"]
    before, stock = (stock_class.from_pretrained(folder) for folder in (source, tmp_path / family))
    ours = snugbert.SnugBertForMaskedLM.from_pretrained(tmp_path / "snugbert")
    ours_before = snugbert.SnugBertForMaskedLM.from_pretrained(source)
    short = make_inputs(stock.config.vocab_size, [BEFORE, 7, 1])
    assert torch.equal(get_logits(stock, short), get_logits(before, short))
    assert torch.equal(get_logits(ours, short), get_logits(ours_before, short))
    inputs = make_inputs(stock.config.vocab_size, [AFTER, BEFORE + 1, 3])
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        get_logits(ours_before, inputs)
    tokens = inputs["attention_mask"].bool()
    expected = get_logits(stock.double(), inputs)[tokens]
    ours = ours.double()
    torch.testing.assert_close(get_logits(ours, inputs)[tokens], expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(get_logits(ours, packed(inputs))[0], expected, rtol=0, atol=1e-10)


def test_sinusoids_continue():
    """A table of 16 frequencies in their own dimensions, as in `--bigram_init`, has one exact continuation."""
    angles = np.arange(2048)[:, None] * np.pi * 0.7 ** np.arange(16)
    axes, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(48, 32)))
    table = torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)], axis=1) @ axes.T)
    torch.testing.assert_close(continue_rows(table[:512], 1536), table[512:], rtol=0, atol=1e-6)
    with_edges = table[:512].clone()
    with_edges[[0, 1, 510, 511]] += 5  # as [CLS] and [SEP] do
    assert torch.equal(continue_rows(with_edges, 1536), continue_rows(table[:512], 1536))
    torch.testing.assert_close(continue_rows(table[:1], 3), table[:1].expand(3, -1))
    assert continue_rows(table[:512], 0).shape == (0, 48)


@pytest.mark.slow
def test_a_real_bert(tmp_path, minilm, capsys):
    """The command on MiniLM, an embedding model. Held-out rows are predicted better than by tiling."""
    command = ["convert", str(minilm), str(tmp_path / "long"), "--to", "bert", "--max_position_embeddings", "2048"]
    assert main(command) == 0
    assert "Outputs for up to 512 tokens stay the same" in capsys.readouterr().out
    model, info = transformers.BertModel.from_pretrained(tmp_path / "long", output_loading_info=True)
    assert not any(info.values())
    assert model.embeddings.position_ids.shape[1] == model.config.max_position_embeddings == 2048
    assert json.loads((tmp_path / "long/sentence_bert_config.json").read_text())["max_seq_length"] == 2048
    assert json.loads((tmp_path / "long/tokenizer.json").read_text())["truncation"] is None  # 128 in the source
    name = "embeddings.position_embeddings.weight"
    before, after = (load_file(folder / "model.safetensors")[name] for folder in (minilm, tmp_path / "long"))
    assert torch.equal(after[:512], before)
    similarity = F.cosine_similarity(continue_rows(before[:384], 128), before[384:]).mean()
    assert similarity > 0.7 > 0.1 > F.cosine_similarity(before[:128], before[384:]).mean()


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("roberta", r"--max_position_embeddings 39: .*source already has 40 positions\."),
        ("deberta-v2", r"source already has relative positions, which have no limit\."),
    ],
)
def test_refused_requests(family, message, tmp_path):
    source = family_checkpoints.write_checkpoint(tmp_path / "source", family, max_position_embeddings=BEFORE + 2)
    with pytest.raises(InputError, match=message):
        convert_model(source, tmp_path / "out", "snugbert", max_position_embeddings=BEFORE - 1)
    assert not (tmp_path / "out").exists()
    if family == "roberta":  # an equal number changes nothing
        done = convert_model(source, tmp_path / "equal", "roberta", max_position_embeddings=BEFORE)
        weights, equal = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "equal"))
        assert done.notes == [] and torch.equal(weights[ROBERTA_POSITIONS], equal[ROBERTA_POSITIONS])


def test_computed_positions_get_a_new_limit(tmp_path):
    config = snugbert.SnugBertConfig(**CONFIG, position_embedding_type="sinusoidal")
    snugbert.SnugBertForMaskedLM(config).save_pretrained(tmp_path / "source")
    for to in ("snugbert", "bert"):
        done = convert_model(tmp_path / "source", tmp_path / to, to, max_position_embeddings=AFTER)
        assert done.notes[0] == "Positions are computed, so the limit is now 100 tokens."
    inputs = make_inputs(CONFIG["vocab_size"], [AFTER, 3])
    stock = transformers.BertForMaskedLM.from_pretrained(tmp_path / "bert").double()
    ours = snugbert.SnugBertForMaskedLM.from_pretrained(tmp_path / "snugbert").double()
    tokens = inputs["attention_mask"].bool()
    torch.testing.assert_close(get_logits(ours, inputs)[tokens], get_logits(stock, inputs)[tokens], rtol=0, atol=1e-6)
