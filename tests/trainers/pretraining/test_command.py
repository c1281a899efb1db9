"""`snugbert pretrain` before it runs."""

import subprocess
import sys

HEAVY = ("datasets", "pyarrow", "joblib", "matplotlib", "evaluate", "sentencex", "sklearn", "transformers.trainer")


def test_importing_the_command_imports_nothing_heavy():
    """`snugbert pretrain --help` must be fast."""
    code = "import sys, snugbert.trainers.pretraining.command; print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
    assert "snugbert.trainers.pretraining.arguments" in loaded
    assert not loaded & set(HEAVY)
