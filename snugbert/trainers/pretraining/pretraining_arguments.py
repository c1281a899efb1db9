"""The objectives and arguments of `snugbert pretrain`, and the training arguments of PretrainingTrainer."""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from snugbert.cli.arguments import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_SHARE,
    SHARE,
    OverwriteArguments,
    Range,
    argument,
    check_ranges,
)
from snugbert.cli.device_arguments import DeviceArguments
from snugbert.cli.model_arguments import StudentArguments
from snugbert.data.data_arguments import CACHE_GB, ValidationArguments
from snugbert.errors import InputError
from snugbert.trainers.pretraining.block_windows import WINDOW_BLOCKS

# The pretraining objective of a dataset: masked tokens and next sentences, masked tokens and sentence order, or masked
# tokens alone.
Objective = Literal["nsp", "sop", "mlm"]

# The values of `--objective`, and the examples that they need.
OBJECTIVES: dict[str, Objective] = {"mlm+nsp": "nsp", "mlm": "mlm", "mlm+order": "sop", "electra": "mlm"}

# Weight of ELECTRA's discriminator loss relative to the generator's loss (Clark et al., 2020, appendix A).
DISCRIMINATOR_WEIGHT = 50.0

# Weights of the losses of distillation, and the temperature of the soft targets. Sanh et al. (2019) give no values.
# These are from their code, in the README and the defaults of `train.py` (examples/research_projects/distillation in
# transformers 4).
SOFT_WEIGHT, LABEL_WEIGHT, COSINE_WEIGHT = 5.0, 2.0, 1.0
TEMPERATURE = 2.0

# The second task, in addition to masked tokens.
PAIR_TASKS: dict[Objective, str] = {"nsp": "next sentence", "sop": "sentence order"}

# The meaning of `next_sentence_label` 0 and 1.
PAIR_LABELS: dict[Objective, tuple[str, str]] = {
    "nsp": ("B is the next sentence", "B is random"),
    "sop": ("A and B are in order", "A and B are swapped"),
}

# Shares of the predicted tokens to replace with [MASK] and with a random token: Devlin et al. (2018), appendix A.1,
# and ELECTRA's original release. All other predicted tokens stay unchanged.
BERT_MASKS, ELECTRA_MASKS = (0.8, 0.1), (0.85, 0.0)
MASKINGS = ("tokens", "words", "spans")  # the values of `--masking`
OPTIMIZERS = ("lamb", "muon")  # values of `--optim`, in addition to the names of transformers


@dataclass
class PretrainingArguments(DeviceArguments, OverwriteArguments):
    """`TrainingArguments` with the paper's pretraining settings as defaults.

    Devlin et al. (2018), appendix A.2: learning rate 1e-4 with warmup over the first 1 % of the steps and linear
    decay, AdamW with weight decay 0.01. Epsilon 1e-6 is from the original release. The paper's batch is 256 sequences:
    `per_device_train_batch_size` x `gradient_accumulation_steps` x processes.
    """

    do_train: bool = argument(False, "Train. Default: true, unless only --do_eval is given.")
    do_eval: bool = argument(False, "Evaluate after training. Default: true with --validation_file.")
    learning_rate: float = argument(1e-4, "Peak learning rate.")
    weight_decay: float = argument(0.01, "Weight decay, except on biases and LayerNorm.")
    adam_epsilon: float = argument(1e-6, "Epsilon of AdamW.", advanced=True)
    warmup_steps: float = argument(0.01, "Steps of linear warmup. A value below 1 is a share of all steps.")
    per_device_train_batch_size: int = argument(32, "Sequences per device and batch.")
    optim: str = argument("adamw_torch_fused", "Optimizer: lamb, muon, or any optimizer of transformers.")
    logging_steps: float = argument(100, "Log the training metrics every N steps.")
    save_total_limit: int | None = argument(3, "Number of checkpoints to keep: the best and the newest. 0 keeps all.")

    def __post_init__(self):
        check_ranges(self)
        # Evaluation collects sums per sequence over all batches.
        self.eval_do_concat_batches, self.batch_eval_metrics = True, False
        self.ignore_data_skip = True  # the sampler of a resumed run starts at the right step
        self.average_tokens_across_devices = True  # losses are divided by counts over all processes
        for name in ("label_smoothing_factor", "auto_find_batch_size"):
            if getattr(self, name):
                raise InputError(f"--{name} is not supported in pretraining. Remove the flag.")
        optim = self.optim
        if optim in OPTIMIZERS:
            self.optim = "adamw_torch_fused"  # TrainingArguments rejects names unknown to transformers
        super().__post_init__()
        if optim in OPTIMIZERS:
            self.optim = optim

    @property
    def examples_seed(self) -> int:
        """Seed of the examples and their order: `data_seed` if it is set, otherwise `seed`."""
        return self.seed if self.data_seed is None else self.data_seed


@dataclass
class PretrainingModelArguments(StudentArguments):
    """Which model to pretrain, and its teacher."""

    def __post_init__(self):
        if self.teacher_name_or_path is None and self.num_student_layers is not None:
            raise InputError("--num_student_layers needs --teacher_name_or_path.")
        if self.teacher_name_or_path is not None:
            # The student starts from trained weights.
            if self.config_name is not None or (self.num_student_layers is None) == (self.model_name_or_path is None):
                raise InputError(
                    "--teacher_name_or_path: pass exactly one of --num_student_layers and --model_name_or_path, and "
                    "no --config_name."
                )
        super().__post_init__()


class PhaseArguments(NamedTuple):
    """A phase of `--phases`: tokens of the longest example, share of the steps, and objective."""

    max_seq_length: int
    share: float
    objective: Objective


