"""transformers' own tests of BERT, run on stock BERT and on SnugBERT: `python tests/stock_suite.py [FOLDER]`.

Prints how many tests pass, fail and are skipped, side by side, and the tests that pass with stock BERT only. The exit
status is 1 if SnugBERT fails or skips one of them, unless `DECODER_TESTS` or `SKIPPED_TESTS` lists it, if another
test fails with either, or if stock BERT passes fewer than `FEWEST_PASSES`. The last line begins with RUN, or with NOT
RUN if the suite could not be downloaded. Then the exit status is 0 only if pip finds no source archive.

FOLDER is `tests/` of transformers' repository. Its version should be the installed one. Without FOLDER, transformers'
source archive is downloaded from PyPI. It contains the tests that all models share, but not `tests/models/bert`,
`tests/generation` and `tests/exporters`. The class below then takes the place of BERT's own tests.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import BertConfig
from transformers.models.auto import modeling_auto

import snugbert

# These pass with stock BERT and fail with SnugBERT, which has no decoder: no BertLMHeadModel and no `generate`.
DECODER_TESTS = (
    "test_for_causal_lm",
    "test_decoder_model_past_with_large_inputs",
    "test_generation_tester_mixin_inheritance",
)
# These pass with stock BERT and are skipped with SnugBERT, with the reason. The common tests alone contain the last.
SKIPPED_TESTS = {
    "test_causal_lm_loss_honors_shift_labels": "a test of decoders",
    "test_left_padding_compatibility": "a test of decoders",
    "test_generate_with_and_without_position_ids": "a test of text generation",
    "test_eager_matches_sdpa_inference_24_fp32_pad_left_output_attentions": "only eager returns attention weights",
}
FEWEST_PASSES = 100  # the common tests of transformers 5.23.0 alone are 105
NOT_FOUND = "No matching distribution found"  # pip also says so without a connection
# Stock BERT has no head for replaced tokens.
HEADS = [
    name.removeprefix("Snug")
    for name in snugbert.__all__
    if name.startswith(("SnugBertFor", "SnugBertModel")) and name != "SnugBertForReplacedTokenDetection"
]


def open_suite(work: Path) -> str:
    """Makes the suite importable as the package `tests`. Returns pip's error, or an empty text."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if folder is None:
        lock = Path(__file__).parents[1] / "constraints.txt"
        pip = [sys.executable, *"-m pip download --quiet --no-binary :all: --no-deps --require-hashes".split()]
        pip += ["--constraint", lock, "--build-constraint", lock, "--dest", work]
        run = subprocess.run([*pip, f"transformers=={transformers.__version__}"], capture_output=True, text=True)
        if run.returncode:
            return run.stderr.strip() or f"pip ended with exit status {run.returncode}"
        with tarfile.open(next(work.glob("transformers-*.tar.gz"))) as archive:
            archive.extractall(work, filter="data")
        folder = next(work.glob("transformers-*/tests"))
    (work / "suite").mkdir()
    shutil.copytree(folder, work / "suite" / "tests", ignore=shutil.ignore_patterns("fixtures"))
    (work / "suite" / "tests" / "__init__.py").touch()
    sys.path.insert(0, str(work / "suite"))
    # The suite imports transformers a second time, from its own source. The installed one is tested.
    for module in (transformers.utils, transformers.utils.import_utils):
        module.direct_transformers_import = lambda *arguments, **options: transformers
    replace_if_missing("exporters.test_export", ExportTesterMixin=object, ExportGenerateTesterMixin=object)
    replace_if_missing("generation.test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))
    replace_if_missing("utils.test_configuration_utils", config_common_kwargs={})
    return ""


def replace_if_missing(name: str, **attributes: Any) -> None:
    """Replaces a module of the suite if it cannot be imported."""
    try:
        import_module(f"tests.{name}")
    except ImportError:
        sys.modules.setdefault(f"tests.{name.split('.')[0]}", ModuleType(name))
        module = sys.modules[f"tests.{name}"] = ModuleType(name)
        vars(module).update(attributes)


def load_tests_of_bert() -> type[unittest.TestCase]:
    """Returns the suite's class of tests, or the class that takes its place."""
    try:
        return import_module("tests.models.bert.test_modeling_bert").BertModelTest
    except ModuleNotFoundError:
        print("tests/models/bert is missing. Only the tests that all models share are run.")
    common = import_module("tests.test_modeling_common")
    configuration = import_module("tests.test_configuration_common")

    class Sizes:
        batch_size, seq_length, num_choices, is_training = 13, 7, 4, True
        hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4

        def get_config(self):
            sizes = {name: getattr(self, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
            return BertConfig(vocab_size=99, intermediate_size=37, type_vocab_size=16, **sizes)

        def prepare_config_and_inputs_for_common(self):
            shape = [self.batch_size, self.seq_length]
            inputs = {"input_ids": common.ids_tensor(shape, 99), "token_type_ids": common.ids_tensor(shape, 16)}
            return self.get_config(), inputs | {"attention_mask": common.random_attention_mask(shape)}

    class BertModelTest(common.ModelTesterMixin, unittest.TestCase):
        all_model_classes = tuple(getattr(transformers, name) for name in HEADS)

        def setUp(self):
            self.model_tester = Sizes()

        def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
            inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels=return_labels)
            if return_labels and model_class.__name__.endswith("ForPreTraining"):
                inputs["labels"] = torch.zeros(inputs["input_ids"].shape, dtype=torch.long)
                inputs["next_sentence_label"] = torch.zeros(len(inputs["input_ids"]), dtype=torch.long)
            return inputs

        def test_config(self):
            configuration.ConfigTester(self, config_class=BertConfig, hidden_size=32).run_common_tests()

    return BertModelTest


def rename(tests: type[unittest.TestCase]) -> None:
    """Replaces stock BERT's classes by SnugBERT's, in the module of `tests` and in the tables of all models."""
    module = sys.modules[tests.__module__]
    for name in vars(module).keys() & {"BertConfig", *HEADS}:
        setattr(module, name, getattr(snugbert, f"Snug{name}"))
    tests.all_model_classes = tuple(getattr(snugbert, f"Snug{name}") for name in HEADS)
    pipelines = getattr(tests, "pipeline_model_mapping", {}).items()
    tests.pipeline_model_mapping = {
        task: getattr(snugbert, f"Snug{model.__name__}") for task, model in pipelines if model.__name__ in HEADS
    }
    sys.modules["transformers.models.snugbert"] = snugbert
    for name, table in vars(modeling_auto).items():
        if name.endswith("_MAPPING_NAMES") and table.get("bert") in HEADS:
            table["snugbert"] = f"Snug{table['bert']}"


class Results(unittest.TestResult):
    """Records the result of each test, and the reason."""

    def __init__(self):
        super().__init__()
        self.of: dict[str, tuple[str, str]] = {}

    def startTest(self, test):
        super().startTest(test)
        self.of[test._testMethodName] = ("passed", "")

    def addSkip(self, test, reason):
        if test._testMethodName in self.of:  # not a part of a test
            self.of[test._testMethodName] = ("skipped", reason)

    def addFailure(self, test, err):
        self.of[test._testMethodName] = ("failed", f"{err[0].__name__}: {err[1]}".splitlines()[0])

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addFailure(test, err)


def run(tests: type[unittest.TestCase]) -> dict[str, tuple[str, str]]:
    """Runs the tests. Returns (result, reason) by name."""
    results, start = Results(), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unittest.defaultTestLoader.loadTestsFromTestCase(tests).run(results)
    print(f"{len(results.of)} tests in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return results.of


def main() -> int:
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as work:
        if error := open_suite(Path(work)):
            print(f"{error}\n\nNOT RUN: pip could not download transformers' tests.")
            return int(NOT_FOUND not in error)
        tests = load_tests_of_bert()
        stock = run(tests)
        rename(tests)
        ours = run(tests)
    print(f"\ntransformers {transformers.__version__}, torch {torch.__version__}\n")
    print("| | stock BERT | SnugBERT |\n| --- | --- | --- |")
    for result in ("passed", "failed", "skipped"):
        counts = [sum(value == result for value, _ in side.values()) for side in (stock, ours)]
        print(f"| {result} | {counts[0]} | {counts[1]} |")
    print("\nTests that pass with stock BERT only:\n")
    missed = []
    allowed = {("skipped", name): why for name, why in SKIPPED_TESTS.items()}
    allowed |= {("failed", name): "a test of decoders" for name in DECODER_TESTS}
    passes = [name for name in stock if stock[name][0] == "passed"]
    for name in passes:
        result, reason = ours[name]
        if result != "passed":
            why = allowed.get((result, name))
            missed += [name] if why is None else []
            print(f"- {name}: {result}{f' ({why})' if why else ''}. {reason}")
    failures = [name for name in stock if stock[name][0] == "failed"]
    failures += [
        name for name in ours if ours[name][0] == "failed" and name not in (*DECODER_TESTS, *missed, *failures)
    ]
    print(f"\nTests that SnugBERT should pass and does not: {', '.join(missed) or 'none'}")
    print(f"Other tests that fail with stock BERT or SnugBERT: {', '.join(failures) or 'none'}")
    failed = bool(missed or failures or len(passes) < FEWEST_PASSES)
    result = "failed" if failed else "passed"
    print(f"\nRUN, {result}: stock BERT passes {len(passes)} tests, expected {FEWEST_PASSES} or more.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
