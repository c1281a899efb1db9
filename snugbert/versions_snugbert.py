"""Checks the installed versions of transformers and torch.

Hub users may have an unsupported version. SnugBERT's other files import this module first, so that these users get a
clear error.
"""

from importlib.metadata import PackageNotFoundError, version

import transformers
from packaging.specifiers import SpecifierSet
from packaging.version import Version

# As in pyproject.toml. The tokenizer works without torch.
WORKING_VERSIONS = {"transformers": ">=5.17,<6", "torch": ">=2.11"}


def check_versions() -> None:
    """Checks that the installed versions are in [`WORKING_VERSIONS`]."""
    installed = {"transformers": transformers.__version__}
    try:
        installed["torch"] = version("torch")
    except PackageNotFoundError:
        pass
    for package, found in installed.items():
        working = WORKING_VERSIONS[package]
        # Vendor builds such as 2.11.0a0+nv26.3 count as the release.
        if not SpecifierSet(working).contains(Version(found).base_version):
            raise ImportError(
                f"SnugBERT needs {package} {working}, but {package} {found} is installed. Run: "
                f'pip install "{package}{working}"'
            )


check_versions()