@dataclass(kw_only=True)
class PretrainingDataArguments(ValidationArguments):
    """Arguments for the text, the examples and the masks."""

    corpus: str | None = argument(
        None, "Corpus from `snugbert prepare`, instead of text: a folder or URL.", opens_urls=True
    )
    corpus_cache_gb: float = argument(
        CACHE_GB, "Local disk for the blocks of a corpus at a URL, in GB.", range=POSITIVE, advanced=True
    )
    window_blocks: int = argument(
        WINDOW_BLOCKS, "Blocks (4.2 million tokens each) to shuffle together.", range=COUNT, advanced=True
    )
    validation_split_percentage: int = argument(
        5, "Percent of documents held out for --do_eval without --validation_file.", range=Range(1, 99)
    )
    phases: str | None = argument(
        None, "Maximum tokens and share of steps per phase: 128:90%%,512:10%%. 64:80%%:mlm has no pairs."
    )
    short_seq_prob: float = argument(
        0.1, "Share of sentence pairs with a random shorter target length.", range=SHARE, advanced=True
    )
    objective: str | None = argument(
        None,
        "mlm+nsp (BERT), mlm (RoBERTa), mlm+order (ALBERT) or electra. Default: mlm+nsp.",
        choices=tuple(OBJECTIVES),
    )
    masking: str = argument("tokens", "What to mask: tokens, words or spans (of words).", choices=MASKINGS)
    mlm_probability: str = argument("0.15", "Share of tokens to predict. 0.3:0.15 falls linearly from 0.3 to 0.15.")
    mask_replace_prob: float = argument(
        None, "Share of predicted tokens that become [MASK]. Default: 0.8 (electra: 0.85).", range=SHARE, advanced=True
    )
    random_replace_prob: float = argument(
        None, "Share of predicted tokens that become random. Default: 0.1 (electra: 0).", range=SHARE, advanced=True
    )
    generator_size: float = argument(
        0.25, "Width of electra's new generator, as a share of the model's.", range=POSITIVE_SHARE, advanced=True
    )
    bigram_init: bool = argument(False, "Start from weights computed from the bigrams of the training text.")
    show: int = argument(0, "Print this many masked training examples, then stop.", range=NOT_NEGATIVE)
    allow_changed_data: bool = argument(False, "Resume even if the text or the data settings changed.", advanced=True)

    def __post_init__(self):
        super().__post_init__()
        if self.corpus is not None and (self.train_file or self.dataset_name is not None):
            raise InputError(
                "--corpus cannot be combined with --train_file or --dataset_name. Pass only one of these flags."
            )
        if self.corpus is not None and self.deduplicate is not None:
            raise InputError("--deduplicate cannot change a prepared corpus. Pass the flag to `snugbert prepare`.")
        self.objective = self._choose_objective()
        masked, random = ELECTRA_MASKS if self.objective == "electra" else BERT_MASKS
        self.mask_replace_prob = masked if self.mask_replace_prob is None else self.mask_replace_prob
        self.random_replace_prob = random if self.random_replace_prob is None else self.random_replace_prob
        self.mask_rates = parse_mask_rates(self.mlm_probability)  # rates of the first and of the last step
        self.parsed_phases = parse_phases(self.phases or f"{self.max_seq_length}:100%", self.dataset_objective)

    @property
    def dataset_objective(self) -> Objective:
        """The objective of the [`PretrainingDataset`]s, except in phases without pairs."""
        return OBJECTIVES[self.objective or "mlm+nsp"]

    def _choose_objective(self) -> str:
        given = {f"--objective {self.objective}": self.objective} if self.objective else {}
        given |= {"--no_nsp": "mlm"} if self.no_nsp else {}
        given |= {"--sentence_order": "mlm+order"} if self.sentence_order else {}
        if len(set(given.values())) > 1:
            raise InputError(f"{' and '.join(given)} cannot be combined. Pass only one of these flags.")
        return next(iter(given.values()), "mlm+nsp")


def parse_mask_rates(text: str | float) -> tuple[float, float]:
    """Parses `--mlm_probability`: "0.15" -> (0.15, 0.15), and "0.3:0.15" -> (0.3, 0.15)."""
    try:
        rates = [float(part) for part in str(text).split(":")]
    except ValueError:
        rates = []
    if len(rates) not in (1, 2) or not all(rate in POSITIVE_SHARE for rate in rates):
        raise InputError(
            "--mlm_probability: expected a share, or the first and the last share, above 0 and at most 1, such as "
            f"0.3:0.15, not {text!r}."
        )
    return rates[0], rates[-1]


def parse_phases(text: str, objective: Objective) -> list[PhaseArguments]:
    """Parses `--phases`: "64:80%:mlm,128:20%" with "nsp" -> [(64, 0.8, "mlm"), (128, 0.2, "nsp")].

    `:mlm` means that a phase has no pairs. Without pairs in the run, `:mlm` changes nothing.
    """
    phases = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+(?:\.\d+)?)\s*%\s*(:\s*mlm\s*)?", part)
        if match is None or not float(match[2]):
            raise InputError(
                "--phases: expected a length and its share of the steps, such as 128:90%, or 128:90%:mlm without "
                f"pairs, not {part.strip()!r}."
            )
        phases.append(PhaseArguments(int(match[1]), float(match[2]) / 100, "mlm" if match[3] else objective))
    if all(phase.objective != objective for phase in phases):
        raise InputError(f"--phases: no phase of {text!r} has sentence pairs. Use --objective mlm.")
    total = sum(phase.share for phase in phases)
    if abs(total - 1) > 1e-9:
        raise InputError(f"--phases: the shares of {text!r} add up to {100 * total:g} %, not to 100 %.")
    return phases
