"""Packed batches have the losses of padded batches. Token budgets, and error messages for bad features."""

import re

import numpy as np
import pytest
import torch
from finetuning_examples import examples, make_tokenizer, new_model
from parity import NUM_LABELS
from transformers import (
    DataCollatorForMultipleChoice,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

import snugbert
from snugbert.gpu.row_sizes import pad_row

pack = snugbert.SnugBertDataCollatorWithPacking()
INPUTS = ("input_ids", "token_type_ids", "attention_mask")
HEADS = {"tags": "ForTokenClassification", "answers": "ForQuestionAnswering", "choices": "ForMultipleChoice"}
TASKS = ("labels", "numbers", "several labels", *HEADS)


def make_features(task: str) -> list[dict]:
    """Sequences of 3 to 30 tokens."""
    features = list(examples("ForSequenceClassification" if task == "choices" else head_of(task), 24))
    for number, feature in enumerate(features):
        feature["token_type_ids"] = [int(at > number % 5) for at in range(len(feature["input_ids"]))]
        if task == "numbers":
            feature["label"] = number / 7
        elif task == "several labels":
            feature["label"] = [float(number % 2), float(number % 3 == 0), 1.0]
    if task == "answers":  # one question has no answer
        features[5]["start_positions"] = features[5]["end_positions"] = 999
    if task == "choices":
        triples = zip(features, features[1:], features[2:], strict=False)
        features = [{name: [row[name] for row in rows] for name in INPUTS} for rows in triples]
        features = [inputs | {"label": number % 3} for number, inputs in enumerate(features)]
    return features


def head_of(task: str) -> str:
    return HEADS.get(task, "ForSequenceClassification")


@pytest.mark.parametrize("task", TASKS)
def test_packed_features_have_the_loss_of_padded_ones(task):
    collators = {"tags": DataCollatorForTokenClassification, "choices": DataCollatorForMultipleChoice}
    model = new_model(head_of(task), num_labels=1 if task == "numbers" else NUM_LABELS).eval()
    padded = collators.get(task, DataCollatorWithPadding)(make_tokenizer())(make_features(task))
    assert (padded["attention_mask"] == 0).any()
    packed = pack(make_features(task))
    assert packed["input_ids"].shape == (1, int(padded["attention_mask"].sum()))
    assert model(**packed).loss.item() == pytest.approx(model(**padded).loss.item(), rel=1e-5)


def test_answers_in_features_with_padding():
    """Padding on both sides. The positions of an answer are adjusted. Without an answer, they stay beyond the text."""
    inputs = {"input_ids": [0, 0, 5, 6, 7, 0], "token_type_ids": [0, 0, 0, 1, 1, 0]}
    inputs = {name: np.array(row) for name, row in inputs.items()} | {"attention_mask": [0, 0, 1, 1, 1, 0]}
    batch = pack([inputs | {"start_positions": start, "end_positions": start + 1} for start in (3, 999)])
    assert batch["input_ids"].tolist() == [[5, 6, 7] * 2] and batch["token_type_ids"].tolist() == [[0, 1, 1] * 2]
    (start, none), (end, no_end) = batch["start_positions"].tolist(), batch["end_positions"].tolist()
    assert (start, end) == (1, 2) and min(none, no_end) >= 3


def test_a_packed_batch_by_hand():
    """Lists, arrays and tensors, with padding on both sides: all values and dtypes of the batch."""
    batch = pack(
        [
            {"input_ids": [0, 5, 6, 0], "attention_mask": [0, 1, 1, 0], "labels": [-100, 1, 2, -100]},
            {"input_ids": torch.tensor([7]), "attention_mask": np.array([1]), "labels": np.array([0], dtype=np.int8)},
        ]
    )
    assert batch.pop("max_length_q") == 2
    assert batch["cu_seq_lens_q"].dtype == torch.int32
    assert {name: values.tolist() for name, values in batch.items()} == {
        "input_ids": [[5, 6, 7]],
        "labels": [[1, 2, 0]],
        "position_ids": [[0, 1, 0]],
        "cu_seq_lens_q": [0, 2, 3],
        "label_indices": [0, 1, 2],
    }
    nested = [[{"input_ids": [5, 6], "label": 2.5, "next_sentence_label": True}], [{"input_ids": [7], "label": 1.0}]]
    nested[1][0]["next_sentence_label"] = False
    batch = pack(nested)
    assert batch["labels"].dtype == torch.float32 and batch["labels"].tolist() == [2.5, 1.0]
    assert batch["next_sentence_label"].dtype == torch.int64 and batch["next_sentence_label"].tolist() == [1, 0]
    weights = [{"input_ids": [5], "weight": weight} for weight in (0, 0.5)]  # for a Trainer with its own loss
    assert pack(weights)["weight"].tolist() == [0, 0.5]
    batch = pack([{"input_ids": [[5, 6], [7, 0]], "attention_mask": [[1, 1], [1, 0]], "labels": 1}])
    assert batch["num_choices"] == 2 and batch["labels"].tolist() == [1]
    assert batch["input_ids"].tolist() == [[5, 6, 7]] and batch["cu_seq_lens_q"].tolist() == [0, 2, 3]


def test_a_filled_row_by_hand():
    collate = snugbert.SnugBertDataCollatorWithPacking(pad_to_multiple_of=40, max_sequences=3)
    batch = collate([{"input_ids": [5, 6], "labels": [-100, 1]}, {"input_ids": [7], "labels": [2]}])
    padding = [*range(32), *range(5)]
    assert {name: values.tolist() if hasattr(values, "tolist") else values for name, values in batch.items()} == {
        "input_ids": [[5, 6, 7, *[0] * 37]],
        "labels": [[-100, 1, 2, *[-100] * 37]],
        "position_ids": [[0, 1, 0, *padding]],
        "cu_seq_lens_q": [0, 2, 3, 35, 40, 40],  # two sequences of padding, and one because there may be three
        "max_length_q": 128,
        "label_indices": [1, 2],
        "num_sequences": 2,
    }
    batch = pad_row(pack([{"input_ids": [5] * 6, "labels": [1, -100, 1, -100, 1, 1]}]), 1)
    assert batch["label_indices"].tolist() == [0, 2, 4, 5, 1, 3]  # all tokens, because most have a label
    collate = snugbert.SnugBertDataCollatorWithPacking(pad_to_multiple_of=8, max_sequences=2)
    batch = collate([{"input_ids": [[5], [6], [7]], "labels": 1}])  # three choices, and room for two examples
    assert batch["cu_seq_lens_q"].tolist() == [0, 1, 2, 3, *[8] * 6] and batch["labels"].tolist() == [1, -100, -100]
    labels = collate([{"input_ids": [5], "labels": [0.5, 1.0]}])["labels"]
    assert labels.tolist() == [[0.5, 1], [-100, -100], [-100, -100]]


def test_rows_that_cannot_be_filled_are_refused():
    with pytest.raises(ValueError, match="The batch has 2 examples, more than `max_sequences` 1"):
        pad_row(pack([{"input_ids": [5, 6]}, {"input_ids": [7]}]), 8, 1)


IDS = {"input_ids": [5, 6, 7]}


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ([IDS | {"sentence": "a b c", "offsets": [0, 1]}], "Unknown columns ['sentence', 'offsets']. Call `dataset."),
        ([IDS | {"label": "positive"}], "`labels` must contain numbers, not 'positive'"),
        ([IDS | {"labels": [1, 0]}], "`labels` of sequence 0 has shape [2]. Expected [3], one value per token."),
        ([IDS, IDS | {"token_type_ids": [0, 0]}], "All features of a batch need the same columns"),
        ([IDS, {"input_ids": []}], "Sequence 1 of the batch has no tokens"),
        ([{"input_ids": [[5], [6]]}, {"input_ids": [[5]]}], "the same number of choices, not [1, 2]"),
    ],
)
def test_bad_features_are_named(features, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        pack(features)


# --- token budgets ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows():
    return examples("ForSequenceClassification", 300)


def list_sequences(budget):
    """Token ids of the examples in each item."""
    items = []
    for features in budget:
        batch = pack([features])
        inner_ends = batch["cu_seq_lens_q"][1:-1].tolist()
        items.append([tuple(ids.tolist()) for ids in batch["input_ids"][0].tensor_split(inner_ends)])
    return items


@pytest.mark.parametrize("kind", ["dataset", "torch format", "list", "padded"])
def test_items_contain_every_example_once_within_the_budget(rows, kind):
    expected = sorted(tuple(row["input_ids"]) for row in rows)
    dataset = {
        "dataset": rows,
        "torch format": rows.with_format("torch"),
        "list": list(rows),
        "padded": [{name: [0] * (40 - len(row[name])) + row[name] for name in INPUTS} for row in rows],
    }[kind]
    items = list_sequences(snugbert.TokenBudgetDataset(dataset, max_tokens=256))
    assert sorted(ids for item in items for ids in item) == expected
    sizes = [sum(map(len, item)) for item in items]
    assert max(sizes) <= 256 and np.mean(sizes[:-1]) > 0.95 * 256
    assert list_sequences(snugbert.TokenBudgetDataset(dataset, 256)) == items
    assert list_sequences(snugbert.TokenBudgetDataset(dataset, 256, seed=43)) != items


def test_all_items_can_have_one_size(rows):
    items = snugbert.TokenBudgetDataset(rows, max_tokens=256)
    collate = snugbert.SnugBertDataCollatorWithPacking(pad_to_multiple_of=256, max_sequences=items.max_examples)
    batches = [collate([item]) for item in items]
    assert len({len(item) for item in items}) > 2
    assert {(batch["input_ids"].shape, batch["cu_seq_lens_q"].shape, batch["labels"].shape) for batch in batches} == {
        ((1, 256), (items.max_examples + 9,), (items.max_examples + 8,))
    }
    longest = max(range(300), key=lambda row: len(rows[row]["input_ids"]))
    length = len(rows[longest]["input_ids"])
    with pytest.raises(ValueError, match=rf"Row {longest} has {length} tokens\. The limit is {length - 1}"):
        snugbert.TokenBudgetDataset(rows, max_tokens=length - 1)


def test_accumulated_token_budgets_are_one_padded_batch(rows, tmp_path):
    rows, logs = rows.select(range(64)), []
    budget = snugbert.TokenBudgetDataset(rows, max_tokens=200)
    assert len({len(item) for item in budget}) > 1
    for dataset, collate, size in ((budget, pack, 1), (rows, DataCollatorWithPadding(make_tokenizer()), 64)):
        sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": len(dataset) // size}
        args = TrainingArguments(tmp_path, max_steps=1, logging_steps=1, save_strategy="no", use_cpu=True, **sizes)
        model = new_model("ForSequenceClassification", hidden_dropout_prob=0.0)
        trainer = Trainer(model, args, train_dataset=dataset, data_collator=collate)
        trainer.train()
        logs.append([trainer.state.log_history[0][name] for name in ("loss", "grad_norm")])
    assert logs[0] == pytest.approx(logs[1], rel=1e-5)
