"""`snugbert ner`: every form and scheme of tags, windows that lose no word, the metric, a whole run, and bad input."""

import gzip
import json
import logging
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value
from transformers import AutoModelForTokenClassification, AutoTokenizer, PreTrainedTokenizerBase, pipeline

from snugbert import SnugBertModel, SnugBertTokenizer, cli
from snugbert.command_line import parse_arguments
from snugbert.entity_tags import SCHEMES, decode_tags, encode_tags
from snugbert.errors import InputError
from snugbert.packed_batches import count_tokens
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.ner import task as ner
from snugbert.trainers.ner.command import main
from snugbert.trainers.ner.data import NerDataArguments, NerSplit, Sentence, check_tags, choose_labels, load_splits
from snugbert.trainers.ner.metric import NerMetric

PARTS = ("train", "validation", "test")
FILES = dict(zip(PARTS, ("train", "valid", "test"), strict=True))
# Tjong Kim Sang and De Meulder (2003), tables 1 and 2: articles, sentences, tokens, LOC, MISC, ORG, PER. They count
# the -DOCSTART- lines among the sentences.
PUBLISHED = {
    "train": (946, 14987, 203621, 7140, 3438, 6321, 6600),
    "validation": (216, 3466, 51362, 1837, 922, 1341, 1842),
    "test": (231, 3684, 46435, 1668, 702, 1661, 1617),
}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def conll(data_dir) -> dict[str, NerSplit]:
    """The sentences of CoNLL-2003."""
    files = {f"{part}_file": str(data_dir / "conll2003" / f"{name}.txt.gz") for part, name in FILES.items()}
    return load_splits(NerDataArguments(**files), PARTS)


@pytest.fixture(scope="module")
def part(conll) -> NerSplit:
    """Documents of 400 sentences."""
    last = conll["validation"].sentences[400].document
    return conll["validation"]._replace(sentences=[s for s in conll["validation"].sentences if s.document < last])


@pytest.fixture(scope="module")
def tokenizer(minilm) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(minilm)


def all_tags(split: NerSplit) -> list[list[str]]:
    return [sentence.tags for sentence in split.sentences]


def read(folder: Path, *texts: str, **arguments: object) -> dict[str, NerSplit]:
    """Reads a CoNLL file of each text, for training, validation and test."""
    for part, text in zip(PARTS, texts, strict=False):
        arguments[f"{part}_file"] = str(folder / f"{part}.txt")
        (folder / f"{part}.txt").write_text(text, encoding="utf-8")
    return load_splits(NerDataArguments(**arguments), PARTS[: len(texts)])


# --- reading ----------------------------------------------------------------------------------------------------


def test_conll_2003_as_published(conll):
    for part, (documents, blocks, words, *entities) in PUBLISHED.items():
        sentences = conll[part].sentences
        assert len({sentence.document for sentence in sentences}) == documents
        assert len(sentences) + documents == blocks
        assert sum(len(sentence.words) for sentence in sentences) == words
        kinds = Counter(kind for tags in all_tags(conll[part]) for kind, _, _ in decode_tags(tags))
        assert [kinds[kind] for kind in ("LOC", "MISC", "ORG", "PER")] == entities
    assert choose_labels(conll, ["LABEL_0"]) == [
        "O", "B-LOC", "I-LOC", "B-MISC", "I-MISC", "B-ORG", "I-ORG", "B-PER", "I-PER",
    ]  # fmt: skip


