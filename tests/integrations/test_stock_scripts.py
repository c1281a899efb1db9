"""Scripts written for stock BERT run unchanged on a SnugBERT folder, and give the same numbers.

The scripts are typical: `Auto` classes, transformers' own collators, metrics from full-shape logits, loading the best
checkpoint at the end, predictions. Each runs once on a stock BERT folder and once on a SnugBERT folder
with the same weights. The weights are float64, so that rounding does not affect the comparison.
"""

import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset
from parity import without_padding
from safetensors.torch import load_file
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

import snugbert

FILLER = "the old house stood near a long road and few people went there by night".split()
ANIMALS = {"cat": "cat", "dog": "dog", "walrus": "wal ##rus", "heron": "her ##on"}
VOCABULARY = "[PAD] [UNK] [CLS] [SEP] [MASK] where is ? , .".split() + FILLER
VOCABULARY += [piece for pieces in ANIMALS.values() for piece in pieces.split()]
MAX_LENGTH = 24
WINDOW = 16  # tokens of a window in question answering; about half of the texts need two
TRAIN, DEV = 48, 20  # 20 is not a multiple of the batch size 8


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A pretrained checkpoint with its tokenizer, of stock BERT and of SnugBERT."""
    folders = {side: tmp_path_factory.mktemp(side) for side in ("stock", "ours")}
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=MAX_LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
    )
    torch.manual_seed(0)
    transformers.BertForPreTraining(config).double().save_pretrained(folders["stock"])
    (folders["stock"] / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    transformers.BertTokenizer.from_pretrained(folders["stock"]).save_pretrained(folders["stock"])
    snugbert.SnugBertForPreTraining.from_pretrained(folders["stock"]).save_pretrained(folders["ours"])
    snugbert.SnugBertTokenizer.from_pretrained(folders["stock"]).save_pretrained(folders["ours"])
    return folders


def rows(number: int, seed: int) -> list[dict]:
    """Sentences of 3 to 13 words. One word is an animal, house-trained or not. Each has a question about it."""
    generator = random.Random(seed)
    result = []
    for _ in range(number):
        words = generator.choices(FILLER, k=generator.randint(2, 12))
        place, animal = generator.randrange(len(words) + 1), generator.choice(list(ANIMALS))
        words.insert(place, animal)
        result.append(
            {
                "question": f"where is the {animal} ?",
                "context": " ".join(words),
                "label": int(animal in ("cat", "dog")),
                "words": words,
                "tags": [int(word in ANIMALS) for word in words],
                "answer": animal,
                "answer_start": len(" ".join([*words[:place], ""])),
            }
        )
    return result


# --- the scripts: Auto class, collator, and a function from rows to features --------------------------------------


def classification(tokenizer, padding: str | bool):
    """Is the animal house-trained? As in run_glue.py."""

    def tokenize(batch):
        return tokenizer(batch["question"], batch["context"], padding=padding, truncation=True, max_length=MAX_LENGTH)

    return AutoModelForSequenceClassification, DataCollatorWithPadding(tokenizer), tokenize


def token_classification(tokenizer, padding: str | bool):
    """Which words are animals? As in run_ner.py: the first token of a word has its label, the others -100."""

    def tokenize(batch):
        options = {"is_split_into_words": True, "padding": padding, "truncation": True, "max_length": MAX_LENGTH}
        encoded = tokenizer(batch["words"], **options)
        encoded["labels"] = []
        for index, tags in enumerate(batch["tags"]):
            words = encoded.word_ids(index)
            pairs = zip([None, *words], words, strict=False)
            labels = [-100 if word is None or word == before else tags[word] for before, word in pairs]
            encoded["labels"].append(labels)
        return encoded

    return AutoModelForTokenClassification, DataCollatorForTokenClassification(tokenizer), tokenize


def question_answering(tokenizer, padding: str | bool):
    """Where is the animal? As in run_qa.py: long texts are windows."""

    def tokenize(batch):
        options = {"truncation": "only_second", "max_length": WINDOW, "stride": 2, "return_overflowing_tokens": True}
        encoded = tokenizer(batch["question"], batch["context"], padding=padding, **options)
        encoded["start_positions"], encoded["end_positions"] = [], []
        for index, row in enumerate(encoded.pop("overflow_to_sample_mapping")):
            start = batch["answer_start"][row]
            ends = [encoded.char_to_token(index, at, 1) for at in (start, start + len(batch["answer"][row]) - 1)]
            for name, end in zip(("start_positions", "end_positions"), ends, strict=True):
                encoded[name].append(0 if None in ends else end)  # windows without the whole answer: [CLS]
        assert 0.2 < np.mean(np.array(encoded["start_positions"]) == 0) < 0.5
        return encoded

    return AutoModelForQuestionAnswering, DataCollatorWithPadding(tokenizer), tokenize


# --- stock BERT and ours -------------------------------------------------------------------------------------


def as_tuple(value) -> tuple[np.ndarray, ...]:
    return value if isinstance(value, tuple) else (value,)


def compute_metrics(prediction) -> dict[str, float]:
    """The share of correct labels or positions, from logits of all tokens."""
    right = []
    for logits, labels in zip(as_tuple(prediction.predictions), as_tuple(prediction.label_ids), strict=True):
        assert logits.shape[:-1] == labels.shape
        right.append((np.argmax(logits, axis=-1) == labels)[labels != -100])
    return {"accuracy": float(np.concatenate(right).mean())}


def run_script(script, padding: str | bool, folder: Path, out: Path) -> SimpleNamespace:
    """The steps of every script: train, evaluate each epoch, load the best checkpoint, predict, save."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    auto_class, collator, tokenize = script(tokenizer, padding)
    data = {"train": Dataset.from_list(rows(TRAIN, seed=1)), "dev": Dataset.from_list(rows(DEV, seed=2))}
    unneeded = [name for name in data["train"].column_names if name != "label" or script is not classification]
    features = {name: split.map(tokenize, batched=True, remove_columns=unneeded) for name, split in data.items()}
    args = TrainingArguments(
        output_dir=str(out / "run"),
        per_device_train_batch_size=8,
        # Under accumulation, stock BERT's other losses are too large.
        gradient_accumulation_steps=2 if script is question_answering else 1,
        per_device_eval_batch_size=8,
        learning_rate=5e-3,
        num_train_epochs=2,
        warmup_steps=0.1,
        weight_decay=0.01,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=3,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        greater_is_better=True,
        seed=7,
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    set_seed(args.seed)
    trainer = Trainer(
        model=auto_class.from_pretrained(folder),
        args=args,
        train_dataset=features["train"],
        eval_dataset=features["dev"],
        processing_class=tokenizer,
        data_collator=collator,
        compute_metrics=compute_metrics,
    )
    trainer.train()
    predicted = trainer.predict(features["dev"])
    trainer.save_model(str(out / "saved"))
    log = [line for line in trainer.state.log_history if "loss" in line or "eval_loss" in line]
    times = [name for name in {**predicted.metrics, **log[-1]} if "runtime" in name or "per_second" in name]
    return SimpleNamespace(
        model=type(trainer.model).__name__,
        numbers=[{name: line[name] for name in line if name not in times} for line in (*log, predicted.metrics)],
        best_step=trainer.state.best_global_step,
        predictions=as_tuple(predicted.predictions),
        label_ids=as_tuple(predicted.label_ids),
        weights=load_file(out / "saved" / "model.safetensors"),
        lengths=np.array([sum(mask) for mask in features["dev"]["attention_mask"]]),
    )


@pytest.mark.parametrize(
    ("script", "padding"),
    [(classification, False), (token_classification, "max_length"), (question_answering, False)],
)
def test_scripts_for_stock_bert_give_the_same_numbers(script, padding, folders, tmp_path, monkeypatch):
    stock_class = transformers.BertForQuestionAnswering
    monkeypatch.setattr(stock_class, "forward", without_padding(stock_class.forward))
    stock, ours = (run_script(script, padding, folders[side], tmp_path / side) for side in ("stock", "ours"))
    assert ours.model == f"Snug{stock.model}" and ours.best_step == stock.best_step
    assert len(ours.numbers) > 5
    for line, expected in zip(ours.numbers, stock.numbers, strict=True):
        assert line == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(ours.weights, stock.weights, atol=1e-8, rtol=0)
    for label_ids, expected in zip(ours.label_ids, stock.label_ids, strict=True):
        np.testing.assert_array_equal(label_ids, expected)
    for predictions, expected in zip(ours.predictions, stock.predictions, strict=True):
        assert predictions.shape == expected.shape
        real = np.ones(len(expected), dtype=bool)
        if script is not classification:
            real = np.arange(expected.shape[1]) < ours.lengths[:, None]
        np.testing.assert_allclose(predictions[real], expected[real], atol=1e-8)
