r"""A pretraining run of SnugBERT beside stock `BertForPreTraining` under transformers' own Trainer.

    python benchmarks/pretraining_run.py --train_file 'books/train-*.txt.gz' \
        --validation_file books/validation.txt.gz --tokenizer_name tok --config_name mini --max_steps 2000 \
        --learning_rate 1e-3 --output_dir run

Both sides start from the same weights and see the same examples, masks included, in the same order, with the same
optimizer, schedule, batch, precision and dropout. SnugBERT gets them packed, stock BERT padded to the longest of its
batch. They run one after the other, a process each. At regular steps both are evaluated on all of the validation text;
the clock stands still meanwhile. What a side writes down is `ours.jsonl` and `stock.jsonl` in the output folder, and
from these come `pretraining_run.md` and `pretraining_run.png`, with `--report` once more.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from side_by_side import SIDES, machine_of, padded, positive
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

from snugbert.configuration_snugbert import SIZES
from snugbert.errors import InputError
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.models import ModelArguments, load_config, load_model, load_tokenizer
from snugbert.trainers.pretraining.arguments import PretrainingArguments
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.examples import PretrainingDataset
from snugbert.trainers.pretraining.preparation import prepare_corpus
from snugbert.trainers.pretraining.trainer import PretrainingTrainer

NAMES = {"ours": "SnugBERT", "stock": "stock BERT"}
COLORS = {"ours": "#d9480f", "stock": "#2b6cb0"}
MEASURES = {
    "mlm_loss": ("masked token loss, nats", ".3f"),
    "mlm_accuracy": ("masked token accuracy", ".1%"),
    "nsp_loss": ("next sentence loss, nats", ".3f"),
    "nsp_accuracy": ("next sentence accuracy", ".1%"),
}
SAME_START = 2e-2  # largest difference of the losses before the first step; bfloat16 rounds at other places
SMOOTHED_SHARE = 0.05  # of the log's lines go into a point of the smoothed curves

Batch = dict[str, Any]


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The arguments of the command line; those of `snugbert pretrain` by the same names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", help="documents, as for `snugbert pretrain`")
    parser.add_argument("--validation_file", nargs="+", help="likewise")
    parser.add_argument("--tokenizer_name", help="a folder")
    parser.add_argument("--config_name", default="mini", help=f"{', '.join(SIZES)}, a folder or a JSON file")
    parser.add_argument("--config_overrides", help="fields of the configuration, such as hidden_dropout_prob=0")
    parser.add_argument("--max_seq_length", type=positive, default=128)
    parser.add_argument("--mlm_probability", type=float, default=0.15)
    parser.add_argument("--max_steps", type=positive, default=1000)
    parser.add_argument("--per_device_train_batch_size", type=positive, default=32)
    parser.add_argument("--per_device_eval_batch_size", type=positive, default=32)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--warmup_steps", type=float, default=0.01, help="below 1: a share of all steps")
    parser.add_argument("--adam_beta2", type=float, default=0.999)
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast on both sides")
    parser.add_argument("--use_cpu", action="store_true")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--logging_steps", type=positive, default=10)
    parser.add_argument("--eval_steps", type=positive, default=100)
    parser.add_argument("--max_eval_samples", type=positive, help="evaluate on so many pairs at most")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--side", choices=(*SIDES, "both"), default="both", help="run one side only")
    parser.add_argument("--report", action="store_true", help="run nothing; write table and picture of the logs again")
    args = parser.parse_args(argv)
    if not args.report and not (args.train_file and args.validation_file and args.tokenizer_name):
        parser.error("--train_file, --validation_file and --tokenizer_name are needed")
    return args


# --- a side -----------------------------------------------------------------------------------------------------


def run_side(side: str, args: argparse.Namespace) -> None:
    """Trains one side from the first step to the last; its log is `<side>.jsonl`."""
    model_args = ModelArguments(
        config_name=args.config_name, config_overrides=args.config_overrides, tokenizer_name=args.tokenizer_name
    )
    tokenizer = load_tokenizer(model_args)
    pack = SnugBertDataCollatorForPretraining(tokenizer, mlm_probability=args.mlm_probability)
    training_examples = examples_of("train", args.train_file, side, tokenizer, args, args.seed)
    validation_examples = examples_of("validation", args.validation_file, side, tokenizer, args, seed=0)
    validation_pairs = min(len(validation_examples), args.max_eval_samples or len(validation_examples))
    tokens_of_batches: list[int] = []

    def collate(examples: list[Batch]) -> Batch:
        batch = pack(examples)
        tokens_of_batches.append(batch["input_ids"].numel())
        return batch if side == "ours" else padded(batch, tokenizer.pad_token_id)

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
        batches = [padded(batch, tokenizer.pad_token_id) for batch in batches]
    recorder = Recorder(args.output_dir / f"{side}.jsonl", batches, args, tokens_of_batches)
    trainer = trainer_class(
        model=model,
        args=training_args,
        train_dataset=training_examples if side == "ours" else AllEpochs(training_examples, args),
        data_collator=collate,
        processing_class=tokenizer,
        callbacks=[recorder],
    )
    trainer.train()


def examples_of(
    name: str, files: list[str], side: str, tokenizer: Any, args: argparse.Namespace, seed: int
) -> PretrainingDataset:
    """The sentence pairs of text; the text is prepared by whichever side runs first."""
    return PretrainingDataset(
        prepare_corpus(files, tokenizer, args.output_dir / name, show_progress=False),
        tokenizer,
        max_seq_length=args.max_seq_length,
        seed=seed,
        epochs_dir=args.output_dir / f"{name}-{side}",  # not shared: each side makes its own pairs, in its own time
    )


class AllEpochs(torch.utils.data.Dataset):
    """The examples of a whole run, in the order in which PretrainingTrainer takes them, for the stock Trainer."""

    def __init__(self, dataset: PretrainingDataset, args: argparse.Namespace):
        self.dataset = dataset
        self.length = args.max_steps * args.per_device_train_batch_size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.dataset.get_example(*divmod(index, len(self.dataset)))


class Recorder(TrainerCallback):
    """Evaluates at regular steps and writes the log, with the seconds of training that a line comes after.

    Args:
        file: of the log.
        batches: of the validation text.
        args: of the command line.
        tokens_of_batches: word pieces of the training batches made so far, padding not counted.
    """

    def __init__(self, file: Path, batches: list[Batch], args: argparse.Namespace, tokens_of_batches: list[int]):
        self.file, self.batches, self.tokens_of_batches = file, batches, tokens_of_batches
        self.max_steps, self.eval_steps = args.max_steps, args.eval_steps
        self.seconds, self.started = 0.0, 0.0
        file.write_text("")

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, model: Any = None, **kwargs: Any):
        """Evaluates the untrained model, then starts the clock."""
        self._evaluate(0, model, args)
        self.started = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, model: Any = None, **kwargs: Any):
        """Evaluates where it is time to, with the clock stopped."""
        if state.global_step % self.eval_steps == 0 or state.global_step == self.max_steps:
            self._stop_clock(args.device)
            self._evaluate(state.global_step, model, args)
            self.started = time.perf_counter()

    def on_log(self, args: TrainingArguments, state: Any, control: Any, logs: Any = None, **kwargs: Any):
        """Notes the mean loss since the last line."""
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

    def _write(self, step: int, figures: dict[str, float]) -> None:
        tokens = sum(self.tokens_of_batches[:step])  # a batch or two may have been made ahead
        with self.file.open("a") as log:
            log.write(json.dumps({"step": step, "tokens": tokens, "seconds": self.seconds, **figures}) + "\n")


def evaluate(model: Any, batches: list[Batch], args: TrainingArguments) -> dict[str, float]:
    """Losses and accuracies over all labelled tokens and all pairs; only one batch's logits are in memory."""
    sums = torch.zeros(4, dtype=torch.float64)
    tokens = pairs = 0
    for batch in batches:
        batch = {name: value.to(args.device) if torch.is_tensor(value) else value for name, value in batch.items()}
        labels, nsp_labels = batch["labels"], batch["next_sentence_label"]
        labelled = labels != IGNORE_INDEX
        # Ours takes the labels to know where they are; stock BERT would only compute a loss on everything.
        inputs = batch | {"sparse_prediction": True}
        if "attention_mask" in batch:
            inputs = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
        with torch.inference_mode(), torch.autocast(args.device.type, torch.bfloat16, enabled=args.bf16):
            outputs = model(**inputs)
        logits = outputs.prediction_logits
        for place, (scores, targets) in enumerate(
            (
                ((logits[labelled] if logits.dim() == 3 else logits).float(), labels[labelled]),
                (outputs.seq_relationship_logits.float(), nsp_labels),
            )
        ):
            sums[2 * place] += F.cross_entropy(scores, targets, reduction="sum").item()
            sums[2 * place + 1] += (scores.argmax(-1) == targets).sum().item()
        tokens, pairs = tokens + int(labelled.sum()), pairs + len(nsp_labels)
    means = (sums / torch.tensor([tokens, tokens, pairs, pairs])).tolist()
    return dict(zip(MEASURES, means, strict=True))


