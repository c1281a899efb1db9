"""Undamaged files of every format, and how commands read them. `fuzz.py` mutates and reads the files."""

import csv
import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from mutations import compress_zstd
from prepared import content, prepare
from synthetic import make_trainer

import snugbert
from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.cli.parser import parse_arguments
from snugbert.data.corpus import preparation
from snugbert.data.corpus.corpus import open_corpus
from snugbert.data.data_arguments import PreparationArguments
from snugbert.data.documents import read_documents
from snugbert.families.loading import check_ids, load_tokenizer
from snugbert.families.reading import read_checkpoint as read_checkpoint_to_convert
from snugbert.families.sentence_transformers_files import copy_files
from snugbert.families.weight_files import read_weights
from snugbert.prediction.make_predictor import find_reader, make_predictor
from snugbert.prediction.prediction_arguments import PredictionArguments
from snugbert.reports import pretraining_plots
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.labels import choose_labels, encode_labels
from snugbert.tasks.tagging import Tagging
from snugbert.tasks.task_arguments import GlueDataArguments

WORDS = [f"w{number}" for number in range(90)]


def make_small() -> None:
    """Makes small blocks of corpora, and no plots, which take longer than reading. For this process."""
    preparation.BLOCK_TOKENS, preparation.BATCH_CHARACTERS = 60, 100
    pretraining_plots.draw_training = lambda *arguments: None


def make_tokenizer() -> snugbert.SnugBertTokenizer:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    return snugbert.SnugBertTokenizer({token: index for index, token in enumerate(tokens)})


def make_texts(number: int) -> list[str]:
    generator = random.Random(0)
    return [" ".join(generator.choices(WORDS, k=generator.randint(2, 9))) for _ in range(number)]


def write_corpus(folder: Path) -> None:
    (folder / "text.txt").write_text("\n\n".join(make_texts(30)))
    prepare(folder, make_tokenizer(), folder / "text.txt", language=None, num_workers=1)


def read_corpus(folder: Path, mutated: Path) -> None:
    tokenizer = make_tokenizer()
    corpus = open_corpus(folder, tokenizer)
    for document in content(corpus):
        assert document and all(document), "a document or a sentence is empty"
        assert max(map(max, document)) < len(tokenizer), "a token is outside the vocabulary"
    assert corpus.num_documents == sum(len(block.documents) - 1 for block in corpus.blocks)
    prepare(folder, tokenizer, folder / "text.txt", language=None, num_workers=1)


def write_checkpoint(folder: Path) -> None:
    make_trainer(folder, size=40, max_steps=2, save_steps=2).train()


def read_checkpoint(folder: Path, mutated: Path) -> None:
    trainer = make_trainer(folder, size=40, max_steps=3, save_strategy="no")
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    assert trainer.state.global_step == 3, "the run did not continue"


def write_tables(folder: Path) -> None:
    """Writes the same rows as TSV, CSV, JSON and CoNLL, plain and compressed, and rows of other kinds."""
    texts = make_texts(12)
    rows = [{"sentence1": text, "sentence2": f'"{text}", 1', "label": ["no", "yes"][text > "w5"]} for text in texts]
    frame = pandas.DataFrame(rows)
    contents = {
        "csv": frame.to_csv(index=False),
        "tsv": frame.to_csv(index=False, sep="\t", quoting=csv.QUOTE_NONE),
        "json": json.dumps(rows),
        "jsonl": frame.to_json(orient="records", lines=True),
        "conll": "\n\n".join("\n".join(f"{word} O" for word in text.split()) for text in texts),
    }
    for suffix, text in contents.items():
        (folder / f"table.{suffix}").write_text(text)
        (folder / f"table.{suffix}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        (folder / f"table.{suffix}.zst").write_bytes(compress_zstd(text.encode()))
    frame.rename(columns={"sentence1": "text"}).to_parquet(folder / "table.parquet")
    tagged = [{"tokens": text.split(), "ner_tags": ["O"] * len(text.split())} for text in texts]
    (folder / "tagged.jsonl").write_text("\n".join(map(json.dumps, tagged)))


def read_table(folder: Path, mutated: Path) -> None:
    if mutated.suffix == ".parquet":
        assert all(isinstance(line, str) for document in read_documents([mutated]) for line in document)
    elif mutated.name.startswith("tagged") or ".conll" in mutated.name:
        split = Tagging().read_splits({"train": [mutated]})["train"]
        assert all(sentence.words for sentence in split.sentences), "a sentence is empty"
    else:
        task = TextClassification(GlueDataArguments(train_file=str(mutated), validation_file=str(mutated)))
        splits = task.read_splits({"train": [mutated]})
        encoded = encode_labels(splits["train"], choose_labels(None, splits, []))
        assert len(encoded) == len(splits["train"].texts[0]), "an example has no label"


EMBEDDER: dict[str, Any] = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    ],
    "config.json": {"model_type": "bert", "architectures": ["BertModel"]},
    "config_sentence_transformers.json": {"prompts": {"query": "q"}, "activation_fn": "torch.nn.Tanh"},
    "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False},
    "1_Pooling/config.json": {"embedding_dimension": 8, "pooling_mode": ["cls", "mean"]},
    "2_Dense/config.json": {"in_features": 8, "out_features": 4, "bias": True},
}


