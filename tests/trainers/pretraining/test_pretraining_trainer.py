"""PretrainingTrainer on datasets and collators of transformers, like Trainer."""

import json
import random

import datasets
import numpy as np
import pytest
import torch
from synthetic import ARGUMENTS, VOCAB_SIZE, note_batches, tiny_model
from transformers import DataCollatorForLanguageModeling

import snugbert
from snugbert.errors import InputError


@pytest.fixture(scope="module")
def tokenizer():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(VOCAB_SIZE - 5))]
    return snugbert.SnugBertTokenizer({word: index for index, word in enumerate(words)})


def make_features(tokenizer, size=50) -> list[dict]:
    """Texts of 4 to 14 words, with a column that no model accepts."""
    texts = [" ".join(f"w{(7 * index + 3 * word) % 190}" for word in range(4 + index % 11)) for index in range(size)]
    return [tokenizer(text).data | {"text": text} for text in texts]


def make_trainer(tokenizer, folder, train_dataset, data_collator=None, **arguments) -> snugbert.PretrainingTrainer:
    defaults = ARGUMENTS | {"max_steps": 9, "save_steps": 4}  # more than an epoch of 50 examples
    trainer = snugbert.PretrainingTrainer(
        model=snugbert.SnugBertForMaskedLM(tiny_model(dropout=0.1).config),
        args=snugbert.PretrainingArguments(str(folder), **defaults | arguments),
        train_dataset=train_dataset,
        eval_dataset=make_features(tokenizer, 7),
        data_collator=data_collator or DataCollatorForLanguageModeling(tokenizer),
    )
    note_batches(trainer, lambda batches: [batch["input_ids"].tolist() for batch in batches])
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("kind", [list, datasets.Dataset.from_list])
def test_a_resumed_run_on_any_dataset_equals_an_uninterrupted_one(tokenizer, tmp_path, kind):
    """Resumes within an epoch. Random masks do not depend on the number of data workers."""
    features = make_features(tokenizer)
    straight = make_trainer(tokenizer, tmp_path, kind(features))
    straight.train()
    assert len({json.dumps(batch) for batch in straight.seen}) == 9
    lines = [line for line in straight.state.log_history if "loss" in line]
    assert len(lines) == 9 and all("nsp_loss" not in line for line in lines)
    assert lines[-1]["epoch"] == pytest.approx(72 / 50)
    workers = 2 if kind is list else 0
    resumed = make_trainer(tokenizer, tmp_path / "resumed", kind(features), dataloader_num_workers=workers)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.seen == straight.seen[4:]
    for parameter, expected in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(parameter, expected)


@pytest.mark.slow
def test_an_epoch_has_every_example_once_in_a_new_order(tokenizer, tmp_path):
    def collate(features):
        return {name: torch.tensor([feature[name] for feature in features]) for name in ("input_ids", "labels")}

    features = [{"input_ids": [2, 5 + number, 3], "labels": [-100, 5 + number, -100]} for number in range(40)]
    trainer = make_trainer(tokenizer, tmp_path, features, collate, max_steps=-1, num_train_epochs=2)
    trainer.train()
    order = [ids[1] - 5 for [batch] in trainer.seen for ids in batch]
    assert sorted(order[:40]) == sorted(order[40:]) == list(range(40))
    assert order[:40] != order[40:] and order[:40] != list(range(40))
    again = make_trainer(tokenizer, tmp_path / "again", features, collate, max_steps=1, seed=1)
    again.train()
    assert again.seen[0] != trainer.seen[0]


def test_the_random_state_of_evaluation_is_the_same_every_time(tokenizer, tmp_path):
    trainer = make_trainer(tokenizer, tmp_path, None)
    collate, drawn = trainer.data_collator, []

    def collate_and_draw(features):
        drawn.append((random.random(), np.random.rand()))
        return collate(features)

    trainer.data_collator = collate_and_draw
    states = random.getstate(), np.random.get_state()[1].tolist()
    trainer.evaluate()
    trainer.evaluate()
    assert drawn[0] == drawn[1] and len(drawn) == 2
    assert states == (random.getstate(), np.random.get_state()[1].tolist())


def test_once_per_epoch_is_a_number_of_steps(tokenizer, tmp_path):
    args = {"max_steps": -1, "num_train_epochs": 3, "eval_strategy": "epoch", "save_strategy": "no"}
    trainer = make_trainer(tokenizer, tmp_path, make_features(tokenizer, 16), **args)
    trainer.train()
    assert [line["step"] for line in trainer.state.log_history if "eval_loss" in line] == [2, 4, 6]


def test_batches_without_labels_are_one_error(tokenizer, tmp_path):
    trainer = make_trainer(tokenizer, tmp_path, [{}] * 8, lambda _: {"input_ids": torch.tensor([[2, 5, 3]])})
    with pytest.raises(InputError, match="data_collator: its batches have no `labels`"):
        trainer.train()
