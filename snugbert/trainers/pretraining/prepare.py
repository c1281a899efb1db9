"""`snugbert prepare`: tokenizes text once, on one machine or shared among several.

`snugbert pretrain` prepares its text itself, in a cache. Use this command to prepare a corpus on several machines, or
on machines that do not train:

    snugbert prepare --tokenizer_name tokenizer --train_file 'corpus/*.txt.gz' --output_dir prepared --shard 1/4
    snugbert pretrain --corpus prepared ...

Text and corpus may be in a bucket, such as s3://bucket/prepared.
"""

from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.data.corpus.corpus import check_unknown_tokens, open_corpus
from snugbert.data.corpus.part_files import CorpusFolder
from snugbert.data.corpus.preparation import find_missing_parts, prepare_parts
from snugbert.data.corpus.text_parts import plan_parts
from snugbert.data.data_arguments import OutputArguments, PreparationArguments
from snugbert.data.languages import choose_language, stored_in_tokenizer
from snugbert.errors import InputError, shorten
from snugbert.families.loading import check_ids, load_tokenizer


def run_preparation(
    tokenizer_args: TokenizerArguments, text_args: PreparationArguments, output_args: OutputArguments
) -> None:
    """Tokenizes a shard of the text."""
    if output_args.output_dir is None:
        raise InputError("--output_dir is missing. Pass a folder for the prepared corpus.")
    output = CorpusFolder(output_args.output_dir)
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
        number = f"{len(missing)} of {len(parts)} parts"
        print(f"Shard {output_args.shard} is in {output}. Still missing {number}: {shorten(missing)}")
        return
    corpus = open_corpus(output.place, tokenizer)
    print(f"{output}: {corpus}")
    check_unknown_tokens(corpus, tokenizer, str(output))
