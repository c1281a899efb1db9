"""A Hub without a network: pushes are intercepted just before the network."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi, constants, repocard
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.utils import filter_repo_objects

Repositories = dict[str, dict[str, bytes]]  # name -> path -> content


@contextmanager
def intercept_pushes() -> Iterator[Repositories]:
    """Yields the repositories that pushes write to. Their cards can be read.

    Trainer uploads whole folders. The name of such a repository ends with the message of the commit.
    """
    repositories: Repositories = {}

    def create_commit(self, repo_id, operations, **_):
        files = {operation.path_in_repo: Path(operation.path_or_fileobj).read_bytes() for operation in operations}
        repositories.setdefault(repo_id, {}).update(files)

    def upload_folder(self, repo_id, folder_path, ignore_patterns=(), commit_message="", **_):
        files = {str(file.relative_to(folder_path)): file for file in Path(folder_path).rglob("*") if file.is_file()}
        uploaded = filter_repo_objects(files, ignore_patterns=ignore_patterns)
        repositories[f"{repo_id}: {commit_message}"] = {name: files[name].read_bytes() for name in uploaded}
        done: Future = Future()
        done.set_result(None)
        return done

    def download(repo_id, filename, **_):
        if filename not in repositories.get(repo_id, {}):
            raise EntryNotFoundError(filename)
        file = Path(constants.HF_HUB_CACHE) / f"{repo_id.replace('/', '-')}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(repositories[repo_id][filename])
        return file

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HfApi, "create_repo", lambda self, repo_id, **_: SimpleNamespace(repo_id=repo_id))
        patch.setattr(HfApi, "whoami", lambda self, *_, **__: {"name": "me"})
        patch.setattr(HfApi, "create_commit", create_commit)
        patch.setattr(HfApi, "upload_folder", upload_folder)
        patch.setattr(repocard, "hf_hub_download", download)
        yield repositories


def write_cache(repositories: Repositories, cache: Path) -> None:
    """Writes repositories to a cache, as if they had been downloaded."""
    for name, files in repositories.items():
        folder = cache / f"models--{name.replace('/', '--')}"
        for path, content in {f"snapshots/{'0' * 40}/{path}": content for path, content in files.items()}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        (folder / "refs").mkdir()
        (folder / "refs/main").write_text("0" * 40)
