"""Runs all steps of SnugBERT, from text to a fine-tuned model, on the documentation that ships with Python.

`make demo` runs this script. The script writes the docstrings of the standard library to text files, one document per
module. Then it runs the commands that a user would type: `snugbert vocabulary`, `snugbert pretrain` with the recipe
for little text, and `snugbert glue` to classify docstrings by package, once from the pretrained model and once from
random weights. Finally it loads the results with transformers' Auto classes. It downloads nothing and takes 6 minutes
on 2 CPU cores, or 9 beside another busy process.
"""

import ast
import csv
import json
import pydoc_data.topics
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGES = 10  # the classes of the task: the packages with the most docstrings
DOCSTRINGS_OF_A_PACKAGE = {"train": 50, "validation": 40}  # at most; pretraining helps most if labels are few
SHORTEST_DOCSTRING = 40  # characters; shorter ones do not reveal their package
HELD_OUT = 8  # one in 8 docstrings is held out for validation

SIZE = "--config_name tiny --config_overrides hidden_dropout_prob=0,attention_probs_dropout_prob=0"
RECIPE = Path(__file__).with_name("pretrain_small_corpus.yaml")
# Half a million tokens is little text, even for the recipe. So there are many steps, each of 32 short pairs.
PRETRAINING = "--max_steps 3500 --per_device_train_batch_size 32 --max_seq_length 64 --phases 64:100%"
FINE_TUNING = "--per_device_train_batch_size 16 --learning_rate 1e-3 --max_seq_length 64"
# Of the numbers tried, these have the best validation accuracy. Random weights have learned little after 5 epochs.
EPOCHS, EPOCHS_FROM_SCRATCH = 5, 16


def main(folder: Path) -> None:
    """Runs the demo. All output goes into `folder`."""
    start = time.perf_counter()
    for name in ("text", "task", "tokenizer", "pretrained", "classifier", "classifier-from-scratch"):
        shutil.rmtree(folder / name, ignore_errors=True)  # from an earlier demo

    headline("Text: the documentation that ships with this Python")
    write_text_and_task(folder)

    headline("Vocabulary")
    snugbert(f"vocabulary --train_file {folder}/text/train.txt --vocab_size 4096 --output_dir {folder}/tokenizer")

    headline("Pretraining: masked tokens and next sentences")
    snugbert(
        f"pretrain --config {RECIPE} --tokenizer_name {folder}/tokenizer {SIZE} --train_file {folder}/text/train.txt "
        f"--validation_file {folder}/text/validation.txt {PRETRAINING} --save_strategy no --eval_strategy no "
        f"--output_dir {folder}/pretrained"
    )

    task = f"--train_file {folder}/task/train.csv --validation_file {folder}/task/validation.csv"
    headline("Fine-tuning: which package is this docstring from?")
    snugbert(
        f"glue --model_name_or_path {folder}/pretrained {task} {FINE_TUNING} --num_train_epochs {EPOCHS} "
        f"--save_strategy no --output_dir {folder}/classifier"
    )

    headline("The same task without pretraining")
    snugbert(
        f"glue --tokenizer_name {folder}/tokenizer {SIZE} {task} {FINE_TUNING} "
        f"--num_train_epochs {EPOCHS_FROM_SCRATCH} --save_strategy no --output_dir {folder}/classifier-from-scratch"
    )

    headline("The models with transformers' Auto classes")
    show_models(folder)

    headline(f"Done in {(time.perf_counter() - start) / 60:.1f} minutes")
    show_summary(folder)


def headline(text: str) -> None:
    """Prints a headline."""
    print(f"\n=== {text} ===\n", flush=True)


def snugbert(arguments: str) -> None:
    """Prints and runs a `snugbert` command. If it fails, ends the demo with its exit status."""
    print(f"$ snugbert {arguments}\n", flush=True)
    status = subprocess.run([sys.executable, "-m", "snugbert", *shlex.split(arguments)]).returncode
    if status:
        sys.exit(status)


