"""The loss of distillation: a reference, and exact accumulation."""

import pytest
import torch
from finetuning_examples import HEADS, examples, new_distillation_trainer, new_model, train_one_step
from parity import assert_same_gradients, perturb

from snugbert.tasks.outputs import UNLABELED
from snugbert.trainers.finetuning.losses import distillation_loss

pytestmark = pytest.mark.usefixtures("one_thread")


def reference(student, teacher, labels, kind, temperature, weight):
    """The loss item by item, as Hinton et al. (2015) define it."""
    total = torch.zeros(())
    for s, t, label in zip(student, teacher, labels, strict=True):
        if kind == "regression":
            soft = (s - t).square().sum()
            hard = (s - label).square().sum()
        elif kind == "single_label_classification":
            p, q = torch.softmax(t / temperature, -1), torch.softmax(s / temperature, -1)
            soft = temperature**2 * (p * (p.log() - q.log())).sum()
            hard = -torch.softmax(s, -1)[label].log() if label >= 0 else torch.tensor(torch.nan)
        else:
            p, q = torch.sigmoid(t / temperature), torch.sigmoid(s / temperature)
            soft = temperature**2 * (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).sum()
            hard = -(label * torch.sigmoid(s).log() + (1 - label) * torch.sigmoid(-s).log()).sum()
        total = total + weight * soft + (0 if torch.isnan(hard) else (1 - weight) * hard)
    return total


@pytest.mark.parametrize(
    ("kind", "columns"), [("single_label_classification", 4), ("multi_label_classification", 4), ("regression", 1)]
)
def test_the_loss_equals_a_reference(kind, columns):
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 12, columns, generator=generator) * 3
    if kind == "single_label_classification":
        labels = torch.randint(columns, (12,), generator=generator)
        labels[::3] = UNLABELED
    else:
        labels = torch.rand(12, columns, generator=generator).round()
        labels[::3] = torch.nan
    labels = labels.flatten() if kind == "regression" else labels
    for temperature, weight in ((1, 0.5), (4, 0.9), (2, 0), (2, 1)):
        found, expected = (
            loss(student, teacher, labels, kind, temperature, weight) for loss in (distillation_loss, reference)
        )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def plain_student(head, teacher, data, temperature, weight):
    """Returns a student with the gradients of the reference, one unpadded example at a time."""
    student, total, items = new_model(head).train(), 0, 0
    for row in data:
        inputs = {name: torch.tensor([row[name]]) for name in ("input_ids", "token_type_ids", "attention_mask")}
        with torch.no_grad():
            expected = teacher.eval()(**inputs)
        found = student(**inputs)
        if head == "ForQuestionAnswering":
            sides = [
                (found[f"{side}_logits"], expected[f"{side}_logits"], torch.tensor([row[f"{side}_positions"]]))
                for side in ("start", "end")
            ]
        else:
            labels = torch.tensor(row["labels"] if head == "ForTokenClassification" else [row["label"]])
            rows = [outputs.logits.flatten(0, -2)[labels != -100] for outputs in (found, expected)]
            sides = [(*rows, labels[labels != -100])]
        for side in sides:
            total += reference(*side, "single_label_classification", temperature, weight) / len(sides)
        items += len(sides[0][2])
    (total / items).backward()
    return student


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.slow
def test_one_batch_equals_accumulated_padded_and_filled_batches_and_a_reference(head, tokenizer, tmp_path):
    teacher, data = new_model(head), examples(head, 45)
    perturb(teacher, 0.1)
    columns = {HEADS[0]: ["label"], HEADS[1]: ["labels"], HEADS[2]: ["start_positions", "end_positions"]}[head]
    for column in columns:  # the first third has no gold labels
        unlabeled = [
            value if row >= 15 else ([min(label, UNLABELED) for label in value] if column == "labels" else UNLABELED)
            for row, value in enumerate(data[column][:])
        ]
        data = data.remove_columns(column).add_column(column, unlabeled)
    soft = {"distillation_temperature": 2.0, "distillation_weight": 0.5}
    first, *others = (
        train_one_step(new_distillation_trainer(head, tokenizer, tmp_path, data, teacher, **soft, **settings))
        for settings in (
            {"per_device_train_batch_size": 45},
            {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 6, "pad_to_max_length": True},
            {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 6, "pad_to_multiple_of": 32},
        )
    )
    assert max(each.grad.abs().max().item() for each in first.parameters() if each.grad is not None) > 1e-4
    for other in (*others, plain_student(head, teacher, data, temperature=2.0, weight=0.5)):
        assert_same_gradients(other, first)