def test_json_lines_and_data_sets_are_the_same(conll, data_dir, tmp_path):
    file = data_dir / "conll2003" / "valid.jsonl.gz"
    split = load_splits(NerDataArguments(validation_file=str(file)), None)["validation"]
    assert [sentence[:2] for sentence in split.sentences] == [s[:2] for s in conll["validation"].sentences]
    assert [s.document for s in split.sentences] == [s.document for s in conll["validation"].sentences]

    names = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
    features = Features({"words": List(Value("string")), "ner": List(ClassLabel(names=names))})
    rows = [{"words": sentence.words, "ner": sentence.tags} for sentence in split.sentences[:100]]
    (tmp_path / "data").mkdir()
    Dataset.from_list(rows, features=features).to_parquet(tmp_path / "data" / "validation.parquet")
    columns = {"text_column_name": "words", "label_column_name": "ner"}
    arguments = NerDataArguments(dataset_name=str(tmp_path / "data"), **columns)
    again = load_splits(arguments, ("validation",), cache_dir=str(tmp_path / "cache"))["validation"]
    assert [sentence[:2] for sentence in again.sentences] == [sentence[:2] for sentence in split.sentences[:100]]
    # In the order of the data set's classes or not, it is the checkpoint's labels that keep their order.
    splits = {"train": split}
    assert choose_labels(splits, names) == names and choose_labels(splits, names[:3])[1:3] == ["B-LOC", "I-LOC"]


def test_columns_documents_and_compressed_files(tmp_path):
    text = (
        "-DOCSTART- -X- O\n\n\u00a0Jo\u00a0 NN B-PER\n  Li   NN   I-PER \n\n\n'  '' O\n-DOCSTART- -X- O\r\na NN O\r\n"
    )
    sentences = read(tmp_path, text)["train"].sentences
    assert sentences == [
        Sentence(["\u00a0Jo\u00a0", "Li"], ["B-PER", "I-PER"], 3, 0),  # a no-break space may be a part of a word
        Sentence(["'"], ["O"], 7, 0),
        Sentence(["a"], ["O"], 9, 1),
    ]
    tabs = re.sub(" +", "\t", text.replace("  Li   NN   I-PER ", "Li NN I-PER"))
    assert read(tmp_path, tabs)["train"].sentences == sentences
    for name, data in (
        ("a.gz", gzip.compress(text.encode())),
        ("a.zst", pa.compress(text.encode(), "zstd", asbytes=True)),
    ):
        (tmp_path / name).write_bytes(data)
        splits = load_splits(NerDataArguments(train_file=str(tmp_path / name)), ("train",))
        assert splits["train"].sentences == sentences
    # Words in the second column, tags in the first; a test file may have no tags.
    swapped = {"text_column_name": "2", "label_column_name": "1"}
    splits = read(tmp_path, "B-PER Jo 7\nO a 8\n\nO b 9\n", **swapped, max_train_samples=1)
    assert splits["train"].sentences == [Sentence(["Jo", "a"], ["B-PER", "O"], 1, None)]
    words = read(tmp_path, "Jo B-PER\n", "a O\n", "Jo\na\n\nb\n")["test"].sentences
    assert words == [Sentence(["Jo", "a"], None, 1, None), Sentence(["b"], None, 4, None)]


# --- schemes ----------------------------------------------------------------------------------------------------


def converted(tags: list[str], scheme: str) -> list[str]:
    """BIO into another scheme, by the neighbours of each tag."""
    result = []
    for before, tag, after in zip(["O", *tags], tags, [*tags[1:], "O"], strict=False):
        mark, kind = tag[0], tag[2:]
        if mark != "O" and scheme == "iob1":
            mark = "B" if mark == "B" and before[2:] == kind else "I"
        elif mark != "O" and scheme != "bio":
            goes_on = after == f"I-{kind}"
            last, only = {"iobes": "ES", "bilou": "LU"}[scheme]
            mark = mark if goes_on else only if mark == "B" else last
        result.append(f"{mark}-{kind}" if kind else "O")
    return result


def test_every_scheme_is_recognized_and_stands_for_the_same_entities(conll, caplog):
    caplog.set_level(logging.INFO, logger="snugbert")
    split = conll["test"]
    for scheme in SCHEMES:
        told = split._replace(sentences=[s._replace(tags=converted(s.tags, scheme)) for s in split.sentences])
        checked = check_tags({"test": told}, "auto", "stop")["test"]
        assert caplog.messages[-1].startswith(f"the tags are in the scheme {scheme.upper()}")
        assert checked.sentences == split.sentences and checked.scheme == scheme
        assert [encode_tags(decode_tags(tags), len(tags), scheme) for tags in all_tags(split)] == all_tags(told)


