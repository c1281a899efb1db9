"""Small examples for tests of `snugbert glue`: sentences in which one word decides the label."""

import json
import random
from pathlib import Path

from snugbert import SnugBertTokenizer
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.labeled_texts import TextSplit
from snugbert.tasks.task_arguments import GlueDataArguments

FILLER = "a the film plot story actor scene music long short old new it was and with".split()
WORDS = {"cheerful": ["good", "fine", "great"], "gloomy": ["bad", "dull", "poor"]}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *FILLER, *WORDS["cheerful"], *WORDS["gloomy"]]
TOKENIZER = SnugBertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)})
NO_DROPOUT = "hidden_dropout_prob=0,attention_probs_dropout_prob=0"
NO_FILES = {"train_file": None, "validation_file": None}
SMALL = "num_hidden_layers=1,hidden_size=32,intermediate_size=64,num_attention_heads=2," + NO_DROPOUT
# With BERT's initializer range, so small a model would need hundreds of steps to learn.
LARGER = {"config_overrides": SMALL + ",initializer_range=0.1"}


def sentences(number: int, seed: int) -> list[dict[str, str]]:
    """2 to 12 filler words around one word that decides the label."""
    generator = random.Random(seed)
    rows = []
    for i in range(number):
        label = list(WORDS)[i % 2]
        words = generator.choices(FILLER, k=generator.randint(2, 12))
        words.insert(generator.randrange(len(words)), generator.choice(WORDS[label]))
        rows.append({"sentence": " ".join(words), "label": label})
    return rows


def arguments(workshop: Path, output_dir: Path, **changes: object) -> list[str]:
    """A command line that trains a small model from random weights. None removes an argument."""
    values = {
        "config_name": "tiny",
        "config_overrides": SMALL,
        "tokenizer_name": workshop / "tokenizer",
        "train_file": workshop / "train.csv",
        "validation_file": workshop / "dev.csv",
        "output_dir": output_dir,
        "per_device_train_batch_size": 16,
        "num_train_epochs": 4,
        "learning_rate": 5e-3,
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }
    return [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]


def checkpoint_of(run: Path | None) -> dict[str, object]:
    """Changes to `arguments` that load the checkpoint in `run`."""
    return {"model_name_or_path": run, "config_name": None, "config_overrides": None, "tokenizer_name": None}


def read_predictions(file: Path) -> list[dict]:
    """The rows of a file of predictions."""
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def load_splits(args: GlueDataArguments, wanted: tuple[str, ...] | None, **download: object) -> dict[str, TextSplit]:
    """Reads the splits that the arguments of `snugbert glue` select."""
    task = TextClassification(args)
    return task.read_splits(task.find_sources(wanted, **download))
