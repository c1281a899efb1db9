"""The versions in the packaging files agree, and `make test-lowest` installs the lowest ones."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import snugbert
import snugbert_cli

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
REQUIREMENTS = [
    Requirement(text)
    for texts in (
        PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"].values(),
        PROJECT["dependency-groups"]["dev"],
    )
    for text in texts
    if not text.startswith("snugbert[") and "== 'darwin'" not in text
]


def test_the_minimum_versions_are_tested():
    pins = {}
    for line in (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, _, version = line.partition("==")
            pins[canonicalize_name(name)] = Version(version)
    for requirement in REQUIREMENTS:
        (floor,) = (Version(each.version) for each in requirement.specifier if each.operator == ">=")
        assert pins[canonicalize_name(requirement.name)] == floor, requirement


def test_commands_name_an_extra_for_each_of_its_packages():
    extras = PROJECT["project"]["optional-dependencies"]
    names = {Requirement(text).name for text in (*extras["train"], *extras["demo"])} - {"snugbert"}
    modules = {"sklearn" if name == "scikit-learn" else name for name in names}
    assert modules == set(snugbert_cli.EXTRA_MODULES)


def test_the_citation_has_the_version():
    assert f"\nversion: {snugbert.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