def test_broken_tags(tmp_path, caplog):
    good = "a O\nb B-PER\nc I-PER\n\nd B-LOC\n\n"
    with pytest.raises(
        InputError, match=r"validation.txt, line 8: the tag 'I-LOC' behind 'O' breaks the scheme BIO, "
    ):
        read(tmp_path, good, good + "d O\ne I-LOC\nf I-LOC\n\ng B-PER\nh I-LOC\n")
    with pytest.raises(
        InputError, match=r"takes it for 'B-LOC' \(2 such tags\). Correct them, or .*--on_bad_tag repair"
    ):
        read(tmp_path, good, good + "d O\ne I-LOC\nf I-LOC\n\ng B-PER\nh I-LOC\n")
    splits = read(tmp_path, good, good + "d O\ne I-LOC\nf I-LOC\n\ng B-PER\nh I-LOC\n", on_bad_tag="repair")
    assert all_tags(splits["validation"])[2:] == [["O", "B-LOC", "I-LOC"], ["B-PER", "B-LOC"]]
    assert "(2 such tags), and so it is read" in caplog.messages[-1]
    # What is right in one scheme is wrong in another.
    iob1 = "a I-PER\nb I-PER\n\nc I-PER\nd B-PER\n"
    assert all_tags(read(tmp_path, iob1)["train"]) == [["B-PER", "I-PER"], ["B-PER", "B-PER"]]
    with pytest.raises(InputError, match="line 1: the tag 'I-PER' at the start of a sentence breaks the scheme BIO; "):
        read(tmp_path, iob1, tag_scheme="bio")
    with pytest.raises(InputError, match="line 2: the tag 'I-X' behind 'B-X' breaks the scheme IOBES, which fits "):
        read(tmp_path, "a B-X\nb I-X\n\nc S-X\n\nd B-X\ne E-X\n")


# --- windows ----------------------------------------------------------------------------------------------------


def joined(split: NerSplit) -> NerSplit:
    """Each document as one sentence."""
    documents: dict[object, list[Sentence]] = {}
    for sentence in split.sentences:
        documents.setdefault(sentence.document, []).append(sentence)
    return split._replace(
        sentences=[
            Sentence([word for s in ss for word in s.words], [tag for s in ss for tag in s.tags], ss[0].row, document)
            for document, ss in documents.items()
        ]
    )


def test_a_sentence_with_room_is_what_the_tokenizer_makes_of_it(conll, part, tokenizer):
    labels = choose_labels(conll, [])
    features = ner.make_windows(part, labels, tokenizer, 512).features
    for sentence, row in zip(part.sentences, features, strict=True):
        encoded = tokenizer(sentence.words, is_split_into_words=True)
        words = encoded.word_ids()
        expected = [
            -100 if word is None or word == before else labels.index(sentence.tags[word])
            for before, word in zip([None, *words], words, strict=False)
        ]
        assert row == {**encoded, "labels": expected}


