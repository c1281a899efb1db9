"""`make lock`: writes the lock files, which pin every package of an environment with the hashes of its files.

uv chooses the versions. It keeps the versions of the existing lock files, unless you pass an option:
`make lock LOCK=--upgrade` or `make lock LOCK='--upgrade-package tqdm'`. uv reads PyPI. torch's CPU wheels are on
another index, so their hashes come from pip and its configuration, such as PIP_EXTRA_INDEX_URL.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMON = "--generate-hashes --no-annotate --quiet --python-version 3.11 --custom-compile-command".split()
LINUX = "--python-platform x86_64-manylinux_2_28"
LOCKS = {
    "constraints.txt": "--universal --all-extras --group dev --group minicons --group reporters --group docs "
    "--group stock-suite --group release --group install pyproject.toml",
    # seqeval has no wheel.
    "constraints-lowest.txt": f"{LINUX} --resolution lowest-direct --only-binary :all: --no-binary seqeval "
    "--all-extras --group dev pyproject.toml",
    "constraints-serve.txt": f"{LINUX} --group pyproject.toml:serve",
}
PYTHON_VERSIONS = ("3.11", "3.12", "3.13", "3.14")
TORCH = re.compile(r"^torch==(\S+)((?: \\\n +--hash=sha256:\w+)*)", re.MULTILINE)


def write_lock(name: str, options: list[str]) -> None:
    """Writes one lock file, with the hashes of torch's CPU wheels."""
    path = ROOT / name
    before = TORCH.search(path.read_text(encoding="utf-8"))
    command = [Path(sys.executable).with_name("uv"), "pip", "compile", *COMMON, "make lock", *LOCKS[name].split()]
    subprocess.run([*command, *options, "--output-file", name], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    lock = path.read_text(encoding="utf-8")
    torch = TORCH.search(lock)
    assert before and torch
    hashes = set(re.findall(r"sha256:\w+", torch[2]))
    hashes |= {hash_torch(torch[1], python) for python in PYTHON_VERSIONS} - {""}
    if before[1] == torch[1]:  # keeps the hashes of files that pip does not find here
        hashes |= set(re.findall(r"sha256:\w+", before[2]))
    lines = " \\\n    ".join([f"torch=={torch[1]}", *(f"--hash={each}" for each in sorted(hashes))])
    path.write_text(lock.replace(torch[0], lines), encoding="utf-8")


def hash_torch(version: str, python: str) -> str:
    """Returns the hash of the file that pip would install here, or an empty text if there is none."""
    command = "pip install --quiet --dry-run --ignore-installed --no-deps --only-binary :all: --python-version"
    command = [sys.executable, "-m", *command.split(), python, "--report", "-", f"torch=={version}"]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if process.returncode != 0:
        return ""
    (install,) = json.loads(process.stdout)["install"]
    return f"sha256:{install['download_info']['archive_info']['hashes']['sha256']}"


if __name__ == "__main__":
    for lock_file in LOCKS:
        write_lock(lock_file, sys.argv[1:])