# --- both sides together ----------------------------------------------------------------------------------------


def report(argv: list[str]) -> str:
    """Writes table and picture from the logs of both sides.

    Args:
        argv: what the run was started with.

    Returns:
        The table, with versions and command.

    Raises:
        SystemExit: a side is missing, or they did not start from the same weights or saw other examples.
    """
    args, logs = parse_arguments(argv), {}
    device = "cuda" if torch.cuda.is_available() and not args.use_cpu else "cpu"
    for side in SIDES:
        file = args.output_dir / f"{side}.jsonl"
        if not file.exists():
            raise SystemExit(f"error: there is no {file}; run both sides first.")
        logs[side] = [json.loads(line) for line in file.read_text().splitlines()]
    losses = {side: [line for line in log if "loss" in line] for side, log in logs.items()}
    evaluations = {side: [line for line in log if "eval_mlm_loss" in line] for side, log in logs.items()}
    _check_same(losses, evaluations)
    smoothed = {side: _smoothed([line["loss"] for line in lines]) for side, lines in losses.items()}
    difference = max(abs(a - b) for a, b in zip(*smoothed.values(), strict=True))
    last = {side: lines[-1] for side, lines in evaluations.items()}
    seconds = {side: line["seconds"] for side, line in last.items()}
    then = _at(evaluations["stock"], seconds["ours"])
    rows = [
        ("steps", *(f"{last[side]['step']:,}" for side in SIDES), ""),
        ("minutes of training", *(f"{seconds[side] / 60:.1f}" for side in SIDES), f"{seconds['ours'] / 60:.1f}"),
        ("word pieces a second", *(f"{last[side]['tokens'] / seconds[side]:,.0f}" for side in SIDES), ""),
        *(
            (
                description,
                *(f"{last[side][f'eval_{name}']:{form}}" for side in SIDES),
                f"{then[f'eval_{name}']:{form}}",
            )
            for name, (description, form) in MEASURES.items()
        ),
    ]
    text = "\n".join(
        [
            ", ".join(f"{name} {value}" for name, value in machine_of(device).items()),
            "",
            f"    python benchmarks/pretraining_run.py {shlex.join(argv)}",
            "",
            "| on the validation text | SnugBERT | stock BERT | stock BERT when SnugBERT is done |",
            "| --- | --- | --- | --- |",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
            f"Stock's time / ours: {seconds['stock'] / seconds['ours']:.2f}. The largest difference of the training "
            f"losses, each the mean of {SMOOTHED_SHARE:.0%} of the run: {difference:.3f} nats.",
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
            raise SystemExit(f"error: the {what} of both sides are not of the same steps and examples.")
    start = [evaluations[side][0]["eval_mlm_loss"] for side in SIDES]
    if not abs(start[0] - start[1]) <= SAME_START:
        raise SystemExit(f"error: the sides start with losses of {start[0]:.3f} and {start[1]:.3f}, not the same.")


def _smoothed(values: list[float]) -> list[float]:
    """Means of the values around each; fewer at the ends."""
    reach = round(len(values) * SMOOTHED_SHARE / 2)
    windows = (values[max(place - reach, 0) : place + reach + 1] for place in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def _at(lines: list[Batch], seconds: float) -> Batch:
    """The figures after so many seconds, on straight lines between evaluations."""
    for before, after in pairwise(lines):
        if before["seconds"] <= seconds <= after["seconds"]:
            share = (seconds - before["seconds"]) / (after["seconds"] - before["seconds"])
            return {name: before[name] + share * (after[name] - before[name]) for name in before}
    return lines[-1]  # stock was done first


def draw(
    losses: dict[str, list[Batch]],
    smoothed: dict[str, list[float]],
    evaluations: dict[str, list[Batch]],
    file: Path,
) -> None:
    """Training and validation loss over steps, and validation loss over minutes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 4.8), dpi=130, layout="constrained")
    over_steps, over_minutes = figure.subplots(1, 2)
    for side, line_style in (("stock", "-"), ("ours", "--")):  # on each other: both have to be visible
        color, width = COLORS[side], 3.2 if side == "stock" else 1.6
        steps = [line["step"] for line in losses[side]]
        minutes = [line["seconds"] / 60 for line in losses[side]]
        look = {"color": color, "linewidth": width, "linestyle": line_style, "label": NAMES[side]}
        over_steps.plot(steps, smoothed[side], **look)
        over_minutes.plot(minutes, smoothed[side], **(look | {"linestyle": "-", "linewidth": 1.8}))
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
        panel.grid(color="#e4e4e4", linewidth=0.7)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False)
    over_steps.set_title("The same steps", loc="left", fontweight="bold")
    over_minutes.set_title("The same time", loc="left", fontweight="bold")
    figure.savefig(file)


def main(argv: list[str]) -> None:
    """Runs what the arguments ask for and prints the table."""
    args = parse_arguments(argv)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    command = args.output_dir / "command.json"
    if args.report:
        if not command.exists():
            raise SystemExit(f"error: {args.output_dir} holds no run of both sides.")
        print(report(json.loads(command.read_text())))
    elif args.side != "both":
        try:
            run_side(args.side, args)
        except InputError as error:
            raise SystemExit(f"error: {error}") from error
    else:
        command.write_text(json.dumps(argv))
        for side in SIDES:
            subprocess.run([sys.executable, __file__, *argv, "--side", side], check=True)
        print(report(argv))


if __name__ == "__main__":
    main(sys.argv[1:])
