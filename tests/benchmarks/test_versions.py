"""Two versions of the code are compared with each other, not one with itself."""

import re

import pytest
from benchmark_files import BENCHMARKS


def test_each_version_runs_its_own_code(tmp_path, monkeypatch):
    import versions

    package = tmp_path / "earlier/snugbert"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("raise SystemExit('this is the earlier code')")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.chdir(BENCHMARKS.parent)  # where Python would find the current package first
    with pytest.raises(SystemExit, match=rf"{re.escape(str(package.parent))}: .*\nthis is the earlier code"):
        versions.measure(package.parent, ["--help"])
