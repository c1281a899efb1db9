"""`TrainingArguments` whose defaults fit the device."""

import copy
import os
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from transformers import TrainingArguments
from transformers.utils import strtobool

from snugbert.cli.arguments import NOT_NEGATIVE, InitSignature, argument
from snugbert.cli.old_arguments import REMOVED, translate
from snugbert.errors import InputError, explain_choice

# Processes that make batches, for each GPU. They restart in each epoch, because with `dataloader_persistent_workers`,
# Trainer would reuse the loader of the first validation set for all validation sets.
DATA_WORKERS = 4
# Unsupported ways of training, and what to use instead.
UNSUPPORTED = {
    "fsdp": "under DDP, BERT-large needs 5.4 GB plus activations",
    "deepspeed": "torchrun and accelerate launch train with DDP, which replicates the model on each GPU",
}
# Names of the precisions, and how the log describes them.
PRECISIONS = {
    "bfloat16": "bfloat16 autocast, weights in float32 (--bf16 false: float32)",
    "float16": "float16 autocast, weights in float32 (--bf16: bfloat16)",
    "TF32": "TF32, weights in float32 (--tf32 false: float32)",
    "float32": "float32 (--bf16: bfloat16 autocast)",
}


class TranslatesArguments(type):
    """A metaclass that lets constructors accept the argument names of transformers 4."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Creates an instance from arguments with old or new names."""
        for name in kwargs.keys() & REMOVED:
            raise TypeError(f"{cls.__name__}: no argument {name!r}. {REMOVED[name]}")
        return super().__call__(*args, **translate(kwargs))


