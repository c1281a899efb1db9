r"""Classification of documents that are longer than the model's limit: four ways to read them.

    python benchmarks/long_documents.py --model_name_or_path minilm --data_dir data --output_dir long

Documents have 900 to 1,100 tokens: paragraphs of English Wikipedia, in their order, and a review at a random place in
the second half. The review is six sentences of SST-2 with the same sentiment, the label. So nothing in the first half
helps. Training documents have paragraphs of `wiki_en/train` and sentences of SST-2's training set, test documents have
paragraphs of `wiki_en/validation` and sentences of the dev set. Only sentences of at least eight words are used.

Every method starts from the same classifier: the first layers of the checkpoint, fine-tuned for an epoch on short
SST-2 sentences that are in no document. Then it trains on the documents, with the same settings. Methods:

- `first`: the first 512 tokens, as `snugbert glue --max_seq_length 512`
- `head_and_tail`: the first 128 and the last 382 tokens and two special tokens, as in Sun et al. (2019), "How to
  Fine-Tune BERT for Text Classification?", section 5.3.1
- `mean`: windows of 256 tokens that share 32, with the mean of their logits, as `snugbert glue --doc_stride 32`
- `attention`: the same windows, with the mean of their pooled [CLS] vectors, weighted by a softmax over the windows of
  a learned linear score, and then the classifier

Every seed draws its own training documents, and all methods get the same ones. The test documents are always the same.
The same command continues after an interruption, and skips finished runs.
"""

import argparse
import gzip
import json
import random
import sys
import zlib
from functools import cache
from pathlib import Path
from statistics import mean

import torch
import transformers
from datasets import Dataset
from side_by_side import describe_machine, positive
from steps import check_settings, format_seeds, format_table
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput

import snugbert
from snugbert import FineTuningArguments, FineTuningTrainer, SnugBertForSequenceClassification, TextClassification
from snugbert.errors import InputError
from snugbert.families.students import make_student
from snugbert.files import write_atomically
from snugbert.tasks.base import Features
from snugbert.tasks.labeled_texts import TextSplit
from snugbert.tasks.windows import make_inputs

FIRST_SEED = 42
SENTENCES = 6  # of a review
LEAST_WORDS = 8  # of a sentence
LENGTHS = (900, 1100)  # tokens of a document, apart from the last paragraph
SHORT_SENTENCES = 16_000  # for the classifier that all methods start from
HEAD, TAIL = 128, 382
WINDOW, STRIDE = 256, 32
METHODS = {
    "first": "first 512 tokens",
    "head_and_tail": "head and tail, 128 + 382 tokens",
    "mean": "windows, mean of logits",
    "attention": "windows, attention pooling",
}
# Scores can be compared only if these arguments are equal.
SETTINGS = ("model_name_or_path", "data_dir", "layers", "documents", "test_documents", "learning_rate")


class HeadAndTail(TextClassification):
    """Reads the first and the last tokens of a text."""

    def encode(self, split: TextSplit) -> Features:
        """Returns one window per text."""
        (texts,) = split.texts
        tokenizer = self.tokenizer
        windows = []
        for ids in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]:
            kept = ids if len(ids) <= HEAD + TAIL else ids[:HEAD] + ids[-TAIL:]
            windows.append(([tokenizer.cls_token_id, *kept, tokenizer.sep_token_id],))
        columns = make_inputs(windows, tokenizer.model_input_names)
        return Features(Dataset.from_dict(columns | {"label": split.references.tolist()}))


class AttentionPooling(SnugBertForSequenceClassification):
    """Weights the pooled vectors of a document's windows by a learned score."""

    def __init__(self, config: snugbert.SnugBertConfig):
        super().__init__(config)
        self.attention = nn.Linear(config.hidden_size, 1)
        self.post_init()

    def forward(
        self, input_ids, token_type_ids=None, labels=None, num_items_in_batch=None, num_windows=None, **kwargs
    ):
        """As in the base class, for packed batches of documents."""
        vectors = self.dropout(self.bert(input_ids, token_type_ids=token_type_ids, **kwargs).pooler_output)
        counts = num_windows.tolist()
        pairs = zip(vectors.split(counts), self.attention(vectors).float().split(counts), strict=True)
        logits = self.classifier(torch.stack([(scores.softmax(0) * rows).sum(0) for rows, scores in pairs]))
        return SequenceClassifierOutput(loss=self._loss(logits, labels, num_items_in_batch, None), logits=logits)


