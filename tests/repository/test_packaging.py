"""The packaging files agree: versions, lock files and licenses. `make test-lowest` installs the lowest versions."""

import re
import tomllib
from pathlib import Path

import pytest
from licenses import TABLE, find_refused, list_locked, read_table
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import snugbert

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
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints-lowest.txt").read_text("utf-8"), re.MULTILINE))
    for requirement in REQUIREMENTS:
        (floor,) = (Version(each.version) for each in requirement.specifier if each.operator == ">=")
        assert Version(pins[canonicalize_name(requirement.name)]) == floor, requirement


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-lowest.txt", "constraints-serve.txt"])
def test_every_locked_package_has_hashes_and_no_index(name):
    lock = (ROOT / name).read_text("utf-8")
    entries = [entry for entry in re.split(r"\n(?=\S)", lock) if not entry.startswith("#")]
    assert len(entries) > 100
    pattern = r"[\w.-]+==[^\s;]+( ; [^\n]*?)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n?"
    assert [entry for entry in entries if not re.fullmatch(pattern, entry)] == []


def test_every_dependency_has_a_license_that_allows_to_depend_on_it():
    table = read_table()
    assert table.keys() == list_locked(), f"Run python tests/licenses.py, and complete {TABLE.name} by hand."
    # Only the environment of the servers has moocore.
    assert find_refused(table) == {"moocore": "LGPL-2.1-or-later"}


def test_the_citation_has_the_version():
    assert f"\nversion: {snugbert.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
