"""The precision that fits the device, unless the user chooses one."""

import math
from dataclasses import replace

import pytest
import synthetic
import torch

from snugbert.cli import device_arguments
from snugbert.cli.device_arguments import DeviceArguments, choose_precision
from snugbert.cli.parser import parse_arguments
from snugbert.errors import InputError
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments
from snugbert.trainers.trainer import check_weights

AMPERE, VOLTA, CPU = (8, 0), (7, 0), None


def fake_gpu(monkeypatch, capability: tuple[int, int] | None) -> None:
    """Makes torch report a GPU of this compute capability, or none. It emulates bfloat16 on older GPUs."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for name, answer in {
        "is_available": lambda: capability is not None,
        "get_device_capability": lambda device=None: capability,
        "is_bf16_supported": lambda including_emulation=True: including_emulation or capability >= AMPERE,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)


@pytest.mark.parametrize(
    ("device", "given", "bf16", "tf32"),
    [
        (AMPERE, {}, True, False),
        (AMPERE, {"bf16": False}, False, False),
        (AMPERE, {"fp16": True}, False, True),  # float16 leaves some products in float32
        (AMPERE, {"tf32": True}, False, True),
        (VOLTA, {}, False, False),
        (VOLTA, {"bf16": True}, True, False),
        (CPU, {}, False, False),
        (CPU, {"bf16": True}, True, False),
    ],
)
def test_the_table_of_precisions(monkeypatch, device, given, bf16, tf32):
    fake_gpu(monkeypatch, device)
    user = {"bf16": None, "fp16": False, "tf32": None} | given
    for each in (user, user | {"bf16": bf16, "tf32": tf32}):  # `dataclasses.replace` chooses again
        assert choose_precision(**each, uses_cuda=device is not None) == (bf16, tf32)


@pytest.mark.parametrize("arguments_class", [PretrainingArguments, FineTuningArguments])
def test_flags_launcher_and_python_choose_the_precision(tmp_path, monkeypatch, arguments_class):
    (tmp_path / "run.yaml").write_text("bf16: true\n")

    def parse(*flags: str) -> DeviceArguments:
        argv = ["--output_dir", str(tmp_path), "--use_cpu", *flags]
        return parse_arguments((arguments_class,), argv, prog="snugbert", description="")[0]

    in_file = ["--config", str(tmp_path / "run.yaml")]
    for flags, bf16 in (([], False), (["--bf16"], True), (in_file, True), ([*in_file, "--bf16", "false"], False)):
        args = parse(*flags)
        assert (args.bf16, args.mixed_precision) == (bf16, "bf16" if bf16 else "no")
        assert args.precision == ("bfloat16" if bf16 else "float32")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")  # `accelerate launch --mixed_precision bf16`
    assert parse().precision == "bfloat16"
    assert parse("--bf16", "false").mixed_precision == "no"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert arguments_class(str(tmp_path), use_cpu=True).precision == "float16"


@pytest.mark.parametrize("has_units", [False, True])
@pytest.mark.parametrize("arguments_class", [PretrainingArguments, FineTuningArguments])
def test_a_cpu_with_units_for_bfloat16_uses_them(has_units, arguments_class, tmp_path, monkeypatch):
    """A copy keeps the choice. `bf16=False` is float32."""
    fake_gpu(monkeypatch, AMPERE)
    monkeypatch.setattr(device_arguments, "has_bfloat16_units", lambda: has_units)
    args = arguments_class(str(tmp_path), use_cpu=True)
    assert args.precision == replace(args).precision == ("bfloat16" if has_units else "float32")
    assert arguments_class(str(tmp_path), use_cpu=True, bf16=False).precision == "float32"
    assert arguments_class(str(tmp_path), use_cpu=True, fp16=True).precision == "float16"
    assert not args.uses_cuda
    args.use_cpu = False
    assert args.uses_cuda
    with monkeypatch.context() as context:
        context.setenv("ACCELERATE_USE_CPU", "true")  # `accelerate launch --use_cpu`
        assert not args.uses_cuda
    fake_gpu(monkeypatch, CPU)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    args = arguments_class(str(tmp_path))  # on a machine without a GPU
    assert args.use_cpu and args.device.type == "cpu" and args.bf16 is has_units


@pytest.mark.parametrize(
    ("cores", "processes", "given", "expected"),
    [(16, 1, None, 4), (16, 8, None, 2), (4, 8, None, 0), (16, 1, 0, 0), (1, 1, 7, 7)],
)
def test_data_workers_and_copies_on_a_gpu(cores, processes, given, expected, tmp_path, monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    for uses_cuda in (False, True):
        monkeypatch.setattr(DeviceArguments, "uses_cuda", uses_cuda)
        args = FineTuningArguments(str(tmp_path), dataloader_num_workers=given)
        assert args.dataloader_num_workers == (expected if uses_cuda else given or 0)
        assert args.accelerator_config.non_blocking == uses_cuda
    args = FineTuningArguments(str(tmp_path), use_cpu=True, dataloader_pin_memory=False)
    assert not args.accelerator_config.non_blocking


def test_fsdp_and_deepspeed_are_refused(tmp_path):
    for given in ({"fsdp": True}, {"fsdp": "full_shard"}, {"deepspeed": "zero.json"}):
        with pytest.raises(InputError, match=rf"^--{next(iter(given))} is not supported\. .* DDP"):
            FineTuningArguments(str(tmp_path), **given, use_cpu=True)
    assert FineTuningArguments(str(tmp_path), fsdp="false", use_cpu=True).fsdp is None


def test_trainers_set_tf32_as_the_arguments_say(tmp_path, monkeypatch):
    """In a way that torch's compiler accepts, after transformers changed only the new one of torch's two settings."""
    trainer = synthetic.make_trainer(tmp_path)
    monkeypatch.setattr(DeviceArguments, "uses_cuda", True)
    monkeypatch.setattr(torch.backends, "fp32_precision", "none")  # restores it
    before = torch.get_float32_matmul_precision()
    try:
        for tf32 in (True, False):
            trainer.args.tf32 = tf32
            torch.backends.fp32_precision = "ieee" if tf32 else "tf32"
            trainer.create_accelerator_and_postprocess()
            assert torch.backends.cuda.matmul.allow_tf32 == tf32
            assert torch.backends.cuda.matmul.fp32_precision == ("tf32" if tf32 else "ieee")
    finally:
        torch.set_float32_matmul_precision(before)


def test_trainers_refuse_to_train_weights_of_16_bits(tmp_path, monkeypatch):
    model = synthetic.tiny_model().to(torch.bfloat16)
    monkeypatch.setattr(synthetic, "tiny_model", lambda dropout: model)
    trainer = synthetic.make_trainer(tmp_path, max_steps=1)
    with pytest.raises(InputError, match=r"word_embeddings\.weight is bfloat16, .* model\.float\(\)"):
        trainer.train()
    assert not list(tmp_path.iterdir())
    assert math.isfinite(trainer.evaluate()["eval_loss"])
    for parameter in model.parameters():
        parameter.requires_grad_(False)  # the frozen weights of an adapter
    check_weights(model)
