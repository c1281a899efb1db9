"""Supported versions of transformers and torch, and the error for other versions."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from snugbert import versions_snugbert
from snugbert.versions_snugbert import WORKING_VERSIONS, check_versions

ROOT = Path(__file__).parents[1]


def test_supported_versions_equal_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    required = {(needed := Requirement(line)).name: needed.specifier for line in project["dependencies"]}
    assert {name: required[name] for name in WORKING_VERSIONS} == WORKING_VERSIONS


@pytest.mark.parametrize(
    ("package", "found"), [("transformers", "4.57.0"), ("transformers", "6.0.0"), ("torch", "2.10.1")]
)
def test_other_versions_are_refused(package, found, monkeypatch):
    installed = {"transformers": "5.17.0", "torch": "2.11.0a0+nv26.3"}  # the second is a vendor's build of 2.11
    monkeypatch.setattr(versions_snugbert, "version", installed.get)
    monkeypatch.setattr(versions_snugbert.transformers, "__version__", installed["transformers"])
    check_versions()
    installed[package] = found
    monkeypatch.setattr(versions_snugbert.transformers, "__version__", installed["transformers"])
    needed = f"{package}{WORKING_VERSIONS[package]}"
    with pytest.raises(
        ImportError, match=re.escape(f'but {package} {found} is installed. Run: pip install "{needed}"')
    ):
        check_versions()


@pytest.mark.parametrize("part", ["configuration", "tokenization", "modeling"])
def test_files_that_auto_classes_open_check_the_versions_first(part):
    """Before they import names that old versions lack."""
    tree = ast.parse((ROOT / f"snugbert/{part}_snugbert.py").read_text("utf-8"))
    first = next(node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    assert isinstance(first, ast.ImportFrom) and first.module == "versions_snugbert"