# name -> what is made of the sentences, limit in word pieces, whether windows reach over sentences
WAYS = {
    "sentences": (lambda split: split, 128, False),
    "long sentences": (joined, 128, False),
    "short windows": (lambda split: split, 12, False),
    "document context": (lambda split: split, 64, True),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_word_counts_once(way, conll, part, tokenizer):
    change, limit, document_context = WAYS[way]
    split, labels = change(part), choose_labels(conll, [])
    words = [word for sentence in split.sentences for word in sentence.words]
    tags = [tag for sentence in split.sentences for tag in sentence.tags]
    pieces = {word: tokenizer(word, add_special_tokens=False)["input_ids"][: limit - 2] for word in set(words)}

    windows = ner.make_windows(split, labels, tokenizer, limit, document_context)
    inputs, targets = windows.features["input_ids"][:], windows.features["labels"][:]
    assert max(map(len, inputs)) <= limit
    # In the order of the words, what is counted is each word's first piece, in the place that is said to be its own.
    counted = [(i, j) for i, row in enumerate(targets) for j, label in enumerate(row) if label != -100]
    assert counted == list(zip(windows.window, windows.position, strict=True))
    assert [labels[targets[i][j]] for i, j in counted] == tags
    assert [inputs[i][j] for i, j in counted] == [pieces[word][0] for word in words]

    every = ner.make_windows(split, labels, tokenizer, limit, document_context, label_all_tokens=True)
    assert every.features["input_ids"][:] == inputs
    # All pieces of a word have its tag; B- stands only on the first.
    expected = [
        label
        for word, tag in zip(words, tags, strict=True)
        for label in [tag] + [tag.replace("B-", "I-")] * (len(pieces[word]) - 1)
    ]
    assert [labels[label] for row in every.features["labels"] for label in row if label != -100] == expected


def test_words_have_context_on_both_sides(conll, part, tokenizer):
    split, labels = joined(part), choose_labels(conll, [])
    windows = ner.make_windows(split, labels, tokenizer, 128)
    pieces_of_windows = np.array([len(ids) - 2 for ids in windows.features["input_ids"]])
    assert (pieces_of_windows == 126).mean() > 0.5
    word = 0
    for sentence in split.sentences:
        words = slice(word, word := word + len(sentence.words))
        lengths = np.array([len(tokenizer.tokenize(word)) for word in sentence.words])
        quarter = 126 // 4 - lengths.max()  # windows have whole words
        at = np.cumsum(lengths) - lengths
        before = windows.position[words] - 1
        behind = pieces_of_windows[windows.window[words]] - before - lengths
        assert (before >= np.minimum(quarter, at)).all()
        assert (behind >= np.minimum(quarter, lengths.sum() - at - lengths)).all()


def test_words_without_pieces_keep_their_tags(tokenizer):
    words = ["Jo", "\u200b", "\u0001", "", "Li", "a-" * 40]
    split = NerSplit("s", [Sentence(words, ["B-PER", "I-PER", "B-LOC", "O", "B-PER", "O"], 1)], True)
    labels = ["O", "B-LOC", "B-PER", "I-PER"]
    features = ner.make_windows(split, labels, tokenizer, 20).features
    assert tokenizer.convert_ids_to_tokens(features[0]["input_ids"][:6]) == ["[CLS]", "jo", *["[UNK]"] * 3, "li"]
    assert [labels[i] for row in features["labels"] for i in row if i != -100] == split.sentences[0].tags
    assert list(map(len, features["input_ids"])) == [7, 20]  # the end of a word that fills a window is lost


def logits_of(windows: ner.NerWindows, number: int) -> np.ndarray:
    """Logits that have the right label where there is one, and chance elsewhere; padded as by Trainer."""
    generator = np.random.default_rng(0)
    rows = windows.features["labels"][:]
    logits = np.full((len(rows), max(map(len, rows)), number), -100.0, dtype=np.float32)
    for i, row in enumerate(rows):
        logits[i, : len(row)] = generator.normal(size=(len(row), number))
        for j, label in enumerate(row):
            if label != -100:
                logits[i, j, label] = 10
    return logits


@pytest.mark.parametrize(("way", "scheme"), [*zip(WAYS, ("iob1", "bio", "bilou", "iobes"), strict=True)])
def test_right_predictions_are_the_file_again(way, scheme, conll, part, tokenizer, data_dir, tmp_path):
    change, limit, document_context = WAYS[way]
    split, labels = change(part)._replace(scheme=scheme), choose_labels(conll, [])
    windows = ner.make_windows(split, labels, tokenizer, limit, document_context)
    figures = ner.make_judge("eval", split, windows, labels, False)(logits_of(windows, len(labels)), tmp_path)
    numbers = Counter(kind for tags in all_tags(part) for kind, _, _ in decode_tags(tags))
    assert {name: value for name, value in figures.items() if not name.endswith("number")} == dict.fromkeys(
        [*ner.FIGURES, *(f"{kind}_{figure}" for kind in numbers for figure in ner.FIGURES[:3])], 1.0
    )
    assert all(figures[f"{kind}_number"] == number for kind, number in numbers.items())

    lines = (tmp_path / "eval_predictions.txt").read_text(encoding="utf-8").splitlines()
    with gzip.open(data_dir / "conll2003" / "valid.txt.gz", "rt", encoding="utf-8") as stream:
        original = [line.split() for line in stream]
    if way == "long sentences":
        lines, original = [line for line in lines if line], [cells for cells in original if cells]
    tags = converted([cells[3] if cells else "O" for cells in original], scheme)
    expected = [f"{cells[0]} {tag} {tag}" if cells else "" for cells, tag in zip(original, tags, strict=True)]
    assert len(lines) > 4000 and lines == expected[: len(lines)]
    assert expected[len(lines)].startswith("-DOCSTART-")
    assert {path.suffix for path in tmp_path.iterdir()} == {".txt", ".png"}


# --- metric -----------------------------------------------------------------------------------------------------


def compute(predictions: list[list[str]], references: list[list[str]]) -> dict[str, float]:
    return NerMetric(keep_in_memory=True).compute(predictions=predictions, references=references)


def test_metric_by_hand():
    references = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "B-ORG", "O"]]
    # The person's end is wrong, the place is right; one organization is right, one is lost, one is invented.
    predictions = [["B-PER", "O", "O", "B-LOC"], ["B-ORG", "O", "I-ORG"]]
    figures = compute(predictions, references)
    assert figures == pytest.approx(
        {
            "precision": 2 / 4,
            "recall": 2 / 4,
            "f1": 2 / 4,
            "accuracy": 4 / 7,
            **{"PER_precision": 0, "PER_recall": 0, "PER_f1": 0, "PER_number": 1},
            **{"LOC_precision": 1, "LOC_recall": 1, "LOC_f1": 1, "LOC_number": 1},
            **{"ORG_precision": 1 / 2, "ORG_recall": 1 / 2, "ORG_f1": 1 / 2, "ORG_number": 2},
        }
    )
    nothing = compute([["O", "O"]], [["O", "O"]])
    assert nothing == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "accuracy": 1.0}
    assert compute([["O", "O"]], [["B-PER", "O"]])["f1"] == 0.0