@dataclass
class DeviceArguments(TrainingArguments, metaclass=TranslatesArguments):
    """`TrainingArguments` whose precision, compilation and number of data workers fit the device by default.

    After `__init__`, `bf16` and `tf32` are booleans (see [`choose_precision`]), `dataloader_num_workers` is an integer
    (see [`choose_workers`]), and without an accelerator, `use_cpu` is true. If the user did not choose
    `torch_compile` or `cuda_graphs`, they stay None, and the trainer decides when training starts.
    """

    __signature__ = InitSignature()
    help_group: ClassVar[str] = "training"
    given: ClassVar[tuple[str, ...]] = ()  # names of the arguments that the user gave

    bf16: bool | None = argument(  # type: ignore[assignment]
        None, "Compute in bfloat16. Weights stay in float32. Default: true where supported."
    )
    torch_compile: bool | None = argument(  # type: ignore[assignment]
        None, "Compile with torch.compile. Default: true on CUDA GPUs, except for short fine-tuning."
    )
    dataloader_num_workers: int = argument(
        None,
        "Processes that make batches. Default: 4 for each GPU, but no more than CPU cores. 0 on a CPU.",
        range=NOT_NEGATIVE,
        advanced=True,
    )
    report_to: list[str] = argument([], "Also log to one or more of tensorboard, wandb, trackio, mlflow, ...")
    dry_run: bool = argument(False, "Check everything, print the plan, the memory and the time, then stop.")
    cuda_graphs: bool | None = argument(
        None, "Record the kernels of a training step once per batch size. Default: true on a GPU.", advanced=True
    )
    pad_to_multiple_of: int | None = argument(
        None,
        "Pad packed batches to a multiple of this number of tokens. Default: chosen from the lengths of the examples "
        "on a GPU, otherwise 0 (no padding).",
        range=NOT_NEGATIVE,
        advanced=True,
    )

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remembers the names of the arguments."""
        self = super().__new__(cls)
        self.given = tuple(name for name, value in kwargs.items() if value is not None)  # type: ignore[misc]
        return self

    def __post_init__(self):
        if self.report_to:
            check_reporters([self.report_to] if isinstance(self.report_to, str) else self.report_to)
        for name in UNSUPPORTED:
            if str(getattr(self, name) or False).lower() != "false":  # true and false in a YAML file are read as text
                raise InputError(f"--{name} is not supported. Remove the flag: {UNSUPPORTED[name]}.")
            setattr(self, name, None)
        if self.save_on_each_node:
            raise InputError("--save_on_each_node is not supported. Use an --output_dir that all machines share.")
        # The filter hides NaN and infinite losses, which must end the run. It also waits for the device in each batch.
        self.logging_nan_inf_filter = False
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # losses use all parameters, except in phases without pairs
        if self.bf16 is None and not self.fp16:  # set by `accelerate launch --mixed_precision`
            launcher = os.environ.get("ACCELERATE_MIXED_PRECISION")
            self.bf16, self.fp16 = True if launcher == "bf16" else None, launcher == "fp16"
        if self.bf16 is None and (self.is_on_cpu or not torch.accelerator.is_available()):
            self.bf16 = not self.fp16 and has_bfloat16_units()
        self.bf16, self.tf32 = choose_precision(self.bf16, self.fp16, self.tf32, self.uses_cuda)
        if self.dataloader_num_workers is None:
            self.dataloader_num_workers = choose_workers(self.uses_cuda)
        if not (self.uses_cuda or torch.accelerator.is_available()):
            # Otherwise transformers would refuse `bf16`, and accelerate would let each process train alone.
            self.use_cpu = True
            self.dataloader_pin_memory = False  # without a device, torch would warn in every epoch
        started = int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1  # by a launcher
        if started > 1 and self.is_on_cpu and not dist.is_initialized():
            # transformers (5.23) would ignore `ddp_timeout` when it connects processes on a CPU.
            dist.init_process_group(self.ddp_backend or "gloo", timeout=self.ddp_timeout_delta)
        super().__post_init__()
        if self.uses_cuda and self.dataloader_pin_memory:
            self.accelerator_config.non_blocking = True  # type: ignore[union-attr]
        # Trainer would use the precision of the launcher even with `--bf16 false`.
        self.mixed_precision = "bf16" if self.bf16 else "fp16" if self.fp16 else "no"

    @classmethod
    def copy_of(cls, args: TrainingArguments) -> Self:
        """Returns a copy. Arguments of another class are refused: their defaults may not be what the user wants."""
        if not isinstance(args, cls):
            raise InputError(f"args: expected {cls.__name__}, not {type(args).__name__}. Both take the same settings.")
        return copy.copy(args)

    @property
    def uses_cuda(self) -> bool:
        """Whether the run uses a CUDA GPU. Unlike `device`, this does not set up the device."""
        return torch.cuda.is_available() and not self.is_on_cpu

    @property
    def is_on_cpu(self) -> bool:
        """Whether the user chose the CPU, in the arguments or in the launcher."""
        return self.use_cpu or bool(strtobool(os.environ.get("ACCELERATE_USE_CPU", "false")))

    @property
    def precision(self) -> str:
        """The precision of matrix products, one of `PRECISIONS`."""
        return "bfloat16" if self.bf16 else "float16" if self.fp16 else "TF32" if self.tf32 else "float32"


def has_bfloat16_units() -> bool:
    """Whether the CPU multiplies in bfloat16. On two cores, `mini` then pretrains 1.7 times as fast as in float32."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def choose_precision(bf16: bool | None, fp16: bool, tf32: bool | None, uses_cuda: bool) -> tuple[bool, bool]:
    """Returns `bf16` and `tf32`, and chooses the values that the user left at None. The user's values are not changed.

    - `bf16`: true on GPUs that compute in bfloat16 (Ampere and newer), unless the user gives `fp16` or `tf32`.
    - `tf32`: true with `fp16` on GPUs with TF32 (Ampere and newer). `bf16=False` alone means float32, without TF32.

    Without a CUDA GPU, nothing is chosen.
    """
    if uses_cuda and tf32 is None:
        if bf16 is None:
            bf16 = not fp16 and torch.cuda.is_bf16_supported(including_emulation=False)
        # NVIDIA's GPUs since Ampere have TF32. All of them have bfloat16, too.
        tf32 = fp16 and torch.version.cuda is not None and torch.cuda.get_device_capability() >= (8, 0)
    return bool(bf16), bool(tf32)


def choose_workers(uses_cuda: bool) -> int:
    """Chooses the number of data workers of each process.

    With CUDA it is `DATA_WORKERS`, but no more than the process's share of the CPU cores that this machine allows.
    Otherwise 0, because workers would take cores from the model.
    """
    if not uses_cuda:
        return 0
    import joblib  # only here, because `--help` works without it

    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # on this machine; set by torchrun and accelerate
    return min(DATA_WORKERS, joblib.cpu_count() // processes)


def apply_tf32(args: TrainingArguments) -> None:
    """Turns TF32 on or off for float32 products on the GPU.

    Trainer and accelerate turn TF32 on for `torch_compile`. Trainer sets torch's new setting without the old setting,
    which makes torch's compiler fail. This function sets both.
    """
    if isinstance(args, DeviceArguments) and args.uses_cuda:
        torch.set_float32_matmul_precision("high" if args.tf32 else "highest")


def check_reporters(names: list[str]) -> None:
    """Checks that the reporters of `--report_to` are known and installed. Trainer would check this minutes later."""
    from transformers.integrations import integration_utils  # this import takes seconds

    installed = ("all", "none", "flyte", *integration_utils.get_available_reporting_integrations())  # omits flyte
    for name in names:
        if name not in (*integration_utils.INTEGRATION_TO_CALLBACK, *installed):
            raise InputError(explain_choice("--report_to", name, integration_utils.INTEGRATION_TO_CALLBACK))
        if name not in installed:
            raise InputError(f"--report_to {name}: its package is not installed. Run: pip install {name}")
