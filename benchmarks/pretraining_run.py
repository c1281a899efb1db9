r"""A pretraining run of SnugBERT, compared with stock `BertForPreTraining` under transformers' own Trainer.

    python benchmarks/pretraining_run.py --train_file 'books/train-*.txt.gz' \
        --validation_file books/validation.txt.gz --tokenizer_name tok --config_name mini --max_steps 2000 \
        --learning_rate 1e-3 --output_dir run

Both sides use the same initial weights, examples, masks, order, optimizer, schedule, batch size, precision and
dropout. SnugBERT's batches are packed. Stock BERT's are padded to their longest example. The sides run one after the
other, each in a new process. Both are evaluated on the whole validation text at regular steps. Seconds are training
time, without evaluation. Each side writes a log, `ours.jsonl` or `stock.jsonl`, to the output folder.
`pretraining_run.md` and `pretraining_run.png` are made from these logs.
"""

import argparse
import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from reporting import describe_run, format_table
from side_by_side import SIDES, choose_device, describe_machine, positive
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

from snugbert.cli.model_arguments import ModelArguments
from snugbert.configuration_snugbert import SIZES
from snugbert.data.corpus.preparation import prepare_corpus
from snugbert.errors import InputError
from snugbert.evaluation.held_out_text import pad_batch
from snugbert.families.loading import load_config, load_model, load_tokenizer
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.reports.plots import new_figure, tidy
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.examples import PretrainingDataset
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments
from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer

NAMES = {"ours": "SnugBERT", "stock": "stock BERT"}
COLORS = {"ours": "#d9480f", "stock": "#2b6cb0"}
MEASURES = {
    "mlm_loss": ("masked token loss, nats", ".3f"),
    "mlm_accuracy": ("masked token accuracy", ".1%"),
    "nsp_loss": ("next sentence loss, nats", ".3f"),
    "nsp_accuracy": ("next sentence accuracy", ".1%"),
}
SAME_START = 2e-2  # largest accepted difference of initial losses; bfloat16 may round in different places
SMOOTHED_SHARE = 0.05  # share of log lines averaged per point of a smoothed curve

Batch = dict[str, Any]


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line. Flags have the same names as in `snugbert pretrain`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", required=True, help="documents, as for `snugbert pretrain`")
    parser.add_argument("--validation_file", nargs="+", required=True, help="documents for evaluation")
    parser.add_argument("--tokenizer_name", required=True, help="tokenizer folder")
    parser.add_argument("--config_name", default="mini", help=f"{', '.join(SIZES)}, a folder or a JSON file")
    parser.add_argument("--config_overrides", help="configuration fields, such as hidden_dropout_prob=0")
    parser.add_argument("--max_seq_length", type=positive, default=128)
    parser.add_argument("--mlm_probability", type=float, default=0.15)
    parser.add_argument("--max_steps", type=positive, default=1000)
    parser.add_argument("--per_device_train_batch_size", type=positive, default=32)
    parser.add_argument("--per_device_eval_batch_size", type=positive, default=32)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--warmup_steps", type=float, default=0.01, help="below 1: share of all steps")
    parser.add_argument("--adam_beta2", type=float, default=0.999)
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast on both sides")
    parser.add_argument("--use_cpu", action="store_true")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--logging_steps", type=positive, default=10)
    parser.add_argument("--eval_steps", type=positive, default=100)
    parser.add_argument("--max_eval_samples", type=positive, help="maximum number of pairs for evaluation")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--side", choices=(*SIDES, "both"), default="both", help="run one side only")
    return parser.parse_args(argv)


# --- a side -----------------------------------------------------------------------------------------------------