def spans(tags: list[str]) -> set[tuple[str, int, int]]:
    """Entities of BIO tags, found letter by letter."""
    kinds = sorted({tag[2:] for tag in tags} - {""})
    found = set()
    for kind in kinds:
        letters = "".join(tag[0] if tag[2:] == kind else "O" for tag in tags)
        found |= {(kind, *match.span()) for match in re.finditer("[BI]I*", letters)}
    return found


def test_metric_on_noisy_real_tags(part):
    generator = random.Random(0)
    references = all_tags(part)
    tags = sorted({tag for row in references for tag in row})
    predictions = [[generator.choice(tags) if generator.random() < 0.2 else tag for tag in row] for row in references]
    figures = compute(predictions, references)
    right, given = (
        {(i, *span) for i, row in enumerate(rows) for span in spans(row)} for rows in (references, predictions)
    )
    for prefix in ("", "LOC_", "PER_", "ORG_", "MISC_"):
        kept, told = ({s for s in group if prefix in ("", f"{s[1]}_")} for group in (given, right))
        both = len(kept & told)
        assert figures[f"{prefix}precision"] == pytest.approx(both / len(kept), abs=1e-12)
        assert figures[f"{prefix}recall"] == pytest.approx(both / len(told), abs=1e-12)
        assert figures[f"{prefix}f1"] == pytest.approx(2 * both / (len(kept) + len(told)), abs=1e-12)
    pairs = [pair for rows in zip(predictions, references, strict=True) for pair in zip(*rows, strict=True)]
    assert figures["accuracy"] == pytest.approx(sum(a == b for a, b in pairs) / len(pairs), abs=1e-12)
    # Made valid as conlleval reads them, predictions score the same.
    valid = [encode_tags(decode_tags(row), len(row), "bio") for row in predictions]
    assert {**compute(valid, references), "accuracy": figures["accuracy"]} == figures


