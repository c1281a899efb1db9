"""A small task for tests of fine-tuning: whether a sequence has few, some or many high tokens."""

import random
from types import SimpleNamespace

import numpy as np
import torch
from datasets import Dataset
from parity import CONFIG, NUM_LABELS
from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding

import snugbert
from snugbert import SnugBertDataCollatorWithPacking, SnugBertTokenizer
from snugbert.checkpoints.students import hash_model
from snugbert.data.sources import DataSource
from snugbert.reports.finetuned_card import write_finetuning_card
from snugbert.tasks.old_base import Baseline, EvaluationSet, FineTuningTask
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.soft_targets import DistillationTrainer, SoftTargets
from snugbert.trainers.finetuning.teacher import compute_items, count_items

HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
TAGS = dict(zip(HEADS, ("text-classification", "token-classification", "question-answering"), strict=True))
LABELS = ["few", "some", "many"]
WEIGHTS = torch.tensor([0.5, 1.0, 3.0])


def make_tokenizer() -> SnugBertTokenizer:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return SnugBertTokenizer(vocab={piece: i for i, piece in enumerate(pieces + [f"w{i}" for i in range(200)])})


def examples(head: str, number: int, seed: int = 0) -> Dataset:
    """Returns sequences of 3 to 30 tokens. The label of a sequence counts its high tokens: few, some or many."""
    generator = random.Random(seed)
    rows = []
    for _ in range(number):
        ids = [2, *generator.choices(range(5, 205), k=generator.randint(2, 29))]
        row = {"input_ids": ids, "token_type_ids": [0] * len(ids), "attention_mask": [1] * len(ids)}
        if head == "ForSequenceClassification":
            row["label"] = min(2, sum(i >= 105 for i in ids) // 5)
        elif head == "ForTokenClassification":
            row["labels"] = [-100, *(i % NUM_LABELS if i % 5 else -100 for i in ids[1:])]
        else:
            row["start_positions"] = generator.randrange(len(ids))
            row["end_positions"] = generator.randrange(row["start_positions"], len(ids))
        rows.append(row)
    return Dataset.from_list(rows)


def new_model(head: str, **overrides) -> torch.nn.Module:
    torch.manual_seed(0)
    return getattr(snugbert, f"SnugBert{head}")(snugbert.SnugBertConfig(**CONFIG | overrides))


def new_trainer(head: str, tokenizer, folder, data=None, weights=None, model=None, **settings) -> FineTuningTrainer:
    args = arguments(folder, **{"save_strategy": "no", "learning_rate": 3e-5, **settings})
    padding_class = DataCollatorForTokenClassification if head == "ForTokenClassification" else DataCollatorWithPadding
    return FineTuningTrainer(
        model=new_model(head) if model is None else model,
        args=args,
        data_collator=padding_class(tokenizer) if args.pad_to_max_length else SnugBertDataCollatorWithPacking(),
        token_outputs=head != "ForSequenceClassification",
        class_weights=weights,
        train_dataset=examples(head, 45) if data is None else data,
    )


def new_distillation_trainer(
    head: str, tokenizer, folder, data=None, teacher=None, callbacks=(), **settings
) -> DistillationTrainer:
    """Returns a trainer with the soft targets of `teacher`."""
    data = examples(head, 45) if data is None else data
    plain = new_trainer(head, tokenizer, folder, data=data, model=teacher, per_device_eval_batch_size=7, **settings)
    logits = compute_items(plain, data, hash_model(plain.model), TAGS[head], str(folder / "cache"))
    first_items = np.concatenate([[0], np.cumsum(count_items(data, TAGS[head]))])
    return DistillationTrainer(
        model=new_model(head),
        args=plain.args,
        targets=SoftTargets(logits, first_items, "single_label_classification"),
        train_dataset=data,
        data_collator=plain.data_collator.collate,
        token_outputs=head != HEADS[0],
        callbacks=[*callbacks],
    )


def make_task(tokenizer, number: int = 60) -> FineTuningTask:
    """Returns the task of classifying whether a sequence has few, some or many high tokens."""
    train_features, eval_features = examples(HEADS[0], number), examples(HEADS[0], 30, seed=1)
    references = np.array(eval_features["label"])

    validation_set = EvaluationSet(
        name="eval",
        features=eval_features,
        num_examples=30,
        decode=lambda logits: logits.argmax(-1),
        score=lambda predictions: {"accuracy": float((predictions == references).mean())},
        write=lambda predictions, folder: np.savetxt(folder / "predictions.txt", predictions, fmt="%d"),
        predictions_files=("predictions.txt",),
        baseline=Baseline("always 'few'", {"accuracy": 0.25}),
    )
    return FineTuningTask(
        name="counting",
        make_model=lambda: snugbert.SnugBertForSequenceClassification(snugbert.SnugBertConfig(**CONFIG)),
        tokenizer=tokenizer,
        data_collator=SnugBertDataCollatorWithPacking(),
        train_features=train_features,
        evaluation_sets=[validation_set],
        main_metric="accuracy",
        metrics=("accuracy",),
        pipeline_tag="text-classification",
        data={"train": [DataSource("train.csv", "train", number)], "eval": [DataSource("dev.csv", "validation", 30)]},
        labels=LABELS,
    )


def arguments(folder, **settings) -> FineTuningArguments:
    defaults = {"use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False, "learning_rate": 1e-3}
    return FineTuningArguments(output_dir=str(folder), **defaults | settings)


def write_card(
    folder, *, task, pipeline_tag, labels, base_model, name, text_pairs=False, sweep_tables=None, **results
) -> None:
    """Writes a card without a run. `results` are keys of results.json."""
    facts = SimpleNamespace(name=task, pipeline_tag=pipeline_tag, labels=labels, text_pairs=text_pairs)
    write_finetuning_card(folder, facts, results, base_model, name, sweep_tables)
