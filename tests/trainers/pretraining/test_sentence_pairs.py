"""The examples of pretraining: pairs and full sentences, tables of epochs, masks, batches."""

import json
import pickle
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import cross_val_score
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

import snugbert
from snugbert.errors import InputError
from snugbert.trainers.documents import read_documents, split_sentences
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.corpus import Block, Corpus
from snugbert.trainers.pretraining.examples import ROW, PretrainingDataset, shuffled
from snugbert.trainers.pretraining.masking import mask_tokens
from snugbert.trainers.pretraining.sentence_pairs import full_sentences, next_sentence_pairs, sentence_order_pairs

pytestmark = pytest.mark.slow

CLS, SEP = 101, 102


def corpus_of(blocks: list[list[list[list[int]]]]) -> Corpus:
    """From blocks of documents of sentences of word pieces."""

    def offsets(parts):
        return np.cumsum([0, *map(len, parts)])

    def block(documents):
        sentences = [sentence for document in documents for sentence in document]
        return Block(np.concatenate(sentences).astype(np.uint16), offsets(sentences), offsets(documents))

    return Corpus([block(documents) for documents in blocks], digest=json.dumps([len(blocks), len(blocks[0])]))


@pytest.fixture(scope="module")
def tokenizer(data_dir):
    return snugbert.SnugBertTokenizer(vocab=str(data_dir / "vocab/bert-base-uncased-vocab.txt"))


@pytest.fixture(scope="module")
def corpora(data_dir, tokenizer) -> dict[str, Corpus]:
    files = {
        "books_en": "books_en/train-00.txt.gz",
        "wiki_en": "wiki_en/train.txt.gz",
        "wikitext2": "wikitext2/valid.docs.txt.gz",
    }

    def read(file: Path) -> Corpus:
        documents = []
        for document in read_documents([file]):
            encoded = tokenizer(split_sentences(document, "en"), add_special_tokens=False, verbose=False)
            documents.append([sentence for sentence in encoded["input_ids"] if sentence])
        third = len(documents) // 3
        return corpus_of([documents[:third], documents[third : 2 * third], documents[2 * third :]])

    return {name: read(data_dir / file) for name, file in files.items()}


@pytest.fixture(scope="module")
def corpus(corpora) -> Corpus:
    return corpora["wikitext2"]


def table_of(corpus, objective, max_seq_length=128, short_seq_prob=0.1, seed=0) -> np.ndarray:
    rows = []
    for number, block in enumerate(corpus.blocks):
        rng = Random(f"{seed} {number}")
        if objective == "nsp":
            rows += next_sentence_pairs(corpus, number, max_seq_length, short_seq_prob, rng)
        elif objective == "sop":
            rows += sentence_order_pairs(block, number, max_seq_length, short_seq_prob, rng)
        else:
            rows += full_sentences(block, number, max_seq_length)
    return np.array(rows, dtype=ROW)


def numbers(table, name) -> np.ndarray:
    return table[name].astype(np.int64)


def document_of(corpus, blocks, positions) -> np.ndarray:
    """Number of the document that holds a word piece, for word pieces of several blocks."""
    result = np.empty(len(positions), dtype=np.int64)
    for number, block in enumerate(corpus.blocks):
        here = blocks == number
        starts = block.sentences[block.documents]
        result[here] = np.searchsorted(starts, positions[here], side="right") - 1 + corpus.document_starts[number]
    return result


# --- recipes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_seq_length", [128, 32, 5])
@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_pairs_follow_the_recipe(corpus, objective, max_seq_length):
    table = table_of(corpus, objective, max_seq_length, short_seq_prob=0.0)
    first, second, label = (numbers(table, name) for name in ("length", "second_length", "label"))
    start, second_start = numbers(table, "start"), numbers(table, "second_start")
    document = document_of(corpus, table["block"], start)
    second_document = document_of(corpus, table["second_block"], second_start)
    assert first.min() >= 1 and second.min() >= 1
    assert (first + second).max() == max_seq_length - 3
    assert (document == document_of(corpus, table["block"], start + first - 1)).all()
    assert (second_document == document_of(corpus, table["second_block"], second_start + second - 1)).all()
    uncut = first + second < max_seq_length - 3
    if objective == "nsp":
        is_next = label == 0
        assert (document[is_next] == second_document[is_next]).all()
        assert (second_start >= start + first)[is_next].all()
        assert (second_start == start + first)[is_next & uncut].all()
        assert (document != second_document)[~is_next].all()
        # Random second halves come from all documents alike, and from anywhere in them but their first sentence.
        expected = np.diff(corpus.document_starts) / corpus.num_documents * (~is_next).sum()
        assert chisquare(np.bincount(table["second_block"][~is_next]), expected).pvalue > 1e-4
        document_starts = [block.sentences[block.documents] for block in corpus.blocks]
        for number, starts in enumerate(document_starts):
            assert not np.isin(second_start[~is_next & (table["second_block"] == number)], starts).any()
    else:
        in_order = np.where(label == 0, second_start - start - first, start - second_start - second)
        assert (document == second_document).all()
        assert (in_order >= 0).all() and (in_order[uncut] == 0).all()
    if max_seq_length == 128:  # a short target cuts nothing off
        short = table_of(corpus, objective, 128, short_seq_prob=1.0)
        lengths = numbers(short, "length") + numbers(short, "second_length")
        assert lengths.mean() < 100
        assert (lengths < 125).mean() > 0.5


