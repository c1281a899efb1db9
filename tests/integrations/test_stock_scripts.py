"""Scripts written for stock BERT run unchanged on a SnugBERT folder, and give the same numbers.

The scripts are typical: `Auto` classes, transformers' own collators, metrics from full-shape logits, loading the best
checkpoint at the end, predictions, a saved folder. Each runs once on a stock BERT folder and once on a SnugBERT folder
with the same weights. The weights are float64, so that rounding does not affect the comparison.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset
from parity import without_padding
from safetensors.torch import load_file
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
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


# --- the scripts ------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """The results of a script. `reloaded` are the predictions of the saved model."""

    model: str
    log: list[dict]
    best_step: int
    predictions: tuple[np.ndarray, ...]
    label_ids: tuple[np.ndarray, ...]
    metrics: dict[str, float]
    reloaded: tuple[np.ndarray, ...]
    weights: dict[str, torch.Tensor]
    lengths: np.ndarray


def run_trainer(auto_class, folder, out, collator, features, compute_metrics, best, **options) -> Result:
    """The steps of every script: train, evaluate each epoch, load the best checkpoint, predict, save, reload."""
    args = TrainingArguments(
        output_dir=str(out / "run"),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        learning_rate=5e-3,
        num_train_epochs=3,
        warmup_steps=0.1,
        weight_decay=0.01,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=3,
        load_best_model_at_end=True,
        metric_for_best_model=best,
        greater_is_better=True,
        seed=7,
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **options,
    )
    set_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
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
    set_seed(args.seed)  # the masks of masked language modeling are random in evaluation too
    predicted = trainer.predict(features["dev"])
    trainer.save_model(str(out / "saved"))
    again = Trainer(
        model=auto_class.from_pretrained(out / "saved"),
        args=args,
        eval_dataset=features["dev"],
        processing_class=AutoTokenizer.from_pretrained(out / "saved"),
        data_collator=collator,
    )
    set_seed(args.seed)
    reloaded = again.predict(features["dev"]).predictions
    log = [line for line in trainer.state.log_history if "loss" in line or "eval_loss" in line]
    return Result(
        model=type(trainer.model).__name__,
        log=[without_times(line) for line in log],
        best_step=trainer.state.best_global_step,
        predictions=as_tuple(predicted.predictions),
        label_ids=as_tuple(predicted.label_ids),
        metrics=without_times(predicted.metrics),
        reloaded=as_tuple(reloaded),
        weights=load_file(out / "saved" / "model.safetensors"),
        lengths=np.array([sum(mask) for mask in features["dev"]["attention_mask"]]),
    )


def as_tuple(value) -> tuple[np.ndarray, ...]:
    return value if isinstance(value, tuple) else (value,)


def without_times(line: dict) -> dict[str, float]:
    return {name: value for name, value in line.items() if "runtime" not in name and "per_second" not in name}


def tokenized(tokenize, columns: list[str]) -> dict[str, Dataset]:
    data = {"train": Dataset.from_list(rows(TRAIN, seed=1)), "dev": Dataset.from_list(rows(DEV, seed=2))}
    unneeded = [name for name in data["train"].column_names if name not in columns]
    return {name: split.map(tokenize, batched=True, remove_columns=unneeded) for name, split in data.items()}


def classification(folder: Path, out: Path, padding: str | bool) -> Result:
    """Is the animal house-trained? As in run_glue.py."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def tokenize(batch):
        return tokenizer(batch["question"], batch["context"], padding=padding, truncation=True, max_length=MAX_LENGTH)

    def compute_metrics(prediction):
        logits, labels = prediction
        assert logits.shape == (DEV, 2)
        return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}

    return run_trainer(
        AutoModelForSequenceClassification,
        folder,
        out,
        DataCollatorWithPadding(tokenizer),
        tokenized(tokenize, ["label"]),
        compute_metrics,
        "accuracy",
    )