def docstrings(library: Path) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yields path and docstrings of each module in the standard library, without tests and installed packages."""
    for file in sorted(library.rglob("*.py")):
        path = file.relative_to(library).with_suffix("").parts
        if {"site-packages", "dist-packages", "test", "tests", "idle_test"} & set(path):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about invalid escapes in strings
                tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        texts = [text for node in ast.walk(tree) if isinstance(node, kinds) and (text := ast.get_docstring(node))]
        if texts:
            yield path, texts


def paragraphs(text: str) -> list[str]:
    """Returns the paragraphs of a text, each on one line."""
    return [" ".join(block.split()) for block in text.split("\n\n") if block.strip()]


def write_text_and_task(folder: Path) -> None:
    """Writes text/{train,validation}.txt for pretraining and task/{train,validation}.csv for classification."""
    documents: dict[str, list[list[str]]] = {"train": [], "validation": []}
    examples: dict[str, list[tuple[str, str]]] = {"train": [], "validation": []}
    seen: set[str] = set()  # a docstring that occurs twice must not be in both splits
    for path, texts in docstrings(Path(sysconfig.get_path("stdlib"))):
        document: dict[str, list[str]] = {"train": [], "validation": []}
        for text in texts:
            if text in seen:
                continue
            seen.add(text)
            split = "train" if len(seen) % HELD_OUT else "validation"
            document[split] += paragraphs(text)
            if len(path) > 1 and len(text) >= SHORTEST_DOCSTRING:
                examples[split].append((" ".join(text.split()), path[0]))
        for split, lines in document.items():
            documents[split].append(lines)
    documents["train"] += [paragraphs(text) for text in pydoc_data.topics.topics.values()]

    frequent = Counter(package for _, package in examples["train"]).most_common(PACKAGES)
    chosen = {package for package, _ in frequent}
    (folder / "text").mkdir(parents=True)
    (folder / "task").mkdir()
    for split in ("train", "validation"):
        text = "\n\n".join("\n".join(lines) for lines in documents[split] if lines)
        (folder / f"text/{split}.txt").write_text(text + "\n", encoding="utf-8")
        taken: Counter[str] = Counter()
        with (folder / f"task/{split}.csv").open("w", encoding="utf-8", newline="") as stream:
            table = csv.writer(stream)
            table.writerow(("sentence", "label"))
            for sentence, package in examples[split]:
                if package in chosen and taken[package] < DOCSTRINGS_OF_A_PACKAGE[split]:
                    taken[package] += 1
                    table.writerow((sentence, package))
        print(
            f"{split:<10}  {len(text) / 1e6:.2f} million characters in {len(documents[split])} documents; "
            f"{taken.total()} docstrings of {', '.join(sorted(taken))}"
        )


def show_models(folder: Path) -> None:
    """Fills masks with the pretrained model and classifies held-out docstrings with the fine-tuned one."""
    print("Loading ...\n", flush=True)
    from transformers import AutoModelForMaskedLM, AutoTokenizer, logging, pipeline

    import snugbert  # registers SnugBERT with the Auto classes

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder / "pretrained")
    model = AutoModelForMaskedLM.from_pretrained(folder / "pretrained")
    assert isinstance(model, snugbert.SnugBertForMaskedLM)
    fill_mask = pipeline("fill-mask", model=model, tokenizer=tokenizer)
    for text in (
        "Return True if the object [MASK] a string.",
        "Raise ValueError if the [MASK] is not found.",
        "Read up to n bytes from the [MASK].",
    ):
        guesses = ", ".join(f"{guess['token_str']} {guess['score']:.0%}" for guess in fill_mask(text, top_k=4))
        print(f"  {text}\n    [MASK] = {guesses}")

    classify = pipeline("text-classification", model=str(folder / "classifier"), truncation=True)
    with (folder / "task/validation.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    print()
    for row in rows[:: len(rows) // 5][:5]:
        guess = classify(row["sentence"])[0]
        verdict = "right" if guess["label"] == row["label"] else f"wrong: {row['label']}"
        print(f"  {row['sentence'][:90]}\n    {guess['label']} {guess['score']:.0%} ({verdict})")


def show_summary(folder: Path) -> None:
    """Prints the metrics, the output folders, and the next commands."""

    def results(name: str) -> dict[str, float]:
        return json.loads((folder / name / "eval_results.json").read_text())

    pretrained, classifier = results("pretrained"), results("classifier")
    by_frequency = pretrained["eval_unigram_mlm_accuracy"]
    from_scratch = results("classifier-from-scratch")["eval_accuracy"]
    for task, metric, baseline in (
        ("masked tokens", pretrained["eval_mlm_accuracy"], f"{by_frequency:.1%} by frequency"),
        ("next or random sentence", pretrained["eval_nsp_accuracy"], "50.0% by chance"),
        ("packages", classifier["eval_accuracy"], f"{from_scratch:.1%} without pretraining"),
    ):
        print(f"  {task:<26}{metric:>7.1%} accuracy   ({baseline})")
    print(
        f"""
  {folder}/text, task            the text and the classification task
  {folder}/tokenizer             the vocabulary: vocab.txt, tokenizer.json
  {folder}/pretrained            the pretrained model; for any AutoModel class
  {folder}/classifier            the fine-tuned model
  .../eval_results.json          the metrics above

Next, the same on your own text (one paragraph per line, a blank line between documents). The recipe reads
corpus/*.txt.gz, and validation.txt.gz for the scores:

  source .venv/bin/activate
  snugbert vocabulary --train_file 'corpus/*.txt.gz' --vocab_size 8192 --output_dir tokenizer
  snugbert pretrain --config {RECIPE} --output_dir pretrained
  snugbert glue --model_name_or_path pretrained --train_file train.csv --validation_file dev.csv \\
      --output_dir classifier
"""
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output"))
