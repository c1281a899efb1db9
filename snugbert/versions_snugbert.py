"""The versions of transformers and torch that SnugBERT works with.

Whoever loads a model from the Hub has what he has: the files that transformers loads first import this one before
anything that other versions lack, so that he learns which versions work.
"""

from importlib.metadata import PackageNotFoundError, version

import transformers
from packaging.specifiers import SpecifierSet
from packaging.version import Version

# As in pyproject.toml. The tokenizer alone works without torch.
WORKING_VERSIONS = {"transformers": ">=5.17,<6", "torch": ">=2.11"}


def check_versions() -> None:
    """Makes sure that the installed versions are among [`WORKING_VERSIONS`].

    Raises:
        ImportError: naming those that are installed, and those that work.
    """
    installed = {"transformers": transformers.__version__}
    try:
        installed["torch"] = version("torch")
    except PackageNotFoundError:
        pass
    for package, found in installed.items():
        working = WORKING_VERSIONS[package]
        # Builds of vendors, such as 2.11.0a0+nv26.3, are what will be, or is, that release.
        if not SpecifierSet(working).contains(Version(found).base_version):
            raise ImportError(
                f"SnugBERT works with {package} {working}, and {package} {found} is installed: "
                f'pip install "{package}{working}"'
            )


check_versions()
