"""Pretraining without text: a corpus of given token ids, and a tiny model on random examples."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import parity
import torch
from torch.nn.utils.rnn import pad_sequence

import snugbert
from snugbert.data.corpus.corpus import Corpus
from snugbert.data.corpus.part_files import Block
from snugbert.trainers.pretraining.batches import plan_phases
from snugbert.trainers.pretraining.electra import ElectraPair, shrink_config
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments
from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer

VOCAB_SIZE, MASK = 200, 4
MAX_SEQ_LENGTH = 20
# transformers 5.23 renamed it; 5.17 has the old name only.
FIELDS = PretrainingArguments.__dataclass_fields__
CHECKPOINTING = "activation_checkpointing" if "activation_checkpointing" in FIELDS else "gradient_checkpointing"
ARGUMENTS = {
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "use_cpu": True,
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
}
TIMES = ("runtime", "per_second", "preparation_time")


def make_corpus(blocks: list[list[list[list[int]]]]) -> Corpus:
    """Makes a corpus from token ids, nested as blocks[block][document][sentence][token]."""

    def offsets(parts):
        return np.cumsum([0, *map(len, parts)])

    def block(documents):
        sentences = [sentence for document in documents for sentence in document]
        return Block(np.concatenate(sentences).astype(np.uint16), offsets(sentences), offsets(documents))

    return Corpus([block(documents) for documents in blocks], digest=json.dumps([len(blocks), len(blocks[0])]))


class RandomExamples(torch.utils.data.Dataset):
    """Masked sequences of different lengths, with different numbers of labels."""

    max_seq_length = MAX_SEQ_LENGTH

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        length = int(torch.randint(8, MAX_SEQ_LENGTH + 1, (), generator=generator))
        ids = torch.randint(5, VOCAB_SIZE, (length,), generator=generator)
        labels = torch.full((length,), -100)
        labeled = slice(1, 2 + length // 4)  # so that processes and accumulated batches have different numbers
        labels[labeled] = ids[labeled]
        return {"input_ids": ids.masked_fill(labels >= 0, MASK), "labels": labels, "next_sentence_label": index % 2}


class ExamplesWithoutPairs(RandomExamples):
    """The same sequences without labels of pairs."""

    objective = "mlm"

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: value for name, value in super().__getitem__(index).items() if name != "next_sentence_label"}


def packed(examples: list[dict[str, Any]]) -> dict[str, Any]:
    """Examples as one packed batch."""
    return parity.packed(padded(examples))


def padded(examples: list[dict[str, Any]]) -> dict[str, Any]:
    """Examples as one padded batch."""
    batch = {
        name: pad_sequence([example[name] for example in examples], batch_first=True, padding_value=value)
        for name, value in (("input_ids", 0), ("labels", -100))
    }
    batch["attention_mask"] = (batch["input_ids"] != 0).long()
    if "next_sentence_label" in examples[0]:
        batch["next_sentence_label"] = torch.tensor([example["next_sentence_label"] for example in examples])
    return batch


def packed_for_electra(examples: list[dict[str, Any]]) -> dict[str, Any]:
    """Examples as one packed batch with the random numbers for ELECTRA. They follow from the examples."""
    keys = []
    for example in examples:
        generator = torch.Generator().manual_seed(int(example["input_ids"].sum()))
        keys.append(torch.randint(2**62, ((example["labels"] != -100).sum(),), generator=generator))
    return packed(examples) | {"replacement_keys": torch.cat(keys)}


def tiny_model(dropout: float = 0.0, model: Any = snugbert.SnugBertForPreTraining) -> Any:
    """A new model, the same at every call. `model` builds it from a configuration."""
    torch.manual_seed(0)
    config = snugbert.SnugBertConfig.from_size(
        "tiny", vocab_size=VOCAB_SIZE, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    return model(config)


def note_batches(trainer: PretrainingTrainer, read: Callable[[list[dict]], Any]) -> None:
    """Notes what `read` returns for the batches of each step in `trainer.seen`."""
    trainer.seen, get_batch_samples = [], trainer.get_batch_samples

    def get_and_note(*arguments):
        batches, labels = get_batch_samples(*arguments)
        trainer.seen.append(read(batches))
        return batches, labels

    trainer.get_batch_samples = get_and_note


def without_times(log: list[dict]) -> list[dict]:
    """The lines of a log without times, which differ between equal runs."""
    return [{name: value for name, value in line.items() if not name.endswith(TIMES)} for line in log]


def make_pair(config: snugbert.SnugBertConfig) -> ElectraPair:
    """A discriminator and a generator of a quarter of its width, with random weights."""
    generator = snugbert.SnugBertForMaskedLM(shrink_config(config, 0.25))
    return ElectraPair(snugbert.SnugBertForReplacedTokenDetection(config), generator)


def make_teacher() -> snugbert.SnugBertForMaskedLM:
    """A masked language model with dropout and other weights than [`tiny_model`]."""
    teacher = tiny_model(dropout=0.1, model=snugbert.SnugBertForMaskedLM).train()
    parity.perturb(teacher)
    return teacher


def make_trainer(
    folder: Any,
    size: int = 1000,
    dropout: float = 0.0,
    as_list: bool = False,
    electra: bool = False,
    teacher: Any = None,
    steps_without_pairs: int = 0,
    **arguments: Any,
) -> PretrainingTrainer:
    """A trainer of [`tiny_model`], or of ELECTRA, on [`RandomExamples`], or on a list of them.

    The first steps can be on [`ExamplesWithoutPairs`].
    """
    defaults = {"output_dir": str(folder), "warmup_steps": 0, **ARGUMENTS}
    dataset, args = RandomExamples(size), PretrainingArguments(**defaults | arguments)
    phases = None
    if steps_without_pairs:
        share = steps_without_pairs / args.max_steps
        phases = plan_phases([ExamplesWithoutPairs(size), dataset], [share, 1 - share], args)
    return PretrainingTrainer(
        model=tiny_model(dropout, make_pair) if electra else tiny_model(dropout),
        args=args,
        train_dataset=[dataset[index] for index in range(size)] if as_list else dataset,
        phases=phases,
        eval_dataset=RandomExamples(16),
        data_collator=packed_for_electra if electra else packed,
        teacher=teacher,
    )