@pytest.mark.parametrize("objective", ["nsp", "sop", "mlm"])
def test_text_is_used_once(corpus, objective):
    """Every token is in one first half or real second half, or was cut off by the truncation of its own pair."""

    def find_best_spans(table):
        for row in table:
            yield int(row["block"]), int(row["start"]), int(row["length"])
            if objective == "sop" or (objective == "nsp" and row["label"] == 0):
                yield int(row["second_block"]), int(row["second_start"]), int(row["second_length"])

    def used(table):
        counts = [np.zeros(len(block.tokens), dtype=int) for block in corpus.blocks]
        for block, start, length in find_best_spans(table):
            counts[block][start : start + length] += 1
        return counts

    # Longer than every document: nothing is cut off.
    longest = max(np.diff(block.sentences[block.documents]).max() for block in corpus.blocks)
    for counts in used(table_of(corpus, objective, int(longest) + 3, short_seq_prob=0.5)):
        assert (counts == 1).all()
    table = table_of(corpus, objective)
    for counts in used(table):
        assert counts.max() == 1
        assert counts.mean() == 1 if objective == "mlm" else counts.mean() > 0.85
    if objective == "mlm":
        return
    # A pair that is not full lost nothing; so only full pairs lie beside text that is not used, and only halves of
    # full ones begin or end within a sentence.
    full = numbers(table, "length") + numbers(table, "second_length") == 125
    assert 0.5 < full.mean() < 1
    owners = [
        (*span, bool(is_full)) for row, is_full in zip(table, full, strict=True) for span in find_best_spans([row])
    ]
    for (block, start, length, is_full), (next_block, next_start, _, next_is_full) in pairwise(sorted(owners)):
        sentences = corpus.blocks[block].sentences
        assert is_full or np.isin([start, start + length], sentences).all()
        if block == next_block and not is_full and not next_is_full:
            assert start + length == next_start


@pytest.mark.parametrize(("name", "tolerance"), [("books_en", 0.005), ("wiki_en", 0.02), ("wikitext2", 0.02)])
@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_labels_are_halves_and_pairs_are_full(corpora, name, tolerance, objective):
    table = table_of(corpora[name], objective)
    assert abs(table["label"].mean() - 0.5) < (tolerance if objective == "nsp" else 0.02)
    assert (numbers(table, "length") + numbers(table, "second_length") + 3).mean() > 0.9 * 128


