"""Between log lines, a step of either trainer never makes the host wait for a GPU."""

from pathlib import Path

import forked
import pytest
import synthetic
import torch
from finetuning_examples import HEADS, WEIGHTS, make_tokenizer, new_distillation_trainer, new_trainer
from host_waits import count_host_waits
from reference_kernels import acting_as_gpu
from transformers import TrainerCallback

from snugbert.data.packed_batches import pack

STEPS = 3
DISTILLED = {f"distilled {head}": head for head in ("ForSequenceClassification", "ForQuestionAnswering")}
# These values are on the host: the counts of a batch that was not sent yet, and the report of the step before.
# test_stopping.py tests when the report is read.
ON_THE_HOST = ("numpy in training_log.py", "tolist in stopping.py")


def collate(examples):
    columns = {name: [example[name].numpy() for example in examples] for name in ("input_ids", "labels")}
    pairs = torch.tensor([example.get("next_sentence_label", 0) for example in examples])
    return pack(columns) | {"next_sentence_label": pairs}


def collate_for_electra(examples):
    batch = collate(examples)
    del batch["next_sentence_label"]
    return batch | {"replacement_keys": torch.arange(len(batch["label_indices"]))}


def make_trainer(kind: str, folder: Path):
    # The data worker makes the batches. It may read what it likes.
    settings = {"gradient_accumulation_steps": 2, "dataloader_num_workers": 1, "logging_steps": 100}
    settings |= {"max_steps": STEPS, "per_device_train_batch_size": 2, "save_strategy": "no"}
    if kind in HEADS:
        weights = WEIGHTS if kind == "ForSequenceClassification" else None
        return new_trainer(kind, make_tokenizer(), folder, class_weights=weights, **settings)
    if kind in DISTILLED:
        return new_distillation_trainer(DISTILLED[kind], make_tokenizer(), folder, **settings)
    if kind == "electra":
        trainer = synthetic.make_trainer(folder, dropout=0.1, electra=True, **settings)
        trainer.data_collator.collate = collate_for_electra
        return trainer
    teacher = synthetic.make_teacher() if kind == "distilled" else None
    settings["optim"] = "adamw_torch_fused" if kind == "distilled" else kind
    trainer = synthetic.make_trainer(folder, dropout=0.1, teacher=teacher, **settings)
    trainer.data_collator.collate = collate
    return trainer


def check_steps(folder: Path, *kinds: str) -> None:
    for kind in kinds:
        trainer = make_trainer(kind, folder)
        with acting_as_gpu() as kernels, count_host_waits() as waits:
            steps = NoteSteps(waits)
            trainer.add_callback(steps)
            trainer.train()
        in_steps = [wait for wait in waits[steps.ends[0] : steps.ends[-1]] if not wait.startswith(ON_THE_HOST)]
        assert kernels and len(steps.ends) == STEPS
        assert in_steps == []


class NoteSteps(TrainerCallback):
    """Notes how many waits there were at the end of each step."""

    def __init__(self, waits: list[str]):
        self.waits, self.ends = waits, []

    def on_step_end(self, *args, **kwargs):
        self.ends.append(len(self.waits))


KINDS = ["muon", "lamb", "electra", "distilled", *HEADS[1:], *DISTILLED]


@pytest.mark.parametrize(
    "kind", ["adamw_torch_fused", HEADS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS)]
)
def test_a_step_has_no_host_wait(kind, tmp_path):
    check_steps(tmp_path, kind)


@pytest.mark.slow
def test_a_step_of_two_processes_has_no_host_wait(tmp_path):
    process = forked.run(check_steps, tmp_path, "adamw_torch_fused", HEADS[0], processes=2)
    assert process.returncode == 0, process.stderr
