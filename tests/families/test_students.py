"""Students that start from some layers of their teacher."""

import copy

import pytest
import torch
from family_checkpoints import write_checkpoint
from parity import HEADS, ours_and_stock, ragged_batch
from transformers import PreTrainedModel

import snugbert
from snugbert.errors import InputError
from snugbert.families.students import choose_student_layers, make_student
from snugbert.families_snugbert import FAMILY_TYPES

pytestmark = pytest.mark.usefixtures("one_thread")

MODELS_WITH_HEADS = [("bert", head) for head in HEADS if head != "Model"]
MODELS_WITH_HEADS += [(family, "ForMaskedLM") for family in FAMILY_TYPES]


def make_teacher(family: str, head: str, folder) -> PreTrainedModel:
    if family == "bert":
        return ours_and_stock(head)[0].eval()
    write_checkpoint(folder, family, head, num_hidden_layers=3, num_labels=3)
    return getattr(snugbert, f"SnugBert{head}").from_pretrained(folder)


def read_values(model: PreTrainedModel, head: str) -> list[torch.Tensor]:
    """The outputs of a model without dropout, its loss among them. `logits` are not sparse."""
    batch = ragged_batch(head)
    # The families have other vocabularies and numbers of token types than this batch.
    batch["input_ids"] = batch["input_ids"] % 50
    del batch["token_type_ids"]
    with torch.no_grad():
        return [value for value in model.eval()(**batch).values() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize(("family", "head"), MODELS_WITH_HEADS)
def test_a_student_equals_its_teacher_without_the_other_layers(family, head, tmp_path):
    teacher = make_teacher(family, head, tmp_path / "teacher")
    before = copy.deepcopy(teacher.state_dict())
    random_state = torch.get_rng_state()
    for layers in ([0, 2], [0, 1, 2]):
        student = make_student(teacher, layers)
        shortened = copy.deepcopy(teacher)
        assert student.config.num_hidden_layers == len(layers) and not student.training
        assert student.config.to_dict() | {"num_hidden_layers": 3} == teacher.config.to_dict()
        encoder = shortened.bert.encoder
        encoder.layer = torch.nn.ModuleList([encoder.layer[number] for number in layers])
        assert student.num_parameters() == shortened.num_parameters()  # tied weights count once
        for value, expected in zip(read_values(student, head), read_values(shortened, head), strict=True):
            assert torch.equal(value, expected)
    assert torch.equal(torch.get_rng_state(), random_state)

    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1)
    for name, weight in teacher.state_dict().items():
        assert torch.equal(weight, before[name]), name


@pytest.mark.parametrize(
    ("num_layers", "num_student_layers", "which", "layers"),
    [
        (12, 6, "spread", [0, 2, 4, 7, 9, 11]),  # as in `extract.py` of DistilBERT
        (6, 3, "spread", [0, 2, 5]),
        (12, 4, "spread", [0, 4, 7, 11]),
        (12, 1, "spread", [0]),
        (12, 3, "first", [0, 1, 2]),
        (12, 3, "last", [9, 10, 11]),
        (12, 3, "1, 5,11", [1, 5, 11]),
    ],
)
def test_chosen_layers(num_layers, num_student_layers, which, layers):
    assert choose_student_layers(num_layers, num_student_layers, which) == layers


@pytest.mark.parametrize(
    ("number", "which", "message"),
    [
        *((number, "spread", f"--num_student_layers {number}: expected 1 to 6") for number in (0, 7)),
        *(
            (2, which, f"{which}: expected spread, first, last, or 2 different numbers from 0 to 5 in asc")
            for which in ("middle", "0,-1", "0,6", "3,1", "3,3", "0,2,5")
        ),
    ],
)
def test_invalid_choices_of_layers(number, which, message):
    with pytest.raises(InputError, match=message):
        choose_student_layers(6, number, which)