@pytest.mark.parametrize("max_seq_length", [64, 128, 512])
@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_labels_cannot_be_told_from_lengths(corpora, objective, max_seq_length):
    """A classifier that sees both lengths and their sum hardly beats the more frequent label."""
    epochs = [
        table_of(corpora["books_en"], objective, max_seq_length, seed=seed) for seed in range(max_seq_length // 48 + 1)
    ]
    table = np.concatenate(epochs)
    first, second, label = (numbers(table, name) for name in ("length", "second_length", "label"))
    lengths = np.stack([first, second, first + second], axis=1)
    accuracy = cross_val_score(
        HistGradientBoostingClassifier(max_iter=40, early_stopping=False), lengths, label, cv=3
    ).mean()
    # Sentences near each other are of similar length, which two or three of them show most: 1.2 to 1.5 points of 64.
    assert accuracy - max(label.mean(), 1 - label.mean()) < (0.02 if max_seq_length == 64 else 0.015)
    # Nor from whether the second half ends within a sentence.
    ends = second + numbers(table, "second_start")
    at_end = np.zeros(len(table), dtype=bool)
    for number, block in enumerate(corpora["books_en"].blocks):
        here = table["second_block"] == number
        at_end[here] = np.isin(ends[here], block.sentences)
    assert 0.2 < at_end.mean() < 0.8
    assert abs(at_end[label == 0].mean() - at_end[label == 1].mean()) < 0.03


def test_short_documents():
    sentence = [1000, 1001, 1002, 1003]
    alone = corpus_of([[[sentence]] * 20])
    assert (table_of(alone, "nsp")["label"] == 1).all()  # nothing follows a single sentence
    halves = table_of(alone, "sop")
    assert len(halves) == 20 and (halves["length"] == 2).all() and (halves["second_length"] == 2).all()
    assert len(table_of(corpus_of([[[[7]], [sentence]]]), "sop")) == 1  # a single word piece has no halves
    # A sentence longer than a pair is cut, beside others and alone.
    long = corpus_of([[[list(range(1000, 1500))] * 3, [sentence], [list(range(1000, 1500))]]] * 2)
    for objective in ("nsp", "sop"):
        for seed in range(20):
            table = table_of(long, objective, seed=seed)
            assert (numbers(table, "length") + numbers(table, "second_length")).max() == 125
            assert min(table["length"].min(), table["second_length"].min()) >= 1


def test_labels_stay_halves_where_many_pairs_are_forced():
    rng = np.random.default_rng(0)
    documents = [[[1000] * rng.integers(5, 40) for _ in range(rng.integers(1, 4))] for _ in range(3000)]
    assert abs(table_of(corpus_of([documents]), "nsp", 32)["label"].mean() - 0.5) < 0.01


def test_full_sentences_by_hand(tmp_path):
    documents = [[[11, 12], [13, 14, 15]], [[21], [22, 23, 24, 25, 26, 27, 28, 29, 30, 31]], [[41, 42]], [[51], [52]]]
    corpus = corpus_of([documents[:3], documents[3:], [[[71, 72, 73, 74, 75]], [[81, 82]]]])
    dataset = PretrainingDataset(corpus, CLS, SEP, tmp_path, "mlm", max_seq_length=9)
    examples = [dataset[index] for index in range(len(dataset))]
    assert sorted(example["input_ids"].tolist() for example in examples) == [
        [CLS, 11, 12, 13, 14, 15, SEP, 21, SEP],
        [CLS, 22, 23, 24, 25, 26, 27, 28, SEP],
        [CLS, 29, 30, 31, SEP, 41, 42, SEP],
        [CLS, 51, 52, SEP],
        [CLS, 71, 72, 73, 74, 75, SEP],  # 81 and 82 would fit without a [SEP] before them
        [CLS, 81, 82, SEP],
    ]
    for example in examples:
        assert "next_sentence_label" not in example
        assert example["token_type_ids"].tolist() == [0] * len(example["input_ids"])
    assert dataset.share_next is None


def test_full_sentences_are_full(corpus, tmp_path):
    dataset = PretrainingDataset(corpus, CLS, SEP, tmp_path, "mlm", max_seq_length=512)
    lengths = [len(dataset[index]["input_ids"]) for index in range(len(dataset))]
    assert max(lengths) <= 512 and np.mean(lengths) > 0.9 * 512
    assert sum((dataset[index]["input_ids"] == SEP).sum() - 1 for index in range(len(dataset))) > 0


# --- epochs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 10, 1000, 4097])
def test_an_order_is_a_permutation(number):
    assert sorted(shuffled(position, number, "key") for position in range(number)) == list(range(number))


def test_orders_look_random():
    # Few things: every order of the first two is as frequent as any other. Five standard deviations are p = 6e-7.
    pairs = Counter((shuffled(0, 5, str(key)), shuffled(1, 5, str(key))) for key in range(4000))
    assert len(pairs) == 20 and chisquare(list(pairs.values())).pvalue > 1e-4
    # Many: neighbours part, and a tenth of the positions goes to all tenths.
    order = np.array([shuffled(position, 10_000, "key") for position in range(10_000)])
    assert (np.abs(np.diff(order)) == 1).sum() < 12  # 2 on average
    cells = np.histogram2d(np.arange(10_000), order, bins=10)[0]
    assert chisquare(cells.ravel()).pvalue > 1e-4
    other = np.array([shuffled(position, 10_000, "yek") for position in range(10_000)])
    assert abs(np.corrcoef(order, other)[0, 1]) < 0.05 and abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.05


@pytest.mark.parametrize("objective", ["nsp", "sop", "mlm"])
def test_examples_do_not_depend_on_what_was_asked_for_before(corpus, tmp_path, objective):
    def dataset(folder, **settings):
        return PretrainingDataset(corpus, CLS, SEP, tmp_path / folder, objective, num_examples=20_000, **settings)

    straight, jumping = dataset("a"), dataset("b")
    last = len(straight) - 1
    assert last > 3 * straight.epoch_length
    copied = pickle.loads(pickle.dumps(jumping))
    for index in (last, 0, straight.epoch_length, 5, last):
        expected = straight[index]
        for example in (jumping[index], copied[index]):
            assert example["input_ids"].tolist() == expected["input_ids"].tolist()
            assert example["mask_seed"] == expected["mask_seed"] == (42, *divmod(index, straight.epoch_length))
    with pytest.raises(IndexError):
        straight[len(straight)]
    seen = {tuple(straight[index]["input_ids"]) for index in range(straight.epoch_length)}
    assert len(seen) > 0.99 * straight.epoch_length
    again = {tuple(straight[index]["input_ids"]) for index in range(straight.epoch_length, 2 * straight.epoch_length)}
    assert (len(seen & again) < 0.3 * len(seen)) == (objective != "mlm")
    assert dataset("a", seed=1)[3]["input_ids"].tolist() != straight[3]["input_ids"].tolist()
    if objective != "mlm":
        labels = [straight[index]["next_sentence_label"] for index in range(straight.epoch_length)]
        assert 1 - np.mean(labels) == pytest.approx(straight.share_next)
        ids, types = straight[3]["input_ids"], straight[3]["token_type_ids"]
        assert ids[0] == CLS and ids[-1] == SEP and (ids == SEP).sum() == 2
        first = ids.tolist().index(SEP) + 1
        assert types.tolist() == [0] * first + [1] * (len(ids) - first)


def test_a_table_is_made_once_and_then_used(corpus, tmp_path, monkeypatch):
    made = []
    write = PretrainingDataset._write_epoch
    monkeypatch.setattr(
        PretrainingDataset, "_write_epoch", lambda self, *args: (made.append(args[0]), write(self, *args))
    )

    def dataset(**settings):
        return PretrainingDataset(corpus, CLS, SEP, tmp_path, **settings)

    with ThreadPoolExecutor(4) as pool:
        datasets = list(pool.map(lambda _: dataset(num_examples=30_000), range(4)))
    assert made == [0]
    for epoch in range(5):
        for one in datasets[:2]:
            one[epoch * one.epoch_length]
    assert made == [0, 1, 2, 3, 4]
    assert sorted(file.stem[-2:] for file in tmp_path.glob("*.examples")) == ["-0", "-3", "-4"]
    datasets[2][2 * datasets[2].epoch_length]  # one that comes late makes it again
    assert made.pop() == 2
    for change in ({"seed": 1}, {"max_seq_length": 64}, {"short_seq_prob": 0.2}, {"objective": "sop"}):
        dataset(**change)
    assert made[-4:] == [0] * 4
    dataset()
    other = Corpus(corpus.blocks, digest="another")
    PretrainingDataset(other, CLS, SEP, tmp_path)
    assert len(made) == 10


def test_a_full_disk_leaves_no_table(corpus, tmp_path):
    whole = PretrainingDataset(corpus, CLS, SEP, tmp_path)
    (file,) = tmp_path.glob("*.examples")
    content = file.read_bytes()
    file.unlink()
    file.with_suffix(".unfinished").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"epoch 0 cannot be kept in .* \(No space left on device\); they take 21 bytes"):
        PretrainingDataset(corpus, CLS, SEP, tmp_path)
    assert [file.suffix for file in tmp_path.iterdir()] == [".lock"]
    assert len(PretrainingDataset(corpus, CLS, SEP, tmp_path)) == len(whole)
    assert file.read_bytes() == content