def run_side(side: str, args: argparse.Namespace) -> None:
    """Trains one side, and writes its log to `<side>.jsonl`."""
    model_args = ModelArguments(
        config_name=args.config_name, config_overrides=args.config_overrides, tokenizer_name=args.tokenizer_name
    )
    tokenizer = load_tokenizer(model_args)
    pack = SnugBertDataCollatorForPretraining(tokenizer, mlm_probability=args.mlm_probability)
    training_examples = make_examples("train", args.train_file, side, tokenizer, args, args.seed)
    validation_examples = make_examples("validation", args.validation_file, side, tokenizer, args, seed=0)
    validation_pairs = min(len(validation_examples), args.max_eval_samples or len(validation_examples))
    tokens: list[int] = []

    def collate(examples: list[Batch]) -> Batch:
        batch = pack(examples)
        tokens.append(batch["input_ids"].numel())
        return batch if side == "ours" else pad_batch(batch, tokenizer.pad_token_id)

    settings: dict[str, Any] = {
        "output_dir": str(args.output_dir / side),
        "per_device_train_batch_size": args.per_device_train_batch_size,
        "max_steps": args.max_steps,
        "learning_rate": args.learning_rate,
        "warmup_steps": args.warmup_steps,
        "adam_beta2": args.adam_beta2,
        "adam_epsilon": 1e-6,
        "weight_decay": 0.01,
        "optim": "adamw_torch_fused",
        "logging_steps": args.logging_steps,
        "bf16": args.bf16,
        "use_cpu": args.use_cpu,
        "seed": args.seed,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.accelerator.is_available() and not args.use_cpu,
    }
    transformers.set_seed(args.seed)
    ours = load_model(transformers.AutoModelForPreTraining, model_args, load_config(model_args, tokenizer))
    model: PreTrainedModel
    if side == "ours":
        model, training_args, trainer_class = ours, PretrainingArguments(**settings), PretrainingTrainer
    else:
        fields = {**ours.config.to_dict(), "model_type": "bert"}
        model = transformers.BertForPreTraining(transformers.BertConfig(**fields))
        model.load_state_dict(ours.state_dict())
        training_args = TrainingArguments(
            **settings, train_sampling_strategy="sequential", remove_unused_columns=False
        )
        trainer_class = Trainer
    size = args.per_device_eval_batch_size
    batches = [
        pack([validation_examples[index] for index in range(start, min(start + size, validation_pairs))])
        for start in range(0, validation_pairs, size)
    ]
    if side == "stock":
        batches = [pad_batch(batch, tokenizer.pad_token_id) for batch in batches]
    recorder = Recorder(args.output_dir / f"{side}.jsonl", batches, args, tokens)
    trainer = trainer_class(
        model=model,
        args=training_args,
        train_dataset=training_examples if side == "ours" else AllEpochs(training_examples, args),
        data_collator=collate,
        processing_class=tokenizer,
        callbacks=[recorder],
    )
    trainer.train()


def make_examples(
    name: str, files: list[str], side: str, tokenizer: Any, args: argparse.Namespace, seed: int
) -> PretrainingDataset:
    """Creates the dataset of sentence pairs. The side that runs first prepares the text."""
    return PretrainingDataset(
        prepare_corpus(files, tokenizer, args.output_dir / name, show_progress=False),
        tokenizer,
        max_seq_length=args.max_seq_length,
        seed=seed,
        epochs_dir=args.output_dir / f"{name}-{side}",  # not shared: each side makes its own pairs
    )


class AllEpochs(torch.utils.data.Dataset):
    """All examples of a run in the order of PretrainingTrainer, for the stock Trainer."""

    def __init__(self, dataset: PretrainingDataset, args: argparse.Namespace):
        self.dataset = dataset
        self.length = args.max_steps * args.per_device_train_batch_size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.dataset.get_example(*divmod(index, len(self.dataset)))


class Recorder(TrainerCallback):
    """Evaluates at regular steps, and writes a log with the training time of each line.

    Args:
        file: the log file.
        batches: batches of the validation text.
        args: arguments of the command line.
        tokens: tokens of each training batch so far, without padding.
    """

    def __init__(self, file: Path, batches: list[Batch], args: argparse.Namespace, tokens: list[int]):
        self.file, self.batches, self.tokens = file, batches, tokens
        self.max_steps, self.eval_steps = args.max_steps, args.eval_steps
        self.seconds, self.started = 0.0, 0.0
        file.write_text("")

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, model: Any = None, **kwargs: Any):
        """Evaluates the untrained model, then starts the clock."""
        self._evaluate(0, model, args)
        self.started = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, model: Any = None, **kwargs: Any):
        """Evaluates at regular steps, with the clock stopped."""
        if state.global_step % self.eval_steps == 0 or state.global_step == self.max_steps:
            self._stop_clock(args.device)
            self._evaluate(state.global_step, model, args)
            self.started = time.perf_counter()

    def on_log(self, args: TrainingArguments, state: Any, control: Any, logs: Any = None, **kwargs: Any):
        """Logs the mean loss since the last line."""
        if "loss" in logs:
            self._stop_clock(args.device)
            self._write(state.global_step, {"loss": float(logs["loss"])})
            self.started = time.perf_counter()

    def _stop_clock(self, device: torch.device) -> None:
        if device.type != "cpu":
            torch.accelerator.synchronize()
        self.seconds += time.perf_counter() - self.started

    def _evaluate(self, step: int, model: Any, args: TrainingArguments) -> None:
        model.eval()
        self._write(step, {f"eval_{name}": value for name, value in evaluate(model, self.batches, args).items()})
        model.train()

    def _write(self, step: int, metrics: dict[str, float]) -> None:
        line = {"step": step, "tokens": sum(self.tokens[:step])}  # a few batches may be prefetched
        with self.file.open("a") as log:
            log.write(json.dumps({**line, "seconds": self.seconds, **metrics}) + "\n")