def test_most_frequent_tags():
    train = NerSplit("s", [Sentence(["a", "b", "a", "a"], ["B-X", "O", "O", "B-X"], 1)], True)
    test = NerSplit("s", [Sentence(["a", "c"], ["B-X", "B-X"], 1)], True)
    assert ner.most_frequent_tags(train, test) == [["B-X", "O"]]
    assert ner.score(test, [["B-X", "O"]])["f1"] == pytest.approx(2 / 3)


# --- a whole run ------------------------------------------------------------------------------------------------

FILLER = "the a of in met saw left and then about was".split()
GIVEN, FAMILY, PLACES, ENDINGS = ["anna", "otto"], ["berg", "stone"], ["oslo", "rome"], ["town", "port"]
NAMES = [*GIVEN, *FAMILY, *PLACES, *(f"##{ending}" for ending in ENDINGS)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *FILLER, *NAMES]
SMALL = (
    "num_hidden_layers=1,hidden_size=32,intermediate_size=64,num_attention_heads=2,"
    "hidden_dropout_prob=0,attention_probs_dropout_prob=0"
)


def tagged_text(number: int, seed: int, endings: list[str] = ENDINGS) -> str:
    """Sentences in IOB1 in documents of five: people of one or two names, places of one word of one or two pieces."""
    generator = random.Random(seed)
    lines = []
    for i in range(number):
        lines += ["-DOCSTART- O", ""] if i % 5 == 0 else []
        for _ in range(generator.randint(1, 5)):
            lines += [f"{word} O" for word in generator.choices(FILLER, k=generator.randint(1, 4))]
            if generator.random() < 0.5:
                lines.append(f"{generator.choice(GIVEN)} I-PER")
                lines += [f"{generator.choice(FAMILY)} I-PER"] if generator.random() < 0.5 else []
            else:
                lines.append(f"{generator.choice(PLACES)}{generator.choice(['', *endings])} I-LOC")
        lines.append("")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory) -> Path:
    """A folder with a tokenizer and data: 200 sentences to train on, 50 to score, 30 to tag."""
    folder = tmp_path_factory.mktemp("ner")
    SnugBertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)}).save_pretrained(folder / "tokenizer")
    (folder / "train.txt").write_text(tagged_text(200, seed=1, endings=["town"]))
    (folder / "dev.txt").write_text(tagged_text(50, seed=2))
    (folder / "test.txt").write_text(re.sub(" [IO].*", "", tagged_text(30, seed=3)))
    return folder


