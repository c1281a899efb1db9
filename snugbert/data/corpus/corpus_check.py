"""Verifies a prepared corpus in a folder or a bucket: every part is there, undamaged, and has the same settings."""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from snugbert.data.corpus.corpus_folder import CorpusFolder
from snugbert.data.corpus.corpus_index import open_index, read_index
from snugbert.data.corpus.part_files import (
    DATASET,
    END_OF_STREAM,
    INDEX_ADVICE,
    NO_INDEX,
    DamagedError,
    damaged,
    find_states,
)
from snugbert.errors import InputError, format_count
from snugbert.progress import Progress
from snugbert.storage.urls import ask_together, join, open_file


def check_parts(output: CorpusFolder, num_shards: int = 1) -> None:
    """Reads all parts of a corpus. Prints which parts are missing or damaged, and how many are complete.

    Args:
        output: the folder of the corpus.
        num_shards: number of shards that prepared the corpus, to name the shards to repeat.

    Raises:
        InputError: there is no corpus, a part does not belong to it, parts are missing or damaged, or the bucket does
            not answer.
    """
    sizes = output.measure_parts()
    states = find_states(f"--check: {output}", sizes, output.list_names())
    if not states:
        raise InputError(f"--check: {output} contains no prepared corpus. Run `snugbert prepare` without --check.")
    missing = {name: f"{output}/{name} {state}." for name, state in states.items() if state}
    damage, different = _find_damage(output, sizes)
    problems = missing | damage | different
    for name in sorted(problems):
        print(problems[name])
    print(f"{output}: complete parts: {len(states) - len(problems)} of {len(states)}")
    if NO_INDEX in states.values():
        count = format_count([*states.values()].count(NO_INDEX), "part")
        raise InputError(f"--check: {output}: {count} without index. {INDEX_ADVICE}")
    if problems:
        count, verb = format_count(len(problems), "part"), "is" if len(problems) == 1 else "are"
        state = "missing, damaged or different" if different else "missing or damaged"
        remove = "Remove the damaged parts. " if damage else ""
        replace = " --overwrite_output_dir" if different else ""
        shards = sorted({[*states].index(name) % num_shards + 1 for name in problems})
        again = "with " + ", ".join(f"--shard {shard}/{num_shards}" for shard in shards)
        raise InputError(
            f"--check: {output}: {count} {verb} {state}. {remove}Run `snugbert prepare{replace}` again "
            f"{again if num_shards > 1 else 'for all shards'}."
        )


def _find_damage(output: CorpusFolder, sizes: Mapping[str, int]) -> tuple[dict[str, str], dict[str, str]]:
    """Finds damaged parts, and parts whose settings differ from most parts. Returns messages by part name."""
    damage: dict[str, str] = {}
    settings: dict[str, str] = {}
    lock = threading.Lock()
    with Progress("checking", sum(sizes.values()), "bytes") as progress:

        def check(name: str) -> None:
            try:
                settings[name] = _read_settings(output, name, sizes[name])
            except DamagedError as error:
                damage[name] = str(error)
            with lock:
                progress.move_to(progress.done + sizes[name])

        ask_together(check, sizes)
    usual = Counter(settings[name] for name in sizes if name in settings).most_common(1)
    different = [name for name in settings if settings[name] != usual[0][0]]
    problem = "has different settings, or a different version of the dataset, than most parts."
    return damage, {name: f"{output}/{name} {problem}" for name in different}


def _read_settings(output: CorpusFolder, name: str, size: int) -> str:
    """Reads a part of `size` bytes. Returns its settings, and the version of its dataset if it has one.

    Raises:
        DamagedError: the part is damaged.
        InputError: the bucket does not answer.
    """
    part, shown = output.folder / name if output.url is None else join(output.url, name), f"{output}/{name}"
    try:
        index = open_index(part) if isinstance(part, Path) else read_index(part)
        if size != index.file_size:
            raise damaged(shown, f"{size:,} bytes instead of {index.file_size:,}")
        with open_file(part) as stream:
            if stream.read(len(index.schema)) != index.schema.tobytes():
                raise damaged(shown, "the file does not match its index")
            for digest, (start, end) in zip(index.digests, pairwise(index.offsets.tolist()), strict=True):
                if hashlib.sha256(stream.read(end - start)).digest() != digest.tobytes():
                    raise damaged(shown, f"the checksum of bytes {start:,} to {end:,} does not match the index")
            if stream.read() != END_OF_STREAM:
                raise damaged(shown, "cut off")
    except OSError as error:
        raise damaged(shown, error) from error
    sources = [source for source in index.origin["sources"] if source["name"].startswith(DATASET)]
    return json.dumps([index.origin["settings"], sources], sort_keys=True)
