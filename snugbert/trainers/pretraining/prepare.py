"""`snugbert prepare`: tokenizes text once, on one machine or shared among several.

`snugbert pretrain` prepares its text itself, in a cache. Use this command to prepare a corpus on several machines, or
on machines that do not train:

    snugbert prepare --tokenizer_name tokenizer --train_file 'corpus/*.txt.gz' --output_dir prepared --shard 1/4
    snugbert pretrain --corpus prepared ...

Text and corpus may be in a bucket, such as s3://bucket/prepared. This command verifies all parts:

    snugbert prepare --check --output_dir prepared --shard 1/4
"""

import threading
from typing import Any

from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.data.corpus.corpus import check_unknown_tokens, open_corpus
from snugbert.data.corpus.part_files import CorpusFolder, DamagedError, shared_settings, verify_part
from snugbert.data.corpus.preparation import find_missing_parts, prepare_parts
from snugbert.data.corpus.text_parts import plan_parts
from snugbert.data.data_arguments import OutputArguments, PreparationArguments
from snugbert.data.languages import choose_language, stored_in_tokenizer
from snugbert.errors import InputError, format_count
from snugbert.families.loading import check_ids, load_tokenizer
from snugbert.progress import Progress
from snugbert.storage.urls import ask_together


def run_preparation(
    tokenizer_args: TokenizerArguments, text_args: PreparationArguments, output_args: OutputArguments
) -> None:
    """Tokenizes a shard of the text, or verifies a corpus."""
    if output_args.output_dir is None:
        raise InputError("--output_dir is missing. Pass a folder for the prepared corpus.")
    output = CorpusFolder(output_args.output_dir)
    if output_args.check:
        check_parts(output, output_args.num_shards)
        return
    if tokenizer_args.tokenizer_name is None:
        raise InputError("--tokenizer_name is missing. Pass a tokenizer folder or a tokenizer on the Hub.")
    tokenizer = load_tokenizer(tokenizer_args)
    check_ids(tokenizer, tokenizer_args.tokenizer_name)
    text_args.language = choose_language(
        text_args.language, [stored_in_tokenizer(tokenizer, tokenizer_args.tokenizer_name)]
    )
    parts = plan_parts(text_args, output_args.num_shards, deduplicate=text_args.deduplicate)
    shard = parts[output_args.shard_number - 1 :: output_args.num_shards]
    prepare_parts(
        output_args.output_dir,
        shard,
        tokenizer,
        text_args.sentence_language,
        num_workers=text_args.preprocessing_num_workers,
        replace=output_args.overwrite_output_dir,
        lines_language=text_args.language if text_args.lines_are_sentences else None,
        store_words=output_args.store_words,
    )
    if missing := find_missing_parts(output, parts, shard[0]):
        print(
            f"Shard {output_args.shard} is in {output}. Still missing {len(missing)} of {len(parts)} parts: "
            f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}"
        )
        return
    corpus = open_corpus(output.place, tokenizer)
    print(f"{output}: {corpus}")
    check_unknown_tokens(corpus, tokenizer, str(output))


def check_parts(output: CorpusFolder, num_shards: int = 1) -> None:
    """Reads all parts of a corpus. Prints which are missing or damaged, and which of `num_shards` to repeat."""
    states, sizes = output.find_states(), output.find_parts()
    problems = {name: f"{output}/{name} {state}." for name, state in states.items() if state}
    settings: dict[str, dict[str, Any]] = {}
    lock = threading.Lock()
    with Progress("checking", sum(sizes.values()), "bytes") as progress:

        def check(name: str) -> None:
            try:
                settings[name] = shared_settings(verify_part(output.locate(name), sizes[name]).record)
            except DamagedError as error:
                problems[name] = str(error)
            with lock:
                progress.update(sizes[name])

        ask_together(check, sizes)
    first = min(settings, default="")
    for name in settings:
        if settings[name] != settings[first]:
            problems[name] = f"{output}/{name} has other settings, or another version of the dataset, than {first}."
    for name in sorted(problems):
        print(problems[name])
    print(f"{output}: complete parts: {len(states) - len(problems)} of {len(states)}")
    if problems:
        shards = sorted({[*states].index(name) % num_shards + 1 for name in problems})
        again = "with " + ", ".join(f"--shard {shard}/{num_shards}" for shard in shards)
        raise InputError(
            f"--check: {output}: {format_count(len(problems), 'part')} missing, damaged or different. Remove damaged "
            f"parts, and run `snugbert prepare --overwrite_output_dir` again "
            f"{again if num_shards > 1 else 'for all shards'}."
        )