def write_embedder(folder: Path) -> None:
    for name, values in EMBEDDER.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(json.dumps(values))


def read_embedder(folder: Path, mutated: Path) -> None:
    (folder / "copy").mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (folder / "copy" / name).write_text("{}")
    find_reader(folder)
    copy_files(folder, folder / "copy")


def write_yaml(folder: Path) -> None:
    files = f"train_file: [{folder}/flags.yaml, {folder}/*.yaml]"
    (folder / "flags.yaml").write_text(
        f"tokenizer_name: {folder}\n{files}\nlanguage: en\npreprocessing_num_workers: 3\n"
    )


def read_yaml(folder: Path, mutated: Path) -> None:
    types = [TokenizerArguments, PreparationArguments]
    tokenizer, text = parse_arguments(types, ["--config", str(mutated)], "snugbert prepare", "")
    assert isinstance(tokenizer.trust_remote_code, bool) and isinstance(text.train_file, list | None)


def write_model(folder: Path) -> None:
    """Writes the model, and the same in shards."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    sizes |= {"vocab_size": len(make_tokenizer()), "max_position_embeddings": 64}
    more = {"document_windows": {"max_seq_length": 32, "doc_stride": 8}, "thresholds": {"yes": 0.4}}
    config = snugbert.SnugBertConfig(id2label={0: "no", 1: "yes"}, text_columns=["text"], **sizes, **more)
    model = snugbert.SnugBertForSequenceClassification(config)
    model.save_pretrained(folder)
    model.save_pretrained(folder / "shards", max_shard_size="5KB")
    make_tokenizer().save_pretrained(folder)
    (folder / "rows.jsonl").touch()


def read_model(folder: Path, mutated: Path) -> None:
    if mutated.parent.name == "shards":
        assert all(tensor.numel() for tensor in read_weights(mutated.parent).values())
        return
    read_checkpoint_to_convert(folder)
    rows = [{"text": text} for text in make_texts(4)]
    args = PredictionArguments(str(folder), str(folder / "rows.jsonl"), str(folder / "out.jsonl"), use_cpu=True)
    predictor = make_predictor(folder, args, rows)
    for prediction in predictor.answer([predictor.read(row) for row in rows]):
        probabilities = prediction.get("probabilities", {})
        assert all(0 <= probability <= 1 for probability in probabilities.values()), "a probability is out of range"


def write_tokenizers(folder: Path) -> None:
    make_tokenizer().save_pretrained(folder / "json")
    (folder / "txt").mkdir()
    (folder / "txt/vocab.txt").write_text("\n".join(make_tokenizer().get_vocab()) + "\n")


def read_tokenizer(folder: Path, mutated: Path) -> None:
    tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=str(mutated.parent)))
    check_ids(tokenizer, str(mutated.parent))
    ids = np.concatenate(tokenizer(make_texts(4), truncation=True, max_length=8)["input_ids"])
    assert len(ids) and 0 <= ids.min() and ids.max() < len(tokenizer), "a token is outside the vocabulary"


# Writes undamaged files into an empty folder; the names of the files to mutate; reads the folder as a command does.
# A reader gets the folder and the mutated file. It raises AssertionError if what it read is not plausible.
FORMATS = {
    "corpus": (write_corpus, ("*.arrow", "*.index"), read_corpus),
    "checkpoint": (write_checkpoint, ("checkpoint-2/*",), read_checkpoint),
    "table": (write_tables, ("table.*", "tagged.*"), read_table),
    "embedder": (write_embedder, ("*.json", "*/*.json"), read_embedder),
    "yaml": (write_yaml, ("flags.yaml",), read_yaml),
    "tokenizer": (write_tokenizers, ("json/*.json", "txt/vocab.txt"), read_tokenizer),
    "model": (write_model, ("config.json", "*.safetensors", "shards/model*"), read_model),
}
