"""The examples of pretraining: tables of epochs, their order, and full sentences as the model gets them."""

import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.stats import chisquare
from synthetic import make_corpus

from snugbert.trainers.pretraining.corpus import Corpus, open_corpus
from snugbert.trainers.pretraining.examples import ROW, PretrainingDataset, shuffled

pytestmark = pytest.mark.slow

CLS, SEP = 101, 102


def test_full_sentences_by_hand(tmp_path):
    documents = [[[11, 12], [13, 14, 15]], [[21], [22, 23, 24, 25, 26, 27, 28, 29, 30, 31]], [[41, 42]], [[51], [52]]]
    corpus = make_corpus([documents[:3], documents[3:], [[[71, 72, 73, 74, 75]], [[81, 82]]]])
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
    one = make_corpus([[[[1000, 1001]]]])
    for corpus, settings, message in (
        (one, {}, "fewer than two"),
        (one, {"max_seq_length": 4, "objective": "mlm"}, "`max_seq_length` 4 must be at least 5"),
        (one, {"max_seq_length": 2**16, "objective": "mlm"}, "at most 65535"),
        (make_corpus([[[[1000]], [[1001]]]]), {"objective": "sop"}, "no example"),
    ):
        with pytest.raises(ValueError, match=message):
            PretrainingDataset(corpus, CLS, SEP, tmp_path, **settings)
    assert len(PretrainingDataset(one, CLS, SEP, tmp_path, "sop")) == 1


def test_a_table_that_was_cut_off_is_made_again(small, words_tokenizer, tmp_path):
    corpus = open_corpus(small.folder, words_tokenizer)

    def count_examples() -> int:
        return len(PretrainingDataset(corpus, 2, 3, tmp_path / "epochs", max_seq_length=16))

    expected = count_examples()
    (table,) = (tmp_path / "epochs").glob("*.examples")
    whole = table.read_bytes()
    assert len(whole) == expected * ROW.itemsize
    for length in (0, 20, len(whole) - 1):
        table.write_bytes(whole[:length])
        assert count_examples() == expected
        assert table.read_bytes() == whole