def token_classification(folder: Path, out: Path, padding: str | bool) -> Result:
    """Which words are animals? As in run_ner.py: the first token of a word has its label, the others -100."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def tokenize(batch):
        encoded = tokenizer(
            batch["words"], is_split_into_words=True, padding=padding, truncation=True, max_length=MAX_LENGTH
        )
        encoded["labels"] = []
        for index, tags in enumerate(batch["tags"]):
            words = encoded.word_ids(index)
            encoded["labels"].append(
                [
                    -100 if word is None or word == before else tags[word]
                    for before, word in zip([None, *words], words, strict=False)
                ]
            )
        return encoded

    def compute_metrics(prediction):
        logits, labels = prediction
        assert logits.shape == (*labels.shape, 2)
        found, tagged = np.argmax(logits, axis=2) == 1, labels == 1
        right = (found & tagged).sum()
        return {"f1": float(2 * right / (found[labels != -100].sum() + tagged.sum()))}

    return run_trainer(
        AutoModelForTokenClassification,
        folder,
        out,
        DataCollatorForTokenClassification(tokenizer),
        tokenized(tokenize, []),
        compute_metrics,
        "f1",
    )


def question_answering(folder: Path, out: Path, padding: str | bool) -> Result:
    """Where is the animal? As in run_qa.py: long texts are windows."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def tokenize(batch):
        encoded = tokenizer(
            batch["question"],
            batch["context"],
            padding=padding,
            truncation="only_second",
            max_length=WINDOW,
            stride=2,
            return_overflowing_tokens=True,
        )
        encoded["start_positions"], encoded["end_positions"] = [], []
        for index, row in enumerate(encoded.pop("overflow_to_sample_mapping")):
            start = batch["answer_start"][row]
            ends = [encoded.char_to_token(index, at, 1) for at in (start, start + len(batch["answer"][row]) - 1)]
            for name, end in zip(("start_positions", "end_positions"), ends, strict=True):
                encoded[name].append(0 if None in ends else end)  # windows without the whole answer: [CLS]
        return encoded

    features = tokenized(tokenize, [])
    cls_share = np.mean(np.array(features["train"]["start_positions"][:]) == 0)
    assert 0.2 < cls_share < 0.5 and len(features["dev"]) > DEV

    def compute_metrics(prediction):
        (start_logits, end_logits), (start_positions, end_positions) = prediction
        right = (np.argmax(start_logits, axis=1) == start_positions) & (np.argmax(end_logits, axis=1) == end_positions)
        return {"positions": float(right.mean())}

    return run_trainer(
        AutoModelForQuestionAnswering,
        folder,
        out,
        DataCollatorWithPadding(tokenizer),
        features,
        compute_metrics,
        "positions",
        gradient_accumulation_steps=2,
    )


def masked_lm(folder: Path, out: Path, padding: str | bool) -> Result:
    """What are the masked words? As in run_mlm.py with --line_by_line."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def tokenize(batch):
        return tokenizer(
            batch["context"],
            padding=padding,
            truncation=True,
            max_length=MAX_LENGTH,
            return_special_tokens_mask=True,
        )

    def compute_metrics(prediction):
        logits, labels = prediction
        assert logits.shape == (*labels.shape, len(VOCABULARY))
        masked = labels != -100
        return {"accuracy": float((np.argmax(logits, axis=-1)[masked] == labels[masked]).mean())}

    return run_trainer(
        AutoModelForMaskedLM,
        folder,
        out,
        DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3),
        tokenized(tokenize, []),
        compute_metrics,
        "accuracy",
    )


# --- stock BERT and ours -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "padding"),
    [
        (classification, False),
        (token_classification, "max_length"),
        (token_classification, False),
        (question_answering, False),
        (masked_lm, False),
    ],
)
def test_scripts_for_stock_bert_give_the_same_numbers(script, padding, folders, tmp_path, monkeypatch):
    stock_class = transformers.BertForQuestionAnswering
    monkeypatch.setattr(stock_class, "forward", without_padding(stock_class.forward))
    stock, ours = (script(folders[side], tmp_path / side, padding) for side in ("stock", "ours"))
    assert ours.model == f"Snug{stock.model}"

    assert len(ours.log) == 3 * (2 + 1)
    for line, expected in zip(ours.log, stock.log, strict=True):
        assert line == pytest.approx(expected, rel=1e-6)
    assert ours.metrics == pytest.approx(stock.metrics, rel=1e-6)
    assert ours.best_step == stock.best_step
    torch.testing.assert_close(ours.weights, stock.weights, atol=1e-8, rtol=0)

    for label_ids, expected in zip(ours.label_ids, stock.label_ids, strict=True):
        np.testing.assert_array_equal(label_ids, expected)
    for predictions, expected in zip(ours.predictions, stock.predictions, strict=True):
        assert predictions.shape == expected.shape
        real = np.ones(len(expected), dtype=bool)
        if script is not classification:
            real = np.arange(expected.shape[1]) < ours.lengths[:, None]
        np.testing.assert_allclose(predictions[real], expected[real], atol=1e-8)
    for result in (stock, ours):
        for reloaded, expected in zip(result.reloaded, result.predictions, strict=True):
            np.testing.assert_array_equal(reloaded, expected)
