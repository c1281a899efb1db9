"""Pushes and loads models over HTTP, with and without snugbert installed.

Two processes do the work, the owner of the repositories and a stranger without snugbert. Each has only a token. The
tests check their results.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from environments import environment_without
from hub.server import Hub, serve
from hub.stranger import AUTO_CLASSES, PIPELINES

import snugbert

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PACKAGE = Path(snugbert.__file__).parent
NOT_FOUND = "is not a local folder and is not a valid model identifier"
HEADS = {auto_class: f"SnugBert{auto_class.removeprefix('AutoModel') or 'Model'}" for auto_class in AUTO_CLASSES}


@dataclass
class Visit:
    """The results of a part of a script."""

    report: dict
    tensors: dict
    requests: list[tuple[str, str, int]]  # of the whole script to the Hub: method, path, status


@dataclass
class World:
    """A Hub, the Python of users without SnugBERT, and a folder."""

    hub: Hub
    folder: Path
    strangers_python: Path

    def visit(self, python: Path | str, script: str, *parts: str) -> list[Visit]:
        """Runs a script with its own home folder, and returns the results of its parts."""
        before = len(self.hub.requests)
        process = subprocess.run(
            [python, HERE / script, self.folder],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder / script),
                "HF_HOME": str(self.folder / script),
                "HF_ENDPOINT": self.hub.url,
                "HF_HUB_DISABLE_XET": "1",  # this Hub does not support it
                "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                "DISABLE_SAFETENSORS_CONVERSION": "1",
                "TRANSFORMERS_VERBOSITY": "error",
                "OMP_NUM_THREADS": "1",
            },
        )
        assert process.returncode == 0, process.stderr[-5000:]
        return [
            Visit(
                json.loads((self.folder / f"{part}.json").read_text()),
                torch.load(self.folder / f"{part}.pt", weights_only=True),
                self.hub.requests[before:],
            )
            for part in parts
        ]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    with serve(tokens={"hf_owner": "org", "hf_stranger": "stranger"}) as hub:
        yield World(hub, folder, environment_without(folder / "environment", "snugbert"))


@pytest.fixture(scope="module")
def owner(world) -> list[Visit]:
    return world.visit(sys.executable, "owner.py", "push", "open")


@pytest.fixture(scope="module")
def pushed(owner) -> Visit:
    return owner[0]


@pytest.fixture(scope="module")
def installed(owner) -> Visit:
    return owner[1]


@pytest.fixture(scope="module")
def stranger(world, owner) -> list[Visit]:
    return world.visit(world.strangers_python, "stranger.py", "use", "again")


@pytest.fixture(scope="module")
def used(stranger) -> Visit:
    return stranger[0]


@pytest.fixture(scope="module")
def again(stranger) -> Visit:
    return stranger[1]


@pytest.fixture(scope="module")
def cut_off(installed) -> Visit:
    """The last part of the same process, without a network."""
    return Visit(installed.report["cut"], installed.tensors, [])


def assert_same(tensors, expected):
    assert len(tensors) == len(expected) > 0
    for tensor, other in zip(tensors, expected, strict=True):
        torch.testing.assert_close(tensor, other, atol=2e-6, rtol=0)


def saved_json(repository, file: str, revision: str = "main") -> dict:
    return json.loads(repository.files(revision)[file])


def code_of(repository, revision: str = "main") -> dict[str, bytes]:
    return {path: content for path, content in repository.files(revision).items() if path.endswith(".py")}


# --- what is pushed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("auto_class", AUTO_CLASSES)
def test_a_push_sends_weights_tokenizer_card_and_code(auto_class, world, pushed):
    repository = world.hub.repositories[f"org/{auto_class}"]
    files = repository.files()
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "README.md"} <= files.keys()
    assert sorted(saved_json(repository, "config.json")["auto_map"]) == sorted(["AutoConfig", *AUTO_CLASSES])
    assert code_of(repository) == {path.name: path.read_bytes() for path in PACKAGE.glob("*_snugbert.py")}
    weights = [path for path in files if path.endswith(".safetensors")]
    if auto_class == "AutoModel":  # in shards
        assert len(weights) > 1
        assert set(weights) == set(saved_json(repository, "model.safetensors.index.json")["weight_map"].values())
    else:
        assert weights == ["model.safetensors"]


def test_trainer_pushes_while_it_trains(world, pushed):
    repository = world.hub.repositories["org/trained"]
    first, second, *_, last = [commit.message for commit in repository.commits.values()]
    assert [first, second, last] == ["initial commit", "Training in progress, step 1", "End of training"]
    assert code_of(repository) == code_of(world.hub.repositories["org/AutoModel"])


# --- where snugbert is not installed ------------------------------------------------------------------------------


def test_strangers_have_no_snugbert(used):
    assert used.report["import snugbert"] == "ModuleNotFoundError: No module named 'snugbert'"


@pytest.mark.parametrize("auto_class", AUTO_CLASSES)
def test_a_loaded_head_equals_the_pushed_one(auto_class, world, pushed, used):
    assert_same(used.tensors[auto_class], pushed.tensors[auto_class])
    module = f"transformers_modules.org.{auto_class}.{world.hub.repositories[f'org/{auto_class}'].sha('main')}"
    assert used.report["classes"][auto_class] == [
        f"{module}.modeling_snugbert.{HEADS[auto_class]}",
        f"{module}.tokenization_snugbert.SnugBertTokenizer",
    ]
    assert used.report["others"][auto_class] == HEADS[auto_class]  # loaded from the repository of another head


@pytest.mark.parametrize("task", PIPELINES)
def test_pipelines_give_the_same_answers(task, pushed, used):
    assert used.report["answers"][task] == pushed.report["answers"][task]
    assert_same([used.tensors[task]], [pushed.tensors[task]])


def test_a_model_pushed_by_trainer_loads(pushed, used):
    assert_same(used.tensors["trained"], pushed.tensors["trained"])


def test_no_code_runs_without_trust(used):
    assert "Please pass the argument `trust_remote_code=True`" in used.report["no trust"]


def test_a_model_fine_tuned_without_snugbert_is_saved(used):
    [before], [after] = used.tensors["before"], used.tensors["fine-tuned"]
    assert (after - before).abs().max() > 0.01
    assert_same(used.tensors["saved"], [after])
    assert used.report["saved"] == HEADS


@pytest.mark.parametrize("name", ["stranger/fine-tuned", "stranger/passed-on"], ids=["Trainer", "push_to_hub"])
def test_a_model_fine_tuned_without_snugbert_is_pushed_again(name, world, pushed, used, again):
    assert_same(again.tensors[name], used.tensors["fine-tuned"])
    assert again.report["others"][name] == [*HEADS.values(), "SnugBertConfig", "SnugBertTokenizer"]
    repository, source = world.hub.repositories[name], world.hub.repositories["org/AutoModelForMaskedLM"]
    assert code_of(repository) == code_of(source)
    for file in ("config.json", "tokenizer_config.json"):
        assert saved_json(repository, file)["auto_map"] == saved_json(source, file)["auto_map"]
    assert saved_json(repository, "config.json")["architectures"] == ["SnugBertForSequenceClassification"]


# --- branches, revisions, private repositories --------------------------------------------------------------------


@pytest.mark.parametrize(
    "case, weights, code",
    [
        ("main", "second", "main"),
        ("tag", "first", "v1"),
        ("commit", "first", "v1"),
        ("branch", "branch", "trials/one"),
        ("code of a commit", "second", "v1"),
    ],
)
def test_a_revision_has_its_own_weights_and_runs_its_own_code(case, weights, code, world, pushed, again):
    repository = world.hub.repositories["org/history"]
    assert_same(again.tensors[case], pushed.tensors[weights])
    sha, source = again.report["code"][case]
    assert sha == repository.sha(code)
    assert source.encode() == repository.files(code)["modeling_snugbert.py"]
    assert ("SECOND_EDITION" in source) == (code == "main")


def test_a_private_repository_needs_its_owners_token(world, pushed, again):
    assert world.hub.repositories["org/private"].private
    assert_same(again.tensors["private"], pushed.tensors["first"])
    assert f"org/private {NOT_FOUND}" in again.report["refusals"]["private, no token"]


# --- where snugbert is installed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", ["None", "True", "False"])
def test_the_installed_classes_are_used_and_no_code_of_the_repository_runs(trust, pushed, again, installed):
    assert "remote code runs" in again.report["refusals"]["poisoned"]  # it does run without snugbert
    parts = ("configuration", "modeling", "tokenization")
    assert installed.report["modules"][trust] == [f"snugbert.{part}_snugbert" for part in parts]
    assert_same(installed.tensors[trust], pushed.tensors["AutoModelForMaskedLM"])
    assert installed.report["remote"] == []
    assert not [path for _, path, _ in installed.requests if path.endswith(".py")]


# --- errors of commands -------------------------------------------------------------------------------------------


COMPLAINTS = {
    "no such repository": "org/none: no such folder, and no such repository on the Hub.",
    "no token": "org/private: no such folder, and no such repository on the Hub. A private repository needs --token.",
    "no tokenizer": "org/private: no tokenizer.json or vocab.txt.",
    "push without a token": "no token found. You must provide a token or be logged in",
    "no network": "and the Hub cannot be reached (",
    "push without a network": "--push_to_hub: cannot log in to http://127.0.0.1:",
}


@pytest.mark.parametrize("case", COMPLAINTS)
def test_a_command_prints_the_error_of_the_hub_in_one_line(case, installed, cut_off):
    status, text = (installed.report["commands"] | cut_off.report["commands"])[case]
    *_, line = text.splitlines()
    assert status == 2
    assert line.startswith("snugbert glue: error: ")
    assert COMPLAINTS[case] in line


def test_failures_do_not_change_local_files(world, installed, cut_off):
    assert installed.report["changed"] == cut_off.report["changed"] == []
    assert installed.report["watched"] > 10
    assert "org/new" not in world.hub.repositories


def test_a_cached_model_opens_without_a_network(pushed, cut_off):
    assert_same(cut_off.tensors["cached"], pushed.tensors["AutoModelForMaskedLM"])