def evaluate(model: Any, batches: list[Batch], args: TrainingArguments) -> dict[str, float]:
    """Computes losses and accuracies over all labeled tokens and pairs, one batch at a time."""
    sums = torch.zeros(4, dtype=torch.float64)
    tokens = pairs = 0
    for batch in batches:
        batch = {name: value.to(args.device) if torch.is_tensor(value) else value for name, value in batch.items()}
        labels, nsp_labels = batch["labels"], batch["next_sentence_label"]
        is_labeled = labels != IGNORE_INDEX
        # Ours needs the labels for sparse prediction. Stock BERT would compute a loss that is not needed.
        inputs = batch | {"sparse_prediction": True}
        if "attention_mask" in batch:
            inputs = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
        with torch.inference_mode(), torch.autocast(args.device.type, torch.bfloat16, enabled=args.bf16):
            outputs = model(**inputs)
        logits = outputs.prediction_logits
        for index, (scores, targets) in enumerate(
            (
                ((logits[is_labeled] if logits.dim() == 3 else logits).float(), labels[is_labeled]),
                (outputs.seq_relationship_logits.float(), nsp_labels),
            )
        ):
            sums[2 * index] += F.cross_entropy(scores, targets, reduction="sum").item()
            sums[2 * index + 1] += (scores.argmax(-1) == targets).sum().item()
        tokens, pairs = tokens + int(is_labeled.sum()), pairs + len(nsp_labels)
    means = (sums / torch.tensor([tokens, tokens, pairs, pairs])).tolist()
    return dict(zip(MEASURES, means, strict=True))


# --- comparison of both sides ------------------------------------------------------------------------------------


def report(argv: list[str]) -> str:
    """Makes the table and the plot from the logs of both sides.

    Args:
        argv: arguments of the run.

    Returns:
        The table, with versions and command.

    Raises:
        SystemExit: initial weights or examples differ.
    """
    args = parse_arguments(argv)
    files = {side: args.output_dir / f"{side}.jsonl" for side in SIDES}
    logs = {side: [json.loads(line) for line in file.read_text().splitlines()] for side, file in files.items()}
    losses = {side: [line for line in log if "loss" in line] for side, log in logs.items()}
    evaluations = {side: [line for line in log if "eval_mlm_loss" in line] for side, log in logs.items()}
    _check_same(losses, evaluations)
    smoothed = {side: _smoothed([line["loss"] for line in lines]) for side, lines in losses.items()}
    difference = max(abs(a - b) for a, b in zip(*smoothed.values(), strict=True))
    last = {side: lines[-1] for side, lines in evaluations.items()}
    seconds = {side: line["seconds"] for side, line in last.items()}
    then = _interpolate(evaluations["stock"], seconds["ours"])
    rows = [
        ("steps", *(f"{last[side]['step']:,}" for side in SIDES), ""),
        ("minutes of training", *(f"{seconds[side] / 60:.1f}" for side in SIDES), f"{seconds['ours'] / 60:.1f}"),
        ("tokens per second", *(f"{last[side]['tokens'] / seconds[side]:,.0f}" for side in SIDES), ""),
        *(
            (
                description,
                *(f"{last[side][f'eval_{name}']:{form}}" for side in SIDES),
                f"{then[f'eval_{name}']:{form}}",
            )
            for name, (description, form) in MEASURES.items()
        ),
    ]
    header = ("on the validation text", "SnugBERT", "stock BERT", "stock BERT when SnugBERT is done")
    text = "\n".join(
        [
            describe_run(__file__, argv, describe_machine(choose_device(args.use_cpu))),
            format_table(header, rows),
            "",
            f"Stock's time / ours: {seconds['stock'] / seconds['ours']:.2f}. Largest difference of the training "
            f"losses, averaged over {SMOOTHED_SHARE:.0%} of the run: {difference:.3f} nats.",
            "",
        ]
    )
    (args.output_dir / "pretraining_run.md").write_text(text)
    draw(losses, smoothed, evaluations, args.output_dir / "pretraining_run.png")
    return text


