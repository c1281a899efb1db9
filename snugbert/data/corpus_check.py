"""Verifies a prepared corpus in a folder or a bucket: every part is there, undamaged, and has the same settings."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from snugbert.data.corpus_folder import CONNECTIONS, PART_NAME, CorpusFolder
from snugbert.data.corpus_index import open_index, read_index
from snugbert.data.part_files import DATASET, END_OF_STREAM
from snugbert.data.preparation import part_name
from snugbert.errors import InputError, format_count
from snugbert.progress import Progress
from snugbert.remote_files import join, open_file

LARGEST_VOCABULARY = 2**32  # token ids have at most 32 bits


def check_parts(output: CorpusFolder, num_shards: int = 1, vocab_size: int | None = None) -> None:
    """Reads all parts of a corpus. Prints which ones are missing or damaged, and how many are complete.

    Args:
        output: the folder of the corpus.
        num_shards: number of shards that prepared it, to name the shards to start again.
        vocab_size: size of the vocabulary. None: unknown.

    Raises:
        InputError: there is no corpus, a part does not belong to it, or parts are missing or damaged.
    """
    sizes = output.measure_parts()
    if not sizes:
        raise InputError(f"--check: {output} contains no prepared corpus. Run `snugbert prepare` without --check.")
    num_parts = next((int(match[1]) for match in map(PART_NAME.fullmatch, sizes) if match), 0)
    names = [part_name(number, num_parts) for number in range(num_parts)]
    if stray := sizes.keys() - set(names):
        raise InputError(f"--check: {output}/{min(stray)} does not belong to the other {num_parts} parts. Remove it.")
    problems = {name: "is missing" for name in names if name not in sizes} | _find_damage(output, sizes, vocab_size)
    for name, problem in sorted(problems.items()):
        print(f"{output}/{name} {problem}.")
    print(f"{output}: {num_parts - len(problems)} of {format_count(num_parts, 'part')} are complete.")
    if problems:
        shards = sorted({names.index(name) % num_shards + 1 for name in problems})
        again = ", ".join(f"--shard {shard}/{num_shards}" for shard in shards) if num_shards > 1 else "all shards"
        raise InputError(
            f"--check: {output} lacks {format_count(len(problems), 'part')}. Remove the damaged ones. Then run "
            f"`snugbert prepare` again with {again}."
        )


def _find_damage(output: CorpusFolder, sizes: Mapping[str, int], vocab_size: int | None) -> dict[str, str]:
    """Returns the names of damaged parts, and of parts that do not fit to most others, and what is wrong."""
    problems: dict[str, str] = {}
    settings: dict[str, str] = {}
    done = 0
    with Progress("checking", sum(sizes.values()), "bytes") as progress, ThreadPoolExecutor(CONNECTIONS) as threads:
        found = threads.map(lambda name: _check_part(output, name, vocab_size or LARGEST_VOCABULARY), sizes)
        for name, result in zip(sizes, found, strict=True):
            if isinstance(result, InputError):
                problems[name] = f"is damaged ({result})"
            else:
                settings[name] = json.dumps(result, sort_keys=True)
            done += sizes[name]
            progress.move_to(done)
    usual = Counter(settings.values()).most_common(1)
    others = [name for name in settings if settings[name] != usual[0][0]]
    return problems | dict.fromkeys(others, "has other settings or another version of the dataset than most parts")


def _check_part(output: CorpusFolder, name: str, vocab_size: int) -> list[Any] | InputError:
    """Returns the settings of a part and the version of its dataset, if it has one, or what is wrong."""
    part = output.folder / name if output.url is None else join(output.url, name)
    try:
        index = open_index(part, vocab_size) if isinstance(part, Path) else read_index(part)
        with open_file(part) as stream:
            if stream.read(len(index.schema)) != index.schema.tobytes():
                raise InputError("it does not belong to its index")
            for digest, (start, end) in zip(index.digests, pairwise(index.offsets.tolist()), strict=True):
                if hashlib.sha256(stream.read(end - start)).digest() != digest.tobytes():
                    raise InputError(f"the checksum of bytes {start:,} to {end:,} does not match the index")
            if stream.read() != END_OF_STREAM:
                raise InputError("truncated")
        if (highest := len(index.counts.token_ids) - 1) >= vocab_size:
            raise InputError(f"token id {highest} is outside the vocabulary of {vocab_size}")
        sources = [source for source in index.origin["sources"] if source["name"].startswith(DATASET)]
        return [index.origin["settings"], sources]
    except (InputError, OSError) as error:
        return InputError(str(error))
