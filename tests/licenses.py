"""The licenses of all packages in the lock files: `python tests/licenses.py` writes the table DEPENDENCIES.md.

`make release-check` runs `python tests/licenses.py --check`, which compares the table with the installed packages.
Rows of packages that are not installed, such as those for Windows or of `.venv-serve`, and of packages with unclear
metadata are kept. Write new ones of these by hand, as the package's license file says.
"""

import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "DEPENDENCIES.md"
HEAD = """# Dependencies

SnugBERT is tested with these packages, and contains none of them. Most are needed only for an extra or for
development. The lock files (`constraints*.txt`) list their versions. The NVIDIA libraries come with PyPI's torch for
Linux, and not with torch's CPU wheels.

On Linux with Python 3.11 and torch's CPU wheel, loading models takes 38 packages and 1.2 GB, of which torch and its
dependencies are 0.9 GB. `[train]` takes 81 packages and 1.8 GB. The largest of these are PyArrow (170 MB), SciPy and
scikit-learn (190 MB), pandas (84 MB), and matplotlib with its fonts (65 MB). Only sweeps use Optuna, Alembic and
SQLAlchemy (37 MB).

| package | license |
| --- | --- |
"""
# An Apache-2.0 package may depend on packages with these. BSD is the old classifier, which does not name the clauses.
ALLOWED = set(
    "0BSD Apache-2.0 BSD BSD-2-Clause BSD-3-Clause BSL-1.0 CC0-1.0 CNRI-Python ISC LLVM-exception "
    "LicenseRef-NVIDIA-Proprietary LicenseRef-Public-Domain MIT MIT-0 MIT-CMU MPL-2.0 PSF-2.0 Zlib".split()
)
CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


def list_locked() -> set[str]:
    """Returns the names of the packages in the lock files."""
    locks = "".join(file.read_text(encoding="utf-8") for file in ROOT.glob("constraints*.txt"))
    return set(re.findall(r"^([\w.-]+)==", locks, re.MULTILINE))


def read_table() -> dict[str, str]:
    """Returns the license of each package in the table."""
    return dict(re.findall(r"^\| ([a-z][\w.-]*) \| (.+) \|$", TABLE.read_text(encoding="utf-8"), re.MULTILINE)[1:])


def find_license(package: Distribution) -> str:
    """Returns the license in a package's metadata as an SPDX expression, or BSD, or an empty text."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression  # not in packaging 24.0

    metadata = package.metadata
    text = metadata.get("License-Expression") or metadata.get("License") or ""
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        titles = [each.rpartition(" :: ")[2] for each in metadata.get_all("Classifier") or [] if "License ::" in each]
        return CLASSIFIERS.get(titles[0], "") if len(titles) == 1 else ""


def find_refused(table: dict[str, str]) -> dict[str, str]:
    """Returns the packages of a table whose license is unknown or not allowed."""
    ids = {name: set(re.findall(r"[\w.-]+", text)) - {"AND", "OR", "WITH"} for name, text in table.items()}
    return {name: table[name] for name in table if not ids[name] or ids[name] - ALLOWED}


def main() -> None:
    """Writes the table, or checks it."""
    installed = {canonicalize_name(each.metadata["Name"]): find_license(each) for each in distributions()}
    table = read_table() | {name: text for name, text in installed.items() if text}
    table = {name: text for name, text in table.items() if name in list_locked()}
    rows = HEAD + "".join(f"| {name} | {text} |\n" for name, text in sorted(table.items()))
    if "--check" not in sys.argv:
        TABLE.write_text(rows, encoding="utf-8")
    elif rows != TABLE.read_text(encoding="utf-8"):
        changed = {name: text for name, text in table.items() if text != read_table().get(name)}
        sys.exit(f"{TABLE.name} is out of date (changed licenses: {changed}). Run: python tests/licenses.py")
    print(f"{TABLE.name}: {len(table)} packages")


if __name__ == "__main__":
    main()