def arguments(workshop: Path, output_dir: Path, **changes: object) -> list[str]:
    """A command line that trains a small model of random weights; None takes an argument away."""
    values = {
        "config_name": "tiny",
        "config_overrides": SMALL,
        "tokenizer_name": workshop / "tokenizer",
        "train_file": workshop / "train.txt",
        "validation_file": workshop / "dev.txt",
        "output_dir": output_dir,
        "max_seq_length": 24,
        "per_device_train_batch_size": 16,
        "num_train_epochs": 5,
        "learning_rate": 1e-2,
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }
    return [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def run(workshop) -> Path:
    """The output folder of a whole run, with document context."""
    extra = {"do_train": True, "do_eval": True, "do_predict": True, "test_file": workshop / "test.txt"}
    argv = ["ner", *arguments(workshop, workshop / "run", document_context=True, **extra)]
    assert cli.main(argv) == 0
    return workshop / "run"


def test_a_run_learns_and_writes_everything(run, workshop):
    results = json.loads((run / "eval_results.json").read_text())
    assert results["eval_f1"] == 1.0 and results["eval_PER_f1"] == 1.0 and results["eval_samples"] == 50
    assert results["eval_PER_number"] + results["eval_LOC_number"] > 100
    assert 0.5 < results["eval_baseline_f1"] < 0.9  # it does not know what ends in -port
    config = json.loads((run / "config.json").read_text())
    assert config["id2label"] == {"0": "O", "1": "B-LOC", "2": "I-LOC", "3": "B-PER", "4": "I-PER"}
    assert {path.name for path in run.glob("*.png")} >= {"entity_scores.png", "confusion_matrix.png"}
    expected = re.sub(r"^(\S+) (\S+)$", r"\1 \2 \2", tagged_text(50, seed=2), flags=re.MULTILINE)
    assert (run / "eval_predictions.txt").read_text().strip() == expected.strip()
    # The sentences to tag have no tags, the file that comes out has the right ones, in the scheme of the others.
    assert (run / "predictions.txt").read_text().strip() == tagged_text(30, seed=3).strip()
    # The other pieces of a word were not trained: "first", not "simple".
    tag = pipeline("token-classification", model=str(run), aggregation_strategy="first", device="cpu")
    found = [(part["entity_group"], part["word"]) for part in tag("then anna berg met otto in romeport")]
    assert found == [("PER", "anna berg"), ("PER", "otto"), ("LOC", "romeport")]


def test_a_run_has_the_context_it_is_told_to(workshop, tmp_path):
    types = (FineTunedModelArguments, NerDataArguments, FineTuningArguments)
    without, with_context = (
        ner.make_task(*parse_arguments(types, arguments(workshop, tmp_path, document_context=context), "", ""))
        for context in (False, True)
    )
    for one, other in (
        (without.train_features, with_context.train_features),
        (without.evaluation_sets[0].features, with_context.evaluation_sets[0].features),
    ):
        assert 1.2 * count_tokens(one).sum() < count_tokens(other).sum()


def test_a_checkpoint_is_scored_without_training(run, workshop, tmp_path, capsys):
    checkpoint = {"model_name_or_path": run, "config_name": None, "config_overrides": None, "tokenizer_name": None}
    for extra in ({}, {"pad_to_max_length": True}):
        main(arguments(workshop, tmp_path, **checkpoint, **extra, train_file=None, max_eval_samples=20))
        results = json.loads((tmp_path / "eval_results.json").read_text())
        assert results["eval_samples"] == 20 and results["eval_f1"] == 1.0
        assert "eval_baseline_f1" not in results
    assert f"predictions: {tmp_path / 'eval_predictions.txt'}" in capsys.readouterr().out


def test_the_best_model_by_a_type(workshop, tmp_path):
    changes = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    changes |= {
        "metric_for_best_model": "LOC_f1",
        "return_entity_level_metrics": True,
        "num_train_epochs": 2,
        "max_train_samples": 64,
    }
    main(arguments(workshop, tmp_path, **changes, label_all_tokens=True, class_weights="balanced"))
    state = json.loads((tmp_path / "trainer_state.json").read_text())
    assert state["best_metric"] == max(line["eval_LOC_f1"] for line in state["log_history"] if "eval_LOC_f1" in line)
    model = AutoModelForTokenClassification.from_pretrained(tmp_path)
    assert model.config.num_labels == 5


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a O\nb\n", r"train.txt, line 2: 1 column, 'b', and line 1 has 2; every line needs the same"),
        ("a O\n\nb x O\n", r"train.txt, line 3: 3 columns, 'b x O', and line 1 has 2"),
        ("a\nb\n", r"train.txt, line 1: 1 column, 'a', but column 2 is needed"),
        ("\n\n-DOCSTART- O\n\n", r"train.txt holds no sentences"),
        ("", r"train.txt holds no sentences"),
        ("a O\nb O\n", r"train.txt: every tag is O; nothing to learn"),
        ("a O\nb NN\n", r"train.txt, line 2: 'NN' is no tag of an entity; .*--label_column_name"),
        ("a B-\n", r"train.txt, line 1: 'B-' is no tag of an entity"),
        ("a\tO\t\n", r"train.txt, line 1: '' is no tag of an entity"),
    ],
)
def test_bad_files(text, message, tmp_path):
    with pytest.raises(InputError, match=message):
        choose_labels(read(tmp_path, text), [])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"tokens": ["a"], "labels": ["O"]}],
            "row 1: no column 'ner_tags' or 'tags' among tokens, labels; name the ",
        ),
        ([{"text": "a", "tags": ["O"]}], "row 1: no column 'tokens' among text, tags; .*--text_column_name"),
        ([{"tokens": "a b", "tags": ["O"]}], "row 1: column 'tokens' must hold a list of words, not 'a b'"),
        (
            [{"tokens": ["a", "b"], "tags": ["O"]}],
            "row 1: column 'tags' must hold a tag for each of the 2 words, not 1",
        ),
        ([{"tokens": ["a"], "tags": ["O"]}, {"tokens": ["a"], "tags": None}], "row 2: no tags in column 'tags'"),
        ([{"tokens": ["a"], "tags": [3]}], "row 1: the tags in column 'tags' are not text, and nothing says what"),
        ([{"tokens": [], "tags": []}], "train.jsonl holds no sentences"),
    ],
)
def test_bad_rows(rows, message, tmp_path):
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match=message):
        load_splits(NerDataArguments(train_file=str(tmp_path / "train.jsonl")), ("train",))


