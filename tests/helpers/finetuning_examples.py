"""A small task for tests of fine-tuning: whether a sequence has few, some or many high tokens."""

import random
from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset
from parity import CONFIG, NUM_LABELS
from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding, TrainerCallback

import snugbert
from snugbert import SnugBertDataCollatorWithPacking, SnugBertTokenizer
from snugbert.card_snugbert import TASKS
from snugbert.data.sources import DataArguments, DataSource
from snugbert.families.students import hash_model
from snugbert.reports.cards import Head
from snugbert.reports.finetuned_card import write_finetuning_card
from snugbert.reports.results import TaskFacts
from snugbert.tasks.base import Baseline, Features, Task
from snugbert.tasks.evaluation_set import EvaluationSet
from snugbert.tasks.outputs import SEQUENCE, SPAN, TOKENS
from snugbert.trainers.finetuning.distillation_trainer import DistillationTrainer, compute_items
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.prepare_task import PreparedTask, SoftTargets

HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
OUTPUTS = dict(zip(HEADS, (SEQUENCE, TOKENS, SPAN), strict=True))
LABELS = ["few", "some", "many"]
WEIGHTS = "few=0.5,many=3"


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


@dataclass
class CountingSplit:
    """Sequences with labels in the order of `LABELS`."""

    name: str
    inputs: Dataset
    labeled: bool = True

    @property
    def num_examples(self) -> int:
        return len(self.inputs)


class Counting(Task[CountingSplit, Features, np.ndarray]):
    """Classifies whether a sequence has few, some or many high tokens. The answers are label ids."""

    arguments, head, output = DataArguments, HEADS[0], SEQUENCE
    name, main_metric, metrics, labels = "counting", "accuracy", ("accuracy",), LABELS
    default_columns, predicted_columns = (), ()

    def not_needed(self, *args, **kwargs):
        raise NotImplementedError

    read_splits = choose_labels = text_columns = list_texts = metric_features = pair = not_needed
    read = make_split = to_columns = not_needed

    def encode(self, split):
        return Features(split.inputs)

    def decode(self, logits, split, features):
        return logits.argmax(-1)

    def measure(self, split, answers):
        return (answers == np.array(split.inputs["label"]))[:, None]

    def score(self, split, rows, counts=None):
        return {"accuracy": float(rows.mean())} if counts is None else {}  # no intervals

    def baseline(self, split, train):
        return Baseline("always 'few'", {"accuracy": 0.25})

    def list_prediction_files(self, split):
        return ["predictions.txt"]

    def write(self, split, answers, folder):
        np.savetxt(folder / "predictions.txt", answers, fmt="%d")


class PreparedExamples(PreparedTask):
    """Examples for a given model, or for new classifiers."""

    given = None

    def make_model(self):
        return snugbert.SnugBertForSequenceClassification(self.config) if self.given is None else self.given

    def make_collator(self, pad_to_max_length):
        if not pad_to_max_length:
            return SnugBertDataCollatorWithPacking()
        is_tagging = self.task.output is TOKENS
        return (DataCollatorForTokenClassification if is_tagging else DataCollatorWithPadding)(self.task.tokenizer)


def prepare_examples(head: str, tokenizer, data=None, model=None) -> PreparedExamples:
    """Returns labeled examples to train a model on."""
    task = Counting()
    task.output = OUTPUTS[head]
    task.use_tokenizer(tokenizer, 512)
    prepared = PreparedExamples(
        task=task,
        model_args=FineTunedModelArguments(config_name="tiny", tokenizer_name="."),
        config=snugbert.SnugBertConfig(**CONFIG),
        student_layers=None,
        train_features=examples(head, 45) if data is None else data,
        evaluation_sets=[],
        data={"train": [DataSource("train.csv", "train", 45)]},
    )
    prepared.given = new_model(head) if model is None else model
    return prepared


def new_trainer(head: str, tokenizer, folder, data=None, model=None, **settings) -> FineTuningTrainer:
    args = arguments(folder, **{"save_strategy": "no", "learning_rate": 3e-5, **settings})
    return FineTuningTrainer(task=prepare_examples(head, tokenizer, data, model), args=args)


def new_distillation_trainer(head: str, tokenizer, folder, data=None, teacher=None, **settings) -> DistillationTrainer:
    """Returns a trainer with the soft targets of `teacher`."""
    data = examples(head, 45) if data is None else data
    plain = new_trainer(head, tokenizer, folder, data=data, model=teacher, per_device_eval_batch_size=7, **settings)
    logits = compute_items(plain, data, hash_model(plain.model), str(folder / "cache"))
    first_items = np.concatenate([[0], np.cumsum(OUTPUTS[head].count_items(data))])
    student = prepare_examples(head, tokenizer, data)
    student.soft_targets = SoftTargets(hash_model(plain.model), logits, first_items)
    return DistillationTrainer(task=student, args=plain.args)


class KeepGradients(TrainerCallback):
    """Keeps the gradients of the last step."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        named = model.named_parameters()
        self.gradients = {name: each.grad.clone() for name, each in named if each.grad is not None}


def train_one_step(trainer: FineTuningTrainer) -> torch.nn.Module:
    """Returns the model with the gradients of its first step."""
    trainer.args.max_steps, trainer.args.max_grad_norm = 1, 0
    keeper = KeepGradients()
    trainer.add_callback(keeper)
    trainer.train()
    for name, parameter in trainer.model.named_parameters():
        parameter.grad = keeper.gradients.get(name)
    return trainer.model


def prepare_counting(tokenizer, number: int = 60) -> PreparedTask:
    """Returns the task of classifying whether a sequence has few, some or many high tokens."""
    prepared = prepare_examples(HEADS[0], tokenizer, examples(HEADS[0], number))
    prepared.given, prepared.evaluation_sets = None, [counting_set(prepared.task)]
    train, validation = (DataSource("train.csv", "train", number), DataSource("dev.csv", "validation", 30))
    prepared.data = {"train": [train], "eval": [validation]}
    return prepared


def counting_set(task: Counting, name: str = "validation", number: int = 30, labeled: bool = True) -> EvaluationSet:
    """Returns sequences to score."""
    return EvaluationSet(task, CountingSplit(name, examples(HEADS[0], number, seed=1), labeled))


def arguments(folder, **settings) -> FineTuningArguments:
    defaults = {"use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False, "learning_rate": 1e-3}
    return FineTuningArguments(output_dir=str(folder), **defaults | settings)


def write_card(
    folder, *, task, pipeline_tag, labels, base_model, name, text_pairs=False, sweep_tables=None, **results
) -> None:
    """Writes a card without a run. `results` are keys of results.json."""
    (name_of_head,) = [head for head, task in TASKS.items() if task == pipeline_tag]
    head = Head(name_of_head, labels is None and pipeline_tag == "text-classification", text_pairs)
    write_finetuning_card(folder, TaskFacts(task, head, labels, (), base_model), results, name, sweep_tables)