# --- documents --------------------------------------------------------------------------------------------------


def read_sentences(data_dir: Path, train: bool) -> tuple[dict[str, list[str]], list[dict[str, str]]]:
    """Returns sentences for reviews, by label, and labeled short sentences that are in no review."""
    folder = data_dir / "glue/SST-2"
    file = (
        gzip.open(folder / "train.tsv.gz", "rt", encoding="utf-8")
        if train
        else (folder / "dev.tsv").open(encoding="utf-8")
    )
    with file as lines:
        rows = [line.rstrip("\n").rsplit("\t", 1) for line in lines][1:]
    of_label: dict[str, list[str]] = {"0": [], "1": []}
    short = []
    for sentence, label in rows:
        if train and zlib.crc32(sentence.encode()) % 4:
            short.append({"text": sentence.strip(), "label": label})
        elif len(sentence.split()) >= LEAST_WORDS:
            of_label[label].append(sentence.strip())
    return of_label, short


@cache
def read_paragraphs(file: Path, tokenizer) -> tuple[list[str], list[int]]:
    """Returns paragraphs and their numbers of tokens."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        paragraphs = [line.strip() for line in lines if line.strip()]
    ids = tokenizer(paragraphs, add_special_tokens=False, verbose=False)["input_ids"]
    return paragraphs, [len(tokens) for tokens in ids]


def make_documents(number: int, seed: int, train: bool, tokenizer, data_dir: Path) -> Dataset:
    """Returns documents and their reviews, half of them positive."""
    generator = random.Random(seed)
    of_label, _ = read_sentences(data_dir, train)
    paragraphs, sizes = read_paragraphs(data_dir / f"wiki_en/{'train' if train else 'validation'}.txt.gz", tokenizer)
    rows = []
    for index in range(number):
        label = str(index % 2)
        review = " ".join(generator.sample(of_label[label], SENTENCES))
        size, wanted = len(tokenizer.tokenize(review)), generator.randint(*LENGTHS)
        place, parts = generator.randrange(len(paragraphs)), []
        while size < wanted:
            parts.append(paragraphs[place])
            size += sizes[place]
            place = (place + 1) % len(paragraphs)
        parts.insert(generator.randint((len(parts) + 1) // 2, len(parts)), review)
        rows.append({"text": "\n".join(parts), "label": label, "review": review})
    return Dataset.from_list(rows)


# --- runs -------------------------------------------------------------------------------------------------------


def make_arguments(folder: Path, seed: int, learning_rate: float, batch: int) -> FineTuningArguments:
    """Returns the settings of a run."""
    return FineTuningArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        num_train_epochs=1,
        learning_rate=learning_rate,
        seed=seed,
        bf16=True,
        use_cpu=True,
        eval_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=10,
        overwrite_output_dir=True,
    )


def train_start(args: argparse.Namespace, tokenizer) -> Path:
    """Fine-tunes the classifier that all methods start from, and returns its folder."""
    folder = args.output_dir / "start"
    if not (folder / "model.safetensors").exists():
        torch.manual_seed(0)
        model = SnugBertForSequenceClassification.from_pretrained(args.model_name_or_path, num_labels=2)
        student = make_student(model, range(args.layers))
        _, short = read_sentences(args.data_dir, train=True)
        random.Random(0).shuffle(short)
        rows = Dataset.from_list(short[:SHORT_SENTENCES])
        settings = make_arguments(folder, 0, 1e-4, batch=32)
        trainer = FineTuningTrainer(student, settings, TextClassification(), rows, processing_class=tokenizer)
        trainer.train()
        trainer.save_model()
    return folder


def run_method(
    method: str, seed: int, args: argparse.Namespace, start: Path, tokenizer, train: Dataset, test: Dataset
) -> None:
    """Trains a method with a seed, and writes its accuracy on the test documents."""
    folder = args.output_dir / method / str(seed)
    windows = {"max_seq_length": WINDOW, "doc_stride": STRIDE}
    task = {
        "first": TextClassification(max_seq_length=512, text_column_names="text"),
        "head_and_tail": HeadAndTail(max_seq_length=512, text_column_names="text"),
    }.get(method) or TextClassification(**windows, text_column_names="text")
    torch.manual_seed(seed)
    model_class = AttentionPooling if method == "attention" else SnugBertForSequenceClassification
    model = model_class.from_pretrained(start)
    settings = make_arguments(folder, seed, args.learning_rate, batch=8)
    trainer = FineTuningTrainer(model, settings, task, train, test, processing_class=tokenizer)
    seconds = trainer.train().metrics["train_runtime"]
    accuracy = trainer.evaluate()["eval_accuracy"]
    write_atomically(folder / "accuracy.json", json.dumps({"accuracy": accuracy, "seconds": seconds}))
    print(f"{method}, seed {seed}: {accuracy:.3f} after {seconds:.0f} s", file=sys.stderr, flush=True)


def report(output_dir: Path) -> str:
    """Returns the table of the finished runs."""
    rows = []
    for method, title in METHODS.items():
        runs = [json.loads(file.read_text()) for file in sorted((output_dir / method).glob("*/accuracy.json"))]
        if runs:
            scores = [100 * run["accuracy"] for run in runs]
            minutes = mean(run["seconds"] for run in runs) / 60
            rows.append([title, str(len(runs)), format_seeds(scores, 1), f"{min(scores):.1f}", f"{minutes:.1f}"])
    settings = json.loads((output_dir / "settings.json").read_text())
    alone = json.loads((output_dir / "review_alone.json").read_text())
    return "\n".join(
        [
            ", ".join(f"{name} {value}" for name, value in settings["machine"].items()),
            "",
            format_table([["method", "seeds", "accuracy", "lowest", "minutes"], *rows]),
            "",
            f"Accuracy in percent on {settings['test_documents']} test documents, half of them positive: mean ± "
            "standard deviation over the seeds (95 % interval of the mean, Student's t). Minutes of training per run. "
            f"The classifier that all methods start from has {100 * alone['accuracy']:.1f} % on the reviews of the "
            "test documents without the other text.",
        ]
    )


def main(argv: list[str]) -> None:
    """Runs the benchmark with the arguments `argv`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="folder of a BERT checkpoint")
    parser.add_argument("--data_dir", type=Path, required=True, help="folder with glue/ and wiki_en/")
    parser.add_argument("--layers", type=positive, default=2, help="layers of the checkpoint to use; default: 2")
    parser.add_argument("--documents", type=positive, default=400, help="training documents; default: 400")
    parser.add_argument("--test_documents", type=positive, default=200, help="default: 200")
    parser.add_argument("--learning_rate", type=float, default=3e-4, help="default: 3e-4")
    parser.add_argument("--seeds", type=positive, default=3, help="number of seeds, from 42 on; default: 3")
    parser.add_argument("--output_dir", type=Path, required=True)
    args = parser.parse_args(argv)
    transformers.logging.set_verbosity_error()
    try:
        settings = {name: getattr(args, name) for name in SETTINGS}
        check_settings(args.output_dir, settings | {"machine": describe_machine("cpu")})
        tokenizer = transformers.AutoTokenizer.from_pretrained(args.model_name_or_path)
        start = train_start(args, tokenizer)
        test = make_documents(args.test_documents, 0, False, tokenizer, args.data_dir)
        if not (args.output_dir / "review_alone.json").exists():
            reviews = test.select_columns(["review", "label"]).rename_column("review", "text")
            scores = snugbert.Predictor(start, task=TextClassification(max_seq_length=512)).evaluate(reviews)
            write_atomically(args.output_dir / "review_alone.json", json.dumps(scores))
        for seed in range(FIRST_SEED, FIRST_SEED + args.seeds):
            missing = [name for name in METHODS if not (args.output_dir / name / f"{seed}/accuracy.json").exists()]
            train = make_documents(args.documents, seed, True, tokenizer, args.data_dir) if missing else None
            for method in missing:
                run_method(method, seed, args, start, tokenizer, train, test)
    except InputError as error:
        raise SystemExit(f"error: {error}") from error
    print(report(args.output_dir))


if __name__ == "__main__":
    main(sys.argv[1:])
