"""Supported versions of transformers and torch, and the error for other versions."""

import json
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from parity import CONFIG

import snugbert
from snugbert.versions_snugbert import WORKING_VERSIONS


def test_supported_versions_equal_pyproject():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    required = {(needed := Requirement(line)).name: needed.specifier for line in project["dependencies"]}
    assert {name: required[name] for name in WORKING_VERSIONS} == WORKING_VERSIONS


# Simulates other versions of transformers and torch, without the names that old versions lack.
OTHER_VERSIONS = """
    import sys
    sys.modules["snugbert"] = None
    import importlib.metadata, json, transformers
    from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer
    transformers.PreTrainedConfig = transformers.TokenizersBackend = None
    version = importlib.metadata.version
    complaints = []
    for found in ({"transformers": "4.57.0"}, {"transformers": "6.0.0"}, {"torch": "2.10.1"}):
        transformers.__version__ = found.get("transformers", "5.17.0")
        importlib.metadata.version = lambda package: found.get(package) or version(package)
        for auto_class in (AutoConfig, AutoTokenizer, AutoModel, AutoModelForMaskedLM):
            try:
                auto_class.from_pretrained(sys.argv[1], trust_remote_code=True)
            except ImportError as error:
                complaints.append(str(error))
    print(json.dumps(complaints))
"""


def test_remote_code_reports_which_versions_work(tmp_path):
    snugbert.SnugBertForPreTraining(snugbert.SnugBertConfig(**CONFIG)).save_pretrained(tmp_path / "model")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    snugbert.SnugBertTokenizer({word: index for index, word in enumerate(words)}).save_pretrained(tmp_path / "model")
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OTHER_VERSIONS), tmp_path / "model"],
        capture_output=True,
        text=True,
        env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout.splitlines()[-1]) == [
        f"SnugBERT needs {package} {working}, but {package} {found} is installed. Run: "
        f'pip install "{package}{working}"'
        for package, working, found in (
            ("transformers", ">=5.17,<6", "4.57.0"),
            ("transformers", ">=5.17,<6", "6.0.0"),
            ("torch", ">=2.11", "2.10.1"),
        )
        for _ in range(4)
    ]
