"""Virtual environments that lack some installed packages."""

import os
import site
import venv
from pathlib import Path


def environment_without(folder: Path, *names: str) -> Path:
    """Creates a virtual environment with links to the packages of this one, except some.

    Args:
        folder: folder of the new environment.
        names: packages to leave out, by their names in site-packages up to the first dash.

    Returns:
        The Python of the new environment.
    """
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for source in filter(os.path.isdir, site.getsitepackages()):
        for entry in Path(source).iterdir():
            is_left_out = entry.name.partition("-")[0] in names or entry.suffix == ".pth"  # of editable installations
            if not is_left_out and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"
