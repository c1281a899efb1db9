r"""Compares ways to train a classifier from few labels: scores, their spread over seeds, and collapsed runs.

    python benchmarks/few_labels.py --model_name_or_path minilm --data_dir data --bf16 --output_dir few

Methods (`METHODS`):

- `default`: `snugbert glue` with its defaults
- `stable`: `snugbert glue --sweep stable`
- `reinit`: the same with `--reinit_layers`, by default 2
- `embeddings`: scikit-learn's logistic regression on the checkpoint's mean embeddings, normalized. The checkpoint is
  not fine-tuned. A pair (u, v) has the features u, v, |u - v| and u * v, as in Conneau et al. (2017), "InferSent",
  section 3.1.
- `setfit`: the package setfit with its defaults, except for 20 pairs of each kind per label, as in Tunstall et al.
  (2022), "Efficient Few-Shot Learning Without Prompts". It trains in float32.

Tasks (`TASKS`):

- CoLA, MRPC and RTE with all training examples. `reinit` and `setfit` do not run on these.
- 16, 64 and 256 labels of SST-2 and of `articles`: which of ten Wikipedia articles is a question about? They are the
  ten articles with the most questions in the dev set of SQuAD v1.1. Every second paragraph of an article is for
  testing, with at most 150 questions per article. Questions that also occur in a training paragraph are removed.

The numbers of labels are totals: 16 labels of ten classes are one or two of each. Every seed draws its own labels,
evenly over the classes, and all methods get the same ones. Scores are on the dev sets and on the test questions.

A step trains a method on a task: with all seeds, such as few/default/cola, or with one seed if each has its own
labels, such as few/default/sst2-16/42. `results.json` in its folder marks it as finished. The same command continues
after an interruption, and skips finished steps. `--only` selects steps, such as 'embeddings/*' and '*/sst2-16/*'.
`--report` prints the table of the finished steps. Compare minutes only if nothing else ran on the machine.
"""

import argparse
import gzip
import json
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from pretraining_ladder import as_flags
from side_by_side import describe_machine, positive
from sklearn.linear_model import LogisticRegression
from steps import check_settings, format_seeds, format_table, run_snugbert
from transformers import AutoModel, AutoTokenizer

import snugbert
from snugbert.data.glue import TASKS as GLUE_TASKS
from snugbert.errors import InputError
from snugbert.files import write_atomically
from snugbert.tasks.classification import TextClassification

