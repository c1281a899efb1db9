"""Pretraining examples: tables, order and content."""

import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.stats import chisquare
from synthetic import make_corpus

from snugbert.data.corpus.corpus import Corpus
from snugbert.trainers.pretraining.examples import PretrainingDataset, shuffle_position

pytestmark = pytest.mark.slow

CLS, SEP = 101, 102


def test_full_sentences_by_hand(tokenizer, tmp_path):
    documents = [[[11, 12], [13, 14, 15]], [[21], [22, 23, 24, 25, 26, 27, 28, 29, 30, 31]], [[41, 42]], [[51], [52]]]
    corpus = make_corpus([documents[:3], documents[3:], [[[71, 72, 73, 74, 75]], [[81, 82]]]])
    dataset = PretrainingDataset(corpus, tokenizer, 9, "mlm", epochs_dir=tmp_path)
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
    assert dataset.next_share is None


def test_orders_are_permutations_and_look_random():
    for number in (1, 2, 3, 10, 4097):
        assert sorted(shuffle_position(position, number, "key") for position in range(number)) == list(range(number))
    # Few items: every order of the first two is equally frequent. Five standard deviations are p = 6e-7.
    pairs = Counter((shuffle_position(0, 5, str(key)), shuffle_position(1, 5, str(key))) for key in range(4000))
    assert len(pairs) == 20 and chisquare(list(pairs.values())).pvalue > 1e-4
    # Many items: neighbors are separated, and each tenth of the positions is spread over all tenths.
    order = np.array([shuffle_position(position, 10_000, "key") for position in range(10_000)])
    assert (np.abs(np.diff(order)) == 1).sum() < 12  # 2 on average
    cells = np.histogram2d(np.arange(10_000), order, bins=10)[0]
    assert chisquare(cells.ravel()).pvalue > 1e-4
    other = np.array([shuffle_position(position, 10_000, "yek") for position in range(10_000)])
    assert abs(np.corrcoef(order, other)[0, 1]) < 0.05 and abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.05


@pytest.mark.parametrize("objective", ["nsp", "sop", "mlm"])
def test_examples_do_not_depend_on_the_order_of_access(tokenizer, corpus, tmp_path, objective):
    corpus = Corpus(corpus.blocks[1:], digest="two blocks")

    def dataset(folder, **settings):
        return PretrainingDataset(corpus, tokenizer, objective=objective, epochs_dir=tmp_path / folder, **settings)

    straight, jumping = dataset("a"), dataset("b")
    last = len(straight) - 1
    copied = pickle.loads(pickle.dumps(jumping))
    for place in ((3, last), (0, 0), (1, 0), (0, 5), (3, last)):
        expected = straight.get_example(*place)
        for example in (jumping.get_example(*place), copied.get_example(*place)):
            assert example["input_ids"].tolist() == expected["input_ids"].tolist()
            assert example["mask_seed"] == expected["mask_seed"] == (42, *place)
    with pytest.raises(IndexError):
        straight[len(straight)]
    seen = {tuple(example["input_ids"]) for example in straight}
    assert len(seen) > 0.99 * len(straight)
    again = {tuple(straight.get_example(1, position)["input_ids"]) for position in range(len(straight))}
    assert (len(seen & again) < 0.3 * len(seen)) == (objective != "mlm")
    assert dataset("a", seed=1)[3]["input_ids"].tolist() != straight[3]["input_ids"].tolist()
    if objective != "mlm":
        labels = [example["next_sentence_label"] for example in straight]
        assert 1 - np.mean(labels) == pytest.approx(straight.next_share)
        ids, types = straight[3]["input_ids"], straight[3]["token_type_ids"]
        assert ids[0] == CLS and ids[-1] == SEP and (ids == SEP).sum() == 2
        first = ids.tolist().index(SEP) + 1
        assert types.tolist() == [0] * first + [1] * (len(ids) - first)


def test_a_table_is_made_once(tokenizer, corpus, tmp_path, monkeypatch):
    corpus, made = Corpus(corpus.blocks[:1], digest="first block"), []
    write = PretrainingDataset._write_table
    monkeypatch.setattr(
        PretrainingDataset, "_write_table", lambda self, *args: (made.append(args[0].epoch), write(self, *args))
    )

    def dataset(**settings):
        return PretrainingDataset(corpus, tokenizer, **settings, epochs_dir=tmp_path)

    with ThreadPoolExecutor(4) as pool:
        datasets = list(pool.map(lambda _: dataset(), range(4)))
    assert made == [0]
    for epoch in range(4):
        for one in datasets[:2]:
            one.get_example(epoch, 0)
    assert made == [0, 1, 2, 3]
    assert sorted(file.stem[-4:] for file in tmp_path.glob("*.examples")) == ["-0-0", "-2-0", "-3-0"]
    datasets[2].get_example(1, 0)  # a slow process makes it again
    for change in ({"seed": 1}, {"max_seq_length": 64}, {"short_seq_prob": 0.2}, {"objective": "sop"}, {}):
        dataset(**change)
    PretrainingDataset(Corpus(corpus.blocks, digest="another"), tokenizer, epochs_dir=tmp_path)
    assert made[4:] == [1] + [0] * 5