def _check_same(losses: dict[str, list[Batch]], evaluations: dict[str, list[Batch]]) -> None:
    for what, lines in (("losses", losses), ("evaluations", evaluations)):
        steps = {side: [(line["step"], line["tokens"]) for line in lines[side]] for side in SIDES}
        if steps["ours"] != steps["stock"]:
            raise SystemExit(f"error: the {what} of the two sides belong to different steps or examples.")
    start = [evaluations[side][0]["eval_mlm_loss"] for side in SIDES]
    if not abs(start[0] - start[1]) <= SAME_START:
        raise SystemExit(f"error: initial losses differ: {start[0]:.3f} and {start[1]:.3f}.")


def _smoothed(values: list[float]) -> list[float]:
    """Computes moving averages, over fewer values at the ends."""
    reach = round(len(values) * SMOOTHED_SHARE / 2)
    windows = (values[max(index - reach, 0) : index + reach + 1] for index in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def _interpolate(lines: list[Batch], seconds: float) -> Batch:
    """Interpolates metrics at a time between evaluations."""
    for before, after in pairwise(lines):
        if before["seconds"] <= seconds <= after["seconds"]:
            share = (seconds - before["seconds"]) / (after["seconds"] - before["seconds"])
            return {name: before[name] + share * (after[name] - before[name]) for name in before}
    return lines[-1]  # stock BERT finished first


def draw(
    losses: dict[str, list[Batch]],
    smoothed: dict[str, list[float]],
    evaluations: dict[str, list[Batch]],
    file: Path,
) -> None:
    """Plots training and validation loss over steps and over minutes."""
    figure = new_figure(12.5, 4.8)
    over_steps, over_minutes = figure.subplots(1, 2)
    for side, line_style in (("stock", "-"), ("ours", "--")):  # drawn on top of each other, so both must be visible
        color, width = COLORS[side], 3.2 if side == "stock" else 1.6
        steps = [line["step"] for line in losses[side]]
        minutes = [line["seconds"] / 60 for line in losses[side]]
        style = {"color": color, "linewidth": width, "linestyle": line_style, "label": NAMES[side]}
        over_steps.plot(steps, smoothed[side], **style)
        over_minutes.plot(minutes, smoothed[side], **(style | {"linestyle": "-", "linewidth": 1.8}))
    for panel, unit, scale, label in (
        (over_steps, "step", 1, "steps"),
        (over_minutes, "seconds", 60, "minutes of training"),
    ):
        for side, marker in (("stock", "o"), ("ours", "x")):
            panel.plot(
                [line[unit] / scale for line in evaluations[side][1:]],
                [line["eval_mlm_loss"] + line["eval_nsp_loss"] for line in evaluations[side][1:]],
                color=COLORS[side],
                marker=marker,
                markersize=7 if side == "stock" else 6,
                markerfacecolor="none",
                linestyle="",
                label=f"{NAMES[side]}, validation",
            )
        panel.set_xlabel(label)
        panel.set_ylabel("masked token + next sentence loss, nats")
        panel.set_xlim(left=0)
        panel.legend(frameon=False)
        tidy(panel)
    over_steps.set_title("The same steps", loc="left", fontweight="bold")
    over_minutes.set_title("The same time", loc="left", fontweight="bold")
    figure.savefig(file)


def main(argv: list[str]) -> None:
    """Runs one or both sides, and prints the table."""
    args = parse_arguments(argv)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    if args.side != "both":
        try:
            run_side(args.side, args)
        except InputError as error:
            raise SystemExit(f"error: {error}") from error
    else:
        for side in SIDES:
            subprocess.run([sys.executable, __file__, *argv, "--side", side], check=True)
        print(report(argv))


if __name__ == "__main__":
    main(sys.argv[1:])