FIRST_SEED = 42  # the default of --seed
MAX_LENGTH = 128  # tokens of a text, as in `snugbert glue`
BATCH_SIZE = 64  # texts to embed at once
TEST_QUESTIONS = 150  # of an article, at most
SETFIT_ITERATIONS = 20
# Scores can be compared only if these arguments are equal.
SETTINGS = ("model_name_or_path", "data_dir", "reinit_layers", "max_train_samples", "max_eval_samples", "bf16")


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        title: name in the table.
        source: a task of GLUE or "articles".
        metric: the command's main metric, a share.
        labels: number of labels that each seed draws. None: all training examples.
    """

    title: str
    source: str
    metric: str = "accuracy"
    labels: int | None = None


class Examples(NamedTuple):
    """Texts, each of one or two parts, and their labels."""

    texts: list[tuple[str, ...]]
    labels: list[str]

    def select(self, indices: list[int]) -> "Examples":
        """Returns some of the examples."""
        return Examples([self.texts[i] for i in indices], [self.labels[i] for i in indices])


TASKS = {
    **{f"sst2-{count}": Task(f"SST-2, {count} labels", "sst2", labels=count) for count in (16, 64, 256)},
    **{f"articles-{count}": Task(f"Articles, {count} labels", "articles", labels=count) for count in (16, 64, 256)},
    "rte": Task("RTE", "rte"),
    "mrpc": Task("MRPC, F1", "mrpc", "f1"),
    "cola": Task("CoLA, Matthews", "cola", "matthews_correlation"),
}
METHODS = {
    "embeddings": "logistic regression on embeddings",
    "default": "default",
    "stable": "--sweep stable",
    "reinit": "--sweep stable --reinit_layers",
    "setfit": "SetFit",
}
COMMANDS = ("default", "stable", "reinit")  # methods that run `snugbert glue`
FEW_LABELS = ("reinit", "setfit")  # methods that run only on tasks with few labels


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", help="folder of a BERT checkpoint")
    parser.add_argument("--data_dir", help="folder with glue/ and squad/")
    parser.add_argument("--seeds", type=positive, default=5, help="number of seeds, from 42 on; default: 5")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="steps, such as 'stable/cola'")
    parser.add_argument("--reinit_layers", type=positive, default=2, help="for the method reinit; default: 2")
    parser.add_argument("--max_train_samples", type=positive, help="all tasks: train on the first examples only")
    parser.add_argument("--max_eval_samples", type=positive, help="score the first examples only")
    parser.add_argument("--bf16", action="store_true", help="`snugbert glue` trains in bfloat16")
    parser.add_argument("--threads", type=positive, help="threads of each process; default: one per core")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--report", action="store_true", help="only print the table of the finished steps")
    args = parser.parse_args(argv)
    missing = [f"--{name}" for name in ("model_name_or_path", "data_dir") if getattr(args, name) is None]
    if missing and not args.report:
        parser.error(f"{', '.join(missing)} missing. Give them, or --report.")
    return args


# --- examples ---------------------------------------------------------------------------------------------------


@cache
def read_examples(source: str, data_dir: str) -> tuple[Examples, Examples]:
    """Returns the training examples and the examples to score of a task of GLUE or of the articles."""
    if source == "articles":
        return read_articles(Path(data_dir) / "squad/dev-v1.1.jsonl.gz")
    classification = TextClassification(task_name=source, data_dir=f"{data_dir}/glue")
    splits = classification.read_splits(classification.find_sources(("train", "validation")))
    train, test = (
        Examples(list(zip(*splits[name].texts, strict=True)), splits[name].labels) for name in ("train", "validation")
    )
    return train, test


def read_articles(file: Path) -> tuple[Examples, Examples]:
    """Returns questions of SQuAD with the titles of their articles as labels, to train on and to score."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    paragraphs: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        paragraphs[row["title"]][row["context"]].append(row["question"])
    parts: list[list[tuple[str, str]]] = [[], []]
    for title, _ in Counter(row["title"] for row in rows).most_common(10):
        questions: list[list[str]] = [[], []]
        for place, of_paragraph in enumerate(paragraphs[title].values()):
            questions[place % 2] += of_paragraph
        new = [question for question in dict.fromkeys(questions[1]) if question not in questions[0]]
        random.Random(0).shuffle(new)
        parts[0] += [(question, title) for question in questions[0]]
        parts[1] += [(question, title) for question in new[:TEST_QUESTIONS]]
    random.Random(0).shuffle(parts[1])  # the first ones are of all articles
    train, test = (Examples([(text,) for text, _ in part], [title for _, title in part]) for part in parts)
    return train, test