def test_what_gives_no_example_is_said(tmp_path):
    one = corpus_of([[[[1000, 1001]]]])
    for corpus, settings, message in (
        (one, {}, "fewer than two"),
        (one, {"max_seq_length": 4, "objective": "mlm"}, "`max_seq_length` 4 must be at least 5"),
        (one, {"max_seq_length": 2**16, "objective": "mlm"}, "at most 65535"),
        (corpus_of([[[[1000]], [[1001]]]]), {"objective": "sop"}, "no example"),
    ):
        with pytest.raises(ValueError, match=message):
            PretrainingDataset(corpus, CLS, SEP, tmp_path, **settings)
    assert len(PretrainingDataset(one, CLS, SEP, tmp_path, "sop")) == 1


# --- masks and batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("masked_share", "random_share"), [(0.8, 0.1), (0.5, 0.5), (1.0, 0.0)])
def test_masks_are_15_percent_in_their_shares(masked_share, random_share):
    rng = np.random.default_rng(0)
    replacements = np.arange(1000, 2000)
    chosen = masked = kept = replaced = 0
    for length in range(1, 400):
        ids = rng.integers(2000, 30000, size=length)
        candidates = rng.random(length) < 0.9
        candidates[0] = True
        hidden, labels = mask_tokens(ids, candidates, 103, replacements, rng, 0.15, masked_share, random_share)
        number = int((labels != -100).sum())
        assert number == max(1, round(candidates.sum() * 0.15))
        assert candidates[labels != -100].all()
        assert (labels[labels != -100] == ids[labels != -100]).all()
        assert (hidden[labels == -100] == ids[labels == -100]).all()
        chosen += number
        masked += (hidden == 103).sum()
        kept += ((hidden == ids) & (labels != -100)).sum()
        replaced += (hidden < 2000).sum() - (hidden == 103).sum()
    assert masked + kept + replaced == chosen
    # Five standard deviations of a binomial.
    for count, share in ((masked, masked_share), (replaced, random_share)):
        assert abs(count - share * chosen) <= 5 * (chosen * share * (1 - share)) ** 0.5


