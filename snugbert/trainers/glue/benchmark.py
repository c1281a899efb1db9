"""The tasks of the GLUE benchmark: columns, labels, files and main metrics."""

from typing import NamedTuple

GLUE_ON_THE_HUB = "nyu-mll/glue"
# What is read to train, to score and to predict. MNLI has two sets of sentences from other sources, and its model
# predicts the diagnostic set, too.
SETS = {
    "train": ("train",),
    "validation": ("validation", "validation_mismatched"),
    "test": ("test", "test_mismatched", "diagnostic"),
}


class GlueTask(NamedTuple):
    """A GLUE task: where its sentences and labels stand, and what its results are called."""

    folder: str  # in a folder of GLUE data
    sentences: tuple[str, ...]  # columns, by their names in the datasets library
    labels: tuple[str, ...] = ()  # in the order of their ids in the datasets library; none: a number is predicted
    main_metric: str = "accuracy"  # the figure of Devlin et al. (2018), table 1
    renamed: dict[str, str] = {}  # columns that the TSV files call otherwise
    unnamed: tuple[str, ...] = ()  # the columns of TSV files without a header
    torn_rows: bool = False  # whether TSV files have rows that lack columns
    in_digits: bool = False  # whether the TSV files, and so the leaderboard, name a label by its id
    # Without .tsv: the files of each set, the first that is there, and the leaderboard's of each of SETS["test"].
    files: dict[str, tuple[str, ...]] = {"train": ("train",), "validation": ("dev",), "test": ("test",)}
    leaderboard: dict[str, str] = {}  # that of the folder, unless it is told here


# Names and orders: the data set "nyu-mll/glue" of the Hub; columns and files: those of gluebenchmark.com.
TASKS = {
    "cola": GlueTask(
        "CoLA",
        ("sentence",),
        ("unacceptable", "acceptable"),
        main_metric="matthews_correlation",
        unnamed=("source", "label", "star", "sentence"),
        in_digits=True,
    ),
    "mnli": GlueTask(
        "MNLI",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        renamed={
            **{"sentence1": "premise", "sentence2": "hypothesis", "gold_label": "label"},
            **{"Premise": "premise", "Hypothesis": "hypothesis", "Label": "label"},  # diagnostic-full
        },
        files={
            "train": ("train",),
            "validation": ("dev_matched",),
            "validation_mismatched": ("dev_mismatched",),
            "test": ("test_matched",),
            "test_mismatched": ("test_mismatched",),
            # The same examples in the same order; diagnostic-full has their labels.
            "diagnostic": (
                *("diagnostic-full", "../diagnostic/diagnostic-full"),
                *("diagnostic", "../diagnostic/diagnostic", "../AX/AX"),
            ),
        },
        leaderboard={"test": "MNLI-m", "test_mismatched": "MNLI-mm", "diagnostic": "AX"},
    ),
    "mrpc": GlueTask(
        "MRPC",
        ("sentence1", "sentence2"),
        ("not_equivalent", "equivalent"),
        main_metric="f1",
        renamed={"#1 String": "sentence1", "#2 String": "sentence2", "Quality": "label"},
        in_digits=True,
    ),
    "qnli": GlueTask("QNLI", ("question", "sentence"), ("entailment", "not_entailment")),
    "qqp": GlueTask(
        "QQP",
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        main_metric="f1",
        renamed={"is_duplicate": "label"},
        torn_rows=True,  # of questions with a line break within
        in_digits=True,
    ),
    "rte": GlueTask("RTE", ("sentence1", "sentence2"), ("entailment", "not_entailment")),
    "sst2": GlueTask("SST-2", ("sentence",), ("negative", "positive"), in_digits=True),
    "stsb": GlueTask("STS-B", ("sentence1", "sentence2"), main_metric="spearmanr", renamed={"score": "label"}),
    "wnli": GlueTask("WNLI", ("sentence1", "sentence2"), ("not_entailment", "entailment"), in_digits=True),
}