def draw_labels(examples: Examples, number: int, seed: int) -> Examples:
    """Draws labeled examples evenly over the classes: each gets one in turn, in random order."""
    generator = np.random.default_rng(seed)
    classes = generator.permutation(sorted(set(examples.labels)))
    of_class: dict[str, list[int]] = defaultdict(list)
    for index in generator.permutation(len(examples.labels)).tolist():
        of_class[examples.labels[index]].append(index)
    return examples.select([of_class[classes[i % len(classes)]][i // len(classes)] for i in range(number)])


def prepare_examples(task: Task, seed: int, args: argparse.Namespace) -> tuple[Examples, Examples]:
    """Returns the examples that a seed trains on, and the examples to score."""
    train, test = read_examples(task.source, args.data_dir)
    if task.labels is not None:
        train = draw_labels(train, task.labels, seed)
    train, test = (
        examples.select(list(range(min(limit or len(examples.labels), len(examples.labels)))))
        for examples, limit in ((train, args.max_train_samples), (test, args.max_eval_samples))
    )
    return train, test


def write_examples(file: Path, examples: Examples) -> None:
    """Writes examples with one part as JSON lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = zip(examples.texts, examples.labels, strict=True)
    lines = [json.dumps({"sentence": text, "label": label}, ensure_ascii=False) + "\n" for (text,), label in rows]
    file.write_text("".join(lines), encoding="utf-8")


# --- steps ------------------------------------------------------------------------------------------------------


def list_steps(args: argparse.Namespace) -> Iterator[tuple[str, str, int | None]]:
    """Yields method, task and seed of the selected steps. Without a seed, the step is for all seeds."""
    for name, task in TASKS.items():
        for method in METHODS:
            if task.labels is None and method in FEW_LABELS:
                continue
            seeds = [None] if task.labels is None else range(FIRST_SEED, FIRST_SEED + args.seeds)
            for seed in seeds:
                if any(fnmatch(step_folder(method, name, seed).as_posix(), pattern) for pattern in args.only):
                    yield method, name, seed


def step_folder(method: str, task: str, seed: int | None) -> Path:
    """Returns the folder of a step in the output folder."""
    return Path(method, task, *([] if seed is None else [str(seed)]))


def run_steps(args: argparse.Namespace) -> None:
    """Runs the selected steps that are not finished.

    Raises:
        SystemExit: a step failed or was stopped.
    """
    for method, task, seed in list_steps(args):
        name = step_folder(method, task, seed)
        folder = args.output_dir / name
        if is_finished(folder, method, seed, args):
            continue
        start = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        if method in COMMANDS:
            run_command(method, task, seed, folder, args)
        else:
            score = train_on_embeddings if method == "embeddings" else train_setfit
            write_atomically(folder / "results.json", json.dumps(score(TASKS[task], seed or FIRST_SEED, args)))
        print(f"{name}: finished after {(time.monotonic() - start) / 60:.1f} minutes", file=sys.stderr, flush=True)


def is_finished(folder: Path, method: str, seed: int | None, args: argparse.Namespace) -> bool:
    """Whether a step is finished. A step for all seeds is not, if there are more seeds than before."""
    file = folder / "results.json"
    if not file.exists() or seed is not None or method not in COMMANDS:
        return file.exists()
    result = json.loads(file.read_text())
    return args.seeds <= (result["diverged"] if "diverged" in result else len(list(folder.glob("runs/*"))))


def run_command(method: str, name: str, seed: int | None, folder: Path, args: argparse.Namespace) -> None:
    """Runs `snugbert glue`, with its output in `log.txt`. It continues an interrupted sweep."""
    task = TASKS[name]
    settings: dict[str, Any] = {"model_name_or_path": args.model_name_or_path}
    if seed is None:
        settings |= {"task_name": task.source, "data_dir": f"{args.data_dir}/glue"}
        settings |= {"seeds": args.seeds, "sweep": "fixed"}
    else:
        files = {"train_file": folder / "train.jsonl", "validation_file": args.output_dir / f"{task.source}.jsonl"}
        for file, examples in zip(files.values(), prepare_examples(task, seed, args), strict=True):
            write_examples(file, examples)
        settings |= files | {"seed": seed, "seeds": 1, "sweep": "fixed"}
    if method != "default":
        settings["sweep"] = "stable"
    if method == "reinit":
        settings["reinit_layers"] = args.reinit_layers
    limits = ("max_train_samples", "max_eval_samples")
    settings |= {limit: getattr(args, limit) for limit in limits if getattr(args, limit)}
    settings |= {"bf16": args.bf16, "use_cpu": True, "output_dir": folder, "eval_strategy": "no"}
    try:
        run_snugbert(["glue", *as_flags(settings)], folder / "log.txt")
    except SystemExit as error:
        was_stopped = isinstance(error.code, int)  # see `run_logged`
        if was_stopped or not write_divergence(folder, task, seed, args):
            raise
    for weights in folder.glob("*.safetensors"):  # 90 models would fill a disk
        weights.unlink()


def write_divergence(folder: Path, task: Task, seed: int | None, args: argparse.Namespace) -> bool:
    """Writes a result without a score if all runs of a step diverged. Returns whether they did."""
    runs = [json.loads(file.read_text()) for file in folder.glob("runs/*/results.json")]
    if len(runs) < (args.seeds if seed is None else 1) or not all("failure" in run for run in runs):
        return False
    _, test = prepare_examples(task, seed or FIRST_SEED, args)
    most_frequent = Counter(test.labels).most_common(1)[0][0]
    baseline = score_labels(task, [most_frequent] * len(test.labels), test)["score"]
    result = {"diverged": len(runs), "baseline": baseline}
    write_atomically(folder / "results.json", json.dumps(result))
    return True


def train_on_embeddings(task: Task, seed: int, args: argparse.Namespace) -> dict[str, float]:
    """Fits logistic regression on embeddings. Returns score, baseline and seconds of embedding and fitting."""
    train, test = prepare_examples(task, seed, args)
    start = time.monotonic()
    features = make_features(train, args.model_name_or_path)
    classifier = LogisticRegression(max_iter=1000).fit(features, train.labels)
    seconds = time.monotonic() - start
    return {
        **score_labels(task, classifier.predict(make_features(test, args.model_name_or_path)), test),
        "seconds": seconds,
    }


def make_features(examples: Examples, model_name: str) -> np.ndarray:
    """Returns the embeddings of texts, or the four features of pairs. *Shape:* (examples, features)"""
    parts = [embed(part, model_name) for part in zip(*examples.texts, strict=True)]
    if len(parts) == 1:
        return parts[0]
    u, v = parts
    return np.hstack((u, v, np.abs(u - v), u * v))


@cache
def embed(texts: tuple[str, ...], model_name: str) -> np.ndarray:
    """Returns the mean of the last hidden states of each text, with length 1. *Shape:* (texts, hidden size)"""
    model, tokenizer = load_encoder(model_name)
    collate = snugbert.SnugBertDataCollatorWithPacking()
    rows = []
    for start in range(0, len(texts), BATCH_SIZE):
        encoded = tokenizer(list(texts[start : start + BATCH_SIZE]), truncation=True, max_length=MAX_LENGTH)
        batch = collate([dict(zip(encoded, values, strict=True)) for values in zip(*encoded.values(), strict=True)])
        lengths = batch["cu_seq_lens_q"].diff().tolist()
        with torch.inference_mode():
            states = model(**batch).last_hidden_state[0]
        rows += [tokens.mean(0) for tokens in states.split(lengths)]
    return torch.nn.functional.normalize(torch.stack(rows)).numpy()


@cache
def load_encoder(model_name: str) -> tuple[Any, Any]:
    """Loads SnugBERT's encoder and the tokenizer of a checkpoint."""
    config = snugbert.SnugBertConfig.from_pretrained(model_name)
    return AutoModel.from_pretrained(model_name, config=config).eval(), AutoTokenizer.from_pretrained(model_name)


def train_setfit(task: Task, seed: int, args: argparse.Namespace) -> dict[str, float]:
    """Trains SetFit. Returns score, baseline and seconds of training.

    Raises:
        SystemExit: setfit is not installed.
    """
    try:
        import setfit
    except ImportError as error:
        raise SystemExit("error: the method setfit needs `pip install setfit`. Leave it out with --only.") from error
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    train, test = prepare_examples(task, seed, args)
    transformer = modules.Transformer(args.model_name_or_path, max_seq_length=MAX_LENGTH)
    pooling = modules.Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")
    encoder = SentenceTransformer(modules=[transformer, pooling, modules.Normalize()], device="cpu")
    start = time.monotonic()
    model = setfit.SetFitModel(encoder, model_head=LogisticRegression(max_iter=1000))
    training_args = setfit.TrainingArguments(
        output_dir=str(args.output_dir / "setfit" / "checkpoints"),
        num_iterations=SETFIT_ITERATIONS,
        seed=seed,
        report_to="none",
        save_strategy="no",
        show_progress_bar=False,
    )
    data = Dataset.from_dict({"text": [text for (text,) in train.texts], "label": train.labels})
    setfit.Trainer(model=model, args=training_args, train_dataset=data).train()
    seconds = time.monotonic() - start
    predicted = model.predict([text for (text,) in test.texts], show_progress_bar=False)
    return {**score_labels(task, np.asarray(predicted), test), "seconds": seconds}


def score_labels(task: Task, predicted: np.ndarray, examples: Examples) -> dict[str, float]:
    """Returns score and baseline as the command computes them, in percent."""
    labels = (
        list(GLUE_TASKS[task.source].labels) if task.source in GLUE_TASKS else sorted({*examples.labels, *predicted})
    )
    ids = {label: i for i, label in enumerate(labels)}
    classification = TextClassification(task_name=task.source if task.source in GLUE_TASKS else None)
    classification.labels = labels
    split, answers = classification.pair(
        [ids[label] for label in examples.labels], [ids[label] for label in predicted]
    )
    metrics = classification.score(split, classification.measure(split, answers))
    baseline = classification.baseline(split, None).metrics
    return {"score": 100 * metrics[task.metric], "baseline": 100 * baseline[task.metric]}


# --- report -----------------------------------------------------------------------------------------------------


def report(output_dir: Path) -> str:
    """Makes the table of the finished steps.

    Raises:
        SystemExit: no step is finished.
    """
    rows = [
        make_row(task, METHODS[method], runs)
        for name, task in TASKS.items()
        for method in METHODS
        if (runs := read_runs(output_dir / method / name, method, task))
    ]
    if not rows:
        raise SystemExit(f"error: --report: {output_dir} has no finished step.")
    header = ["task", "method", "seeds", "score", "lowest", "collapsed", "baseline", "minutes"]
    machine = json.loads((output_dir / "settings.json").read_text())["machine"]
    return "\n".join(
        [
            ", ".join(f"{name} {value}" for name, value in machine.items()),
            "",
            format_table([header, *rows]),
            "",
            "Scores in percent: mean ± standard deviation over the seeds (95 % interval of the mean, Student's t). A "
            "run has collapsed if it diverged or does not beat the baseline, the most frequent label. A run that "
            "diverged counts with the score of the baseline. Minutes of training per run. SetFit trains stock BERT "
            "in float32.",
        ]
    )


def read_runs(folder: Path, method: str, task: Task) -> list[dict[str, float]]:
    """Returns score, baseline and seconds of each finished run. A run that diverged has the score NaN."""
    files = [folder / "results.json"] if task.labels is None else sorted(folder.glob("*/results.json"))
    results = [json.loads(file.read_text()) for file in files if file.exists()]
    if method not in COMMANDS:
        return results
    runs = []
    for file, result in zip([file for file in files if file.exists()], results, strict=True):
        if "diverged" in result:
            runs += [{"score": float("nan"), "baseline": result["baseline"], "seconds": 0}] * result["diverged"]
            continue
        (setting,) = result["sweep"]["settings"]
        of_runs = [json.loads(run.read_text()) for run in file.parent.glob("runs/*/results.json")]
        seconds = mean(run["training"]["train_runtime"] for run in of_runs if "training" in run)
        scores = [*setting["scores"], *[float("nan")] * len(result["sweep"]["failures"])]
        baseline = 100 * result["baselines"]["eval"][task.metric]
        runs += [{"score": 100 * score, "baseline": baseline, "seconds": seconds} for score in scores]
    return runs


def make_row(task: Task, method: str, runs: list[dict[str, float]]) -> list[str]:
    """Makes a row of the table. A run that diverged counts with the score of the baseline."""
    baseline = runs[0]["baseline"]
    scores = [baseline if np.isnan(run["score"]) else run["score"] for run in runs]
    return [
        task.title,
        method,
        str(len(runs)),
        format_seeds(scores, 1),
        f"{min(scores):.1f}",
        str(sum(not run["score"] > baseline for run in runs)),
        f"{baseline:.1f}",
        f"{mean(run['seconds'] for run in runs) / 60:.1f}",
    ]


def main(argv: list[str]) -> None:
    """Runs the benchmark with the arguments `argv`."""
    args = parse_arguments(argv)
    try:
        if not args.report:
            if args.threads:
                os.environ["OMP_NUM_THREADS"] = str(args.threads)
                torch.set_num_threads(args.threads)
            settings = {name: getattr(args, name) for name in SETTINGS}
            check_settings(args.output_dir, settings | {"machine": describe_machine("cpu")})
            run_steps(args)
    except InputError as error:
        raise SystemExit(f"error: {error}") from error
    print(report(args.output_dir))


if __name__ == "__main__":
    main(sys.argv[1:])