def test_words_are_masked_whole():
    rng = np.random.default_rng(0)
    of_word = Counter()
    for length in range(20, 400):
        ids = rng.integers(2000, 30000, size=length)
        candidates = np.ones(length, dtype=bool)
        candidates[[0, length // 2, -1]] = False
        continues = (rng.random(length) < 0.3) & candidates
        _, labels = mask_tokens(ids, candidates, 103, ids, rng, continues_word=continues)
        is_chosen = labels != -100
        assert is_chosen.sum() == round(candidates.sum() * 0.15)
        assert not is_chosen[~candidates].any()
        inner = np.flatnonzero(continues & np.roll(candidates, 1))  # goes on with a word before it
        assert (is_chosen[inner] == is_chosen[inner - 1]).all()
        of_word.update(is_chosen[1:-1].tolist())
    assert of_word[True] / of_word.total() == pytest.approx(0.15, abs=0.005)
    # What truncation left of a word at the beginning of a half is a word of its own.
    halves = np.array([0, 2000, 0, 2001, 0])
    _, labels = mask_tokens(halves, halves > 0, 103, halves, rng, continues_word=halves == 2001)
    assert (labels != -100).sum() == 1
    # Words of three pieces do not fit into two; where no word fits, one is taken all the same.
    three = np.arange(12) % 3 != 0
    for pieces, expected in ((12, 3), (3, 3)):
        ids = np.arange(2000, 2000 + pieces)
        _, labels = mask_tokens(ids, ids > 0, 103, ids, rng, continues_word=three[:pieces])
        assert (labels != -100).sum() == expected


@pytest.mark.parametrize("objective", ["nsp", "mlm"])
@pytest.mark.parametrize("whole_word_mask", [False, True])
def test_a_batch_is_a_function_of_its_examples(corpus, tokenizer, tmp_path, objective, whole_word_mask):
    ids = tokenizer.cls_token_id, tokenizer.sep_token_id
    length = 512 if objective == "mlm" else 128  # long enough to hold the end of a document now and then
    dataset = PretrainingDataset(corpus, *ids, tmp_path, objective, max_seq_length=length)
    collate = SnugBertDataCollatorForPretraining(tokenizer, whole_word_mask=whole_word_mask)
    examples = [dataset[index] for index in range(64)]
    batch, alone = collate(examples), collate([dataset[7]])
    lengths = [len(example["input_ids"]) for example in examples]
    assert batch["cu_seq_lens_q"].diff().tolist() == lengths and batch["max_length_q"] == max(lengths)
    if objective == "nsp":
        assert batch["next_sentence_label"].tolist() == [example["next_sentence_label"] for example in examples]
    else:
        assert "next_sentence_label" not in batch
        assert max((example["input_ids"] == SEP).sum() for example in examples) > 1
    start, end = batch["cu_seq_lens_q"][7:9]
    for name in ("input_ids", "token_type_ids", "position_ids", "labels"):
        assert torch.equal(batch[name][:, start:end], alone[name]), name
        assert batch[name].shape == (1, sum(lengths))
    assert alone["position_ids"].tolist() == [list(range(lengths[7]))]
    # With its labels put back, a row is the example again.
    labels, ids = alone["labels"][0], alone["input_ids"][0]
    assert torch.where(labels == -100, ids, labels).tolist() == dataset[7]["input_ids"].tolist()
    for example, hidden in zip(examples, batch["labels"][0].split(lengths), strict=True):
        ordinary = sum(index not in tokenizer.all_special_ids for index in example["input_ids"].tolist())
        number = (hidden != -100).sum().item()
        assert number == round(0.15 * ordinary) or (whole_word_mask and ordinary < 20)
    special = torch.tensor(tokenizer.all_special_ids)
    assert not torch.isin(batch["labels"], special).any()
    shown = batch["input_ids"][batch["labels"] != -100]
    assert set(shown[torch.isin(shown, special)].tolist()) == {tokenizer.mask_token_id}
    if whole_word_mask:
        pieces = tokenizer.convert_ids_to_tokens(
            batch["input_ids"][0].where(batch["labels"][0] == -100, batch["labels"][0])
        )
        is_chosen = (batch["labels"][0] != -100).tolist()
        for (before, piece), (chosen_before, chosen) in zip(pairwise(pieces), pairwise(is_chosen), strict=True):
            if piece.startswith("##") and before not in ("[CLS]", "[SEP]"):
                assert chosen == chosen_before


def test_masks_that_cannot_be_are_refused(tokenizer):
    with pytest.raises(InputError, match=r"mask_replace_prob 0.8 and random_replace_prob 0.3 must be at most 1"):
        SnugBertDataCollatorForPretraining(tokenizer, random_replace_prob=0.3)
    with pytest.raises(InputError, match="mlm_probability 2 must be between 0 and 1"):
        SnugBertDataCollatorForPretraining(tokenizer, mlm_probability=2)

    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), **special)
    SnugBertDataCollatorForPretraining(other)
    with pytest.raises(InputError, match=r"whole_word_mask needs a WordPiece tokenizer.* of type BPE"):
        SnugBertDataCollatorForPretraining(other, whole_word_mask=True)


