"""The tasks of the GLUE benchmark: columns, labels, files and metrics."""

from pathlib import Path
from typing import NamedTuple

GLUE_ON_THE_HUB = "nyu-mll/glue"


class GlueTask(NamedTuple):
    """A GLUE task."""

    folder: str  # name of the folder in the GLUE data, also used in reports, such as "SST-2"
    text_columns: tuple[str, ...]  # one for single sentences, two for pairs
    labels: tuple[str, ...] = ()  # in the order of their ids. Empty for regression
    main_metric: str = "accuracy"  # in table 1 of Devlin et al. (2018)
    metrics: tuple[str, ...] = ("accuracy",)  # in table 1 of Wang et al. (2018)
    renamed_columns: dict[str, str] = {}  # column in the TSV files -> name in the datasets library
    headerless_columns: tuple[str, ...] = ()
    skips_torn_rows: bool = False
    writes_label_ids: bool = False  # whether TSV files and the leaderboard have label ids instead of names
    # Split -> names of its TSV file without ".tsv". The first file that exists is read.
    files: dict[str, tuple[str, ...]] = {"train": ("train",), "validation": ("dev",), "test": ("test",)}
    leaderboard: dict[str, str] = {}  # test split -> name of the leaderboard's file. Default: `folder`


# Column names and the order of labels come from the dataset "nyu-mll/glue" on the Hub. File names and the columns in
# files come from gluebenchmark.com.
TASKS = {
    "cola": GlueTask(
        "CoLA",
        ("sentence",),
        ("unacceptable", "acceptable"),
        main_metric="matthews_correlation",
        metrics=("matthews_correlation",),
        headerless_columns=("source", "label", "star", "sentence"),
        writes_label_ids=True,
    ),
    "mnli": GlueTask(
        "MNLI",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        renamed_columns={
            **{"sentence1": "premise", "sentence2": "hypothesis", "gold_label": "label"},
            **{"Premise": "premise", "Hypothesis": "hypothesis", "Label": "label"},  # diagnostic-full
        },
        files={
            "train": ("train",),
            "validation": ("dev_matched",),
            "validation_mismatched": ("dev_mismatched",),
            "test": ("test_matched",),
            "test_mismatched": ("test_mismatched",),
            # These files have the same examples in the same order. Only diagnostic-full has labels.
            "test_diagnostic": (
                *("diagnostic-full", "../diagnostic/diagnostic-full"),
                *("diagnostic", "../diagnostic/diagnostic", "../AX/AX"),
            ),
        },
        leaderboard={"test": "MNLI-m", "test_mismatched": "MNLI-mm", "test_diagnostic": "AX"},
    ),
    "mrpc": GlueTask(
        "MRPC",
        ("sentence1", "sentence2"),
        ("not_equivalent", "equivalent"),
        main_metric="f1",
        metrics=("accuracy", "f1"),
        renamed_columns={"#1 String": "sentence1", "#2 String": "sentence2", "Quality": "label"},
        writes_label_ids=True,
    ),
    "qnli": GlueTask("QNLI", ("question", "sentence"), ("entailment", "not_entailment")),
    "qqp": GlueTask(
        "QQP",
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        main_metric="f1",
        metrics=("accuracy", "f1"),
        renamed_columns={"is_duplicate": "label"},
        skips_torn_rows=True,  # some questions contain a line break
        writes_label_ids=True,
    ),
    "rte": GlueTask("RTE", ("sentence1", "sentence2"), ("entailment", "not_entailment")),
    "sst2": GlueTask("SST-2", ("sentence",), ("negative", "positive"), writes_label_ids=True),
    "stsb": GlueTask(
        "STS-B",
        ("sentence1", "sentence2"),
        main_metric="spearmanr",
        metrics=("pearson", "spearmanr"),
        renamed_columns={"score": "label"},
    ),
    "wnli": GlueTask("WNLI", ("sentence1", "sentence2"), ("not_entailment", "entailment"), writes_label_ids=True),
}


def find_task_files(folder: Path, task: GlueTask) -> dict[str, Path]:
    """Returns the TSV file of each split of a task in its folder. Splits without a file are left out."""
    found = {}
    for name, stems in task.files.items():
        candidates = [folder / f"{stem}.tsv{suffix}" for stem in stems for suffix in ("", ".gz")]
        existing = [file for file in candidates if file.is_file()]
        if existing:
            found[name] = existing[0]
    return found


def missing_files(data_dir: str, task: GlueTask, wanted: tuple[str, ...]) -> list[Path]:
    """Lists the files of the `wanted` splits that do not exist in the task's folder under `data_dir`."""
    found = find_task_files(Path(data_dir) / task.folder, task)
    missing = [split for split in wanted if not any(name.startswith(split) for name in found)]
    return [Path(data_dir) / task.folder / f"{task.files[split][0]}.tsv" for split in missing]
