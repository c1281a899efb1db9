"""Packed batches have the losses of padded batches. Token budgets, and error messages for bad features."""

import re
from itertools import islice

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import (
    DataCollatorForMultipleChoice,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

import snugbert
from snugbert.data.tables import read_rows
from snugbert.gpu.row_sizes import pad_row

pack = snugbert.SnugBertDataCollatorWithPacking()


def first_rows(file, number):
    return [values for _, values in islice(read_rows(file), number)]


def sentences(data_dir, tokenizer):
    """SST-2: one label per sentence."""
    rows = first_rows(data_dir / "glue/SST-2/train.tsv.gz", 24)
    features = [dict(tokenizer(row["sentence"])) | {"label": int(row["label"])} for row in rows]
    return "SequenceClassification", features, DataCollatorWithPadding(tokenizer)


def pair_scores(data_dir, tokenizer):
    """MRPC with float labels: regression on sentence pairs."""
    rows = first_rows(data_dir / "glue/MRPC/dev.tsv", 16)
    features = [dict(tokenizer(row["#1 String"], row["#2 String"])) | {"label": float(row["Quality"])} for row in rows]
    return "SequenceClassification", features, DataCollatorWithPadding(tokenizer)


def several_labels(data_dir, tokenizer):
    """Which of three letters a sentence starts with, as floats: multi-label."""
    _, features, collate = sentences(data_dir, tokenizer)
    for number, feature in enumerate(features):
        feature["label"] = [float(number % 2), float(number % 3 == 0), 1.0]
    return "SequenceClassification", features, collate


def tags(data_dir, tokenizer):
    """CoNLL-2003: one label per word, on its first token."""
    features = []
    for row in first_rows(data_dir / "conll2003/valid.jsonl.gz", 12):
        encoding = tokenizer(row["tokens"], is_split_into_words=True)
        words = encoding.word_ids()
        first = [word is not None and word != before for word, before in zip(words, [None, *words], strict=False)]
        labels = [len(row["ner_tags"][word]) % 3 if at else -100 for word, at in zip(words, first, strict=True)]
        features.append(dict(encoding) | {"labels": labels})
    return "TokenClassification", features, DataCollatorForTokenClassification(tokenizer)


def answers(data_dir, tokenizer):
    """SQuAD: first and last token of the answer. One question has no answer."""
    features = []
    for number, row in enumerate(first_rows(data_dir / "squad/dev-v1.1.jsonl.gz", 8)):
        encoding = tokenizer(row["question"], row["context"], truncation="only_second", max_length=300)
        begin, text = row["answers"]["answer_start"][0], row["answers"]["text"][0]
        ends = (encoding.char_to_token(at, sequence_index=1) for at in (begin, begin + len(text) - 1))
        start, end = (999, 999) if number == 5 else ends
        features.append(dict(encoding) | {"start_positions": start, "end_positions": end})
    return "QuestionAnswering", features, DataCollatorWithPadding(tokenizer)


def choices(data_dir, tokenizer):
    """MRPC: which of three sentences matches the first."""
    rows = first_rows(data_dir / "glue/MRPC/dev.tsv", 12)
    features = []
    for number, row in enumerate(rows[:-2]):
        seconds = [other["#2 String"] for other in rows[number : number + 3]]
        features.append(dict(tokenizer([row["#1 String"]] * 3, seconds)) | {"label": number % 3})
    return "MultipleChoice", features, DataCollatorForMultipleChoice(tokenizer)


@pytest.mark.parametrize("task", [sentences, pair_scores, several_labels, tags, answers, choices])
def test_packed_features_have_the_loss_of_padded_ones(data_dir, tokenizer, task):
    head, features, pad = task(data_dir, tokenizer)
    torch.manual_seed(0)
    config = snugbert.SnugBertConfig.from_size("tiny", num_labels=1 if task is pair_scores else 3)
    model = getattr(snugbert, f"SnugBertFor{head}")(config).eval()
    padded = pad([dict(feature) for feature in features])
    assert (padded["attention_mask"] == 0).any()
    packed = pack(features)
    assert packed["input_ids"].shape == (1, int(padded["attention_mask"].sum()))
    expected, loss = model(**padded).loss, model(**packed).loss
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    words = model.bert.embeddings.word_embeddings.weight
    gradients = [torch.autograd.grad(value, words)[0] for value in (loss, expected)]
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("task", [tags, answers, choices])
def test_padding_inside_of_features_is_dropped(data_dir, tokenizer, task):
    """Padding on both sides. Token labels are dropped, and answer positions are adjusted."""
    _, features, _ = task(data_dir, tokenizer)
    expected = pack(features)
    for number, feature in enumerate(features):
        for name in ("input_ids", "token_type_ids", "attention_mask", "labels"):
            values = feature.get(name)
            if task is choices and name != "labels":
                feature[name] = [[0] * number + choice + [0] * (99 - len(choice)) for choice in values]
            elif values is not None:
                padding = -100 if name == "labels" else 0
                feature[name] = np.array([padding] * number + values + [padding] * 3)
        for name in ("start_positions", "end_positions"):
            if name in feature:
                feature[name] += number
    packed = pack(features)
    if task is answers:  # no answer: the position stays beyond the sequence
        for batch in (expected, packed):
            batch["start_positions"][5] = batch["end_positions"][5] = 999
    assert packed.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(torch.as_tensor(packed[name]), torch.as_tensor(values)), name


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
    # Weights of examples, for a Trainer with its own loss.
    batch = pack([{"input_ids": [5] * (number + 1), "weight": number / 2} for number in range(3)])
    assert batch["weight"].tolist() == [0, 0.5, 1]
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
    with pytest.raises(ValueError, match="`pad_to_multiple_of` must be at least 1, not 0"):
        snugbert.SnugBertDataCollatorWithPacking(0)


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
def sst2(data_dir, tokenizer):
    rows = first_rows(data_dir / "glue/SST-2/train.tsv.gz", 600)
    return Dataset.from_list([dict(tokenizer(row["sentence"])) | {"label": int(row["label"])} for row in rows])


def list_sequences(budget):
    """Token ids of the examples in each item."""
    items = []
    for features in budget:
        batch = pack([features])
        inner_ends = batch["cu_seq_lens_q"][1:-1].tolist()
        items.append([tuple(ids.tolist()) for ids in batch["input_ids"][0].tensor_split(inner_ends)])
    return items


@pytest.mark.parametrize("kind", ["dataset", "torch format", "list", "padded"])
def test_items_contain_every_example_once_within_the_budget(sst2, kind):
    rows = sst2.shuffle(seed=1)
    expected = sorted(tuple(row["input_ids"]) for row in rows)
    dataset = {
        "dataset": rows,
        "torch format": rows.with_format("torch"),
        "list": list(rows),
        "padded": [
            {name: [0] * (80 - len(row["input_ids"])) + row[name] for name in ("input_ids", "attention_mask")}
            for row in rows
        ],
    }[kind]
    items = list_sequences(snugbert.TokenBudgetDataset(dataset, max_tokens=256))
    assert sorted(ids for item in items for ids in item) == expected
    sizes = [sum(map(len, item)) for item in items]
    assert max(sizes) <= 256 and np.mean(sizes[:-1]) > 0.95 * 256
    assert list_sequences(snugbert.TokenBudgetDataset(dataset, 256)) == items
    assert list_sequences(snugbert.TokenBudgetDataset(dataset, 256, seed=43)) != items


def test_all_items_can_have_one_size(sst2):
    items = snugbert.TokenBudgetDataset(sst2, max_tokens=256)
    collate = snugbert.SnugBertDataCollatorWithPacking(pad_to_multiple_of=256, max_sequences=items.max_examples)
    batches = [collate([item]) for item in items]
    assert len({len(item) for item in items}) > 2
    assert {(batch["input_ids"].shape, batch["cu_seq_lens_q"].shape, batch["labels"].shape) for batch in batches} == {
        ((1, 256), (items.max_examples + 9,), (items.max_examples + 8,))
    }


def test_a_row_over_the_budget_is_refused(sst2):
    row = max(range(len(sst2)), key=lambda row: len(sst2[row]["input_ids"]))
    length = len(sst2[row]["input_ids"])
    with pytest.raises(ValueError, match=rf"Row {row} has {length} tokens\. The limit is {length - 1}"):
        snugbert.TokenBudgetDataset(sst2, max_tokens=length - 1)


def training(folder, dataset, collate, dropout=0.0, **arguments):
    torch.manual_seed(0)
    config = snugbert.SnugBertConfig.from_size("tiny", hidden_dropout_prob=dropout)
    config.attention_probs_dropout_prob = dropout
    defaults = {"logging_steps": 1, "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "max_steps": 1}
    return Trainer(
        snugbert.SnugBertForSequenceClassification(config),
        TrainingArguments(str(folder), dataloader_pin_memory=False, **defaults | arguments),
        train_dataset=dataset,
        data_collator=collate,
    )


def metrics(trainer):
    log = [line for line in trainer.state.log_history if "loss" in line]
    return [{name: line[name] for name in ("loss", "grad_norm")} for line in log]


def test_accumulated_token_budgets_are_one_padded_batch(sst2, tokenizer, tmp_path):
    """Accumulated batches with uneven token budgets give the loss and gradient of one padded batch."""
    rows = sst2.select(range(64))
    budget = snugbert.TokenBudgetDataset(rows, max_tokens=200)
    assert len({len(item) for item in budget}) > 1
    arguments = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": len(budget)}
    packed = training(tmp_path / "packed", budget, pack, **arguments)
    padded = training(tmp_path / "padded", rows, DataCollatorWithPadding(tokenizer), per_device_train_batch_size=64)
    for trainer in (packed, padded):
        trainer.train()
    assert metrics(packed) == [pytest.approx(line, rel=1e-5) for line in metrics(padded)]


def test_training_by_tokens_resumes(sst2, tmp_path):
    """Mid-epoch, with dropout, and a new shuffle of the items in each epoch."""
    budget = snugbert.TokenBudgetDataset(sst2.select(range(100)), max_tokens=300)
    assert 4 < len(budget) < 8
    more = {"max_steps": 8, "save_strategy": "steps", "save_steps": 6, "per_device_train_batch_size": 1}
    straight = training(tmp_path, budget, pack, dropout=0.1, **more)
    straight.train()
    resumed = training(tmp_path, budget, pack, dropout=0.1, **more)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert metrics(resumed) == metrics(straight)
    for ours, theirs in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