def test_an_example_is_described(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cats", "sleep", "##ing", "."]
    tokenizer = snugbert.SnugBertTokenizer({piece: index for index, piece in enumerate(pieces)})
    example = {
        "input_ids": np.array([2, 5, 6, 7, 8, 3, 7, 5, 3]),
        "token_type_ids": np.array([0, 0, 0, 0, 0, 0, 1, 1, 1]),
        "mask_seed": (0, 0, 0),
        "next_sentence_label": 1,
    }

    def describe(objective="nsp", mlm_probability=1.0, **shares):
        return SnugBertDataCollatorForPretraining(tokenizer, mlm_probability, **shares).describe(example, objective)

    masked = describe(mask_replace_prob=1, random_replace_prob=0)
    assert masked.splitlines() == [
        "B is random, 9 tokens, 6 to predict",
        "A  [MASK]{cats} [MASK]{sleep}[MASK]{##ing} [MASK]{.}",
        "B  [MASK]{##ing} [MASK]{cats}",
    ]
    kept = describe("sop", mask_replace_prob=0, random_replace_prob=0)
    assert kept.splitlines() == [
        "A and B are swapped, 9 tokens, 6 to predict",
        "A  cats{cats} sleep{sleep}##ing{##ing} .{.}",
        "B  ##ing{##ing} cats{cats}",
    ]
    few = describe(mlm_probability=0)
    assert "9 tokens, 1 to predict" in few
    assert re.sub(r"\S+?\{(##)?(\S+?)\}", r"\2", few).splitlines()[1:] in (
        ["A  cats sleeping .", "B  ##ing cats"],
        ["A  cats sleeping .", "B  ing cats"],
    )
    del example["next_sentence_label"]
    example["input_ids"] = np.array([2, *[5, 6] * 20, 3, 8, 3])
    documents = describe("mlm", mlm_probability=0.1).splitlines()
    assert documents[0] == "44 tokens, 4 to predict" and documents[-1] in ("-  .", "-  [MASK]{.}")
    assert len(documents) > 5 and max(map(len, documents)) <= 60
    assert all(line.startswith("   ") for line in documents[2:-1])