def test_sentences_without_words_are_left_out(tmp_path, caplog):
    rows = [{"tokens": [], "tags": []}, {"tokens": ["a"], "tags": ["B-X"]}, {"tokens": [], "tags": []}]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sentences = load_splits(NerDataArguments(train_file=str(tmp_path / "train.jsonl")), ("train",))["train"].sentences
    assert sentences == [Sentence(["a"], ["B-X"], 2)]
    assert "2 sentences without words are left out; the first is row 1" in caplog.text


def test_bad_arguments(run, workshop, tmp_path, capsys):
    def complaint(**changes: object) -> str:
        assert cli.main(["ner", *arguments(workshop, tmp_path / "out", **changes)]) == 2
        return capsys.readouterr().err

    (tmp_path / "other.txt").write_text("anna I-PER\n\nin O\nrome I-GPE\n")
    message = complaint(validation_file=tmp_path / "other.txt")
    assert "other.txt, line 4: the type 'GPE' is not in" in message and message.endswith("there are LOC, PER.\n")
    (tmp_path / "plain.txt").write_text("anna I-PER\n")
    message = complaint(validation_file=tmp_path / "plain.txt", document_context=True)
    assert "plain.txt does not tell where documents begin; it needs -DOCSTART- lines" in message
    assert "there is no file" in complaint(train_file=tmp_path / "none.txt")
    assert "there are no data" in complaint(train_file=None, validation_file=None)
    assert "either the name of a data set or files" in complaint(dataset_name="conll2003")
    assert "columns of a CoNLL file have no names; give a number" in complaint(label_column_name="ner_tags")
    assert "--max_seq_length must be at least 4, not 3" in complaint(max_seq_length=3)
    assert "there is no metric 'accurcy'" in complaint(metric_for_best_model="accurcy")
    assert "the checkpoint is no tagger, its labels are LABEL_0, LABEL_1" in complaint(train_file=None)
    assert "there are no test sentences" in complaint(do_predict=True)
    encoder = {"config_name": None, "config_overrides": None, "model_name_or_path": tmp_path / "encoder"}
    SnugBertModel.from_pretrained(run, add_pooling_layer=False).save_pretrained(tmp_path / "encoder")
    assert "its classifier.bias, classifier.weight would be random" in complaint(**encoder, train_file=None)
    assert not (tmp_path / "out").exists()
