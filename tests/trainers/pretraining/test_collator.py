"""The pretraining collator: batches, and examples printed as text."""

import gzip
from itertools import pairwise

import numpy as np
import pytest
import torch
from prepared import content, prepare
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram
from tokenizers.trainers import UnigramTrainer
from transformers import PreTrainedTokenizerFast

import snugbert
from snugbert.errors import InputError
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.corpora import open_prepared
from snugbert.trainers.pretraining.examples import PretrainingDataset
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingDataArguments
from snugbert.vocabulary.learning import count_words, learn_tokens, make_tokenizer

SEP = 102


@pytest.mark.parametrize(("objective", "masking"), [("nsp", "tokens"), ("mlm", "words")])
def test_a_batch_is_a_function_of_its_examples(corpus, tokenizer, tmp_path, objective, masking):
    length = 512 if objective == "mlm" else 128  # long enough to contain the end of some documents
    dataset = PretrainingDataset(corpus, tokenizer, length, objective, epochs_dir=tmp_path)
    collate = SnugBertDataCollatorForPretraining(tokenizer, masking=masking)
    examples = [dataset[index] for index in range(48)]
    batch, alone = collate(examples), collate([dataset[7]])
    lengths = [len(example["input_ids"]) for example in examples]
    assert batch["cu_seq_lens_q"].diff().tolist() == lengths and batch["max_length_q"] == max(lengths)
    assert torch.equal(batch["label_indices"], (batch["labels"][0] != -100).nonzero().squeeze(1))
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
    # With the labels put back, a row equals the example.
    labels, ids = alone["labels"][0], alone["input_ids"][0]
    assert torch.where(labels == -100, ids, labels).tolist() == dataset[7]["input_ids"].tolist()
    for example, hidden in zip(examples, batch["labels"][0].split(lengths), strict=True):
        ordinary = sum(index not in tokenizer.all_special_ids for index in example["input_ids"].tolist())
        number = (hidden != -100).sum().item()
        assert number == round(0.15 * ordinary) or (masking == "words" and ordinary < 20)
    special = torch.tensor(tokenizer.all_special_ids)
    assert not torch.isin(batch["labels"], special).any()
    shown = batch["input_ids"][batch["labels"] != -100]
    assert set(shown[torch.isin(shown, special)].tolist()) == {tokenizer.mask_token_id}
    if masking == "words":
        pieces = tokenizer.convert_ids_to_tokens(
            batch["input_ids"][0].where(batch["labels"][0] == -100, batch["labels"][0])
        )
        is_chosen = (batch["labels"][0] != -100).tolist()
        for (before, piece), (chosen_before, chosen) in zip(pairwise(pieces), pairwise(is_chosen), strict=True):
            if piece.startswith("##") and before not in ("[CLS]", "[SEP]"):
                assert chosen == chosen_before


def learn_tokenizer(kind: str, lines: list[str]):
    """A tokenizer of 1,000 tokens."""
    if kind == "unigram":
        learner = Tokenizer(Unigram())
        learner.pre_tokenizer = pre_tokenizers.Metaspace()
        names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "unk_token": "<unk>"}
        options = {"special_tokens": list(names.values()), "unk_token": "<unk>", "show_progress": False}
        learner.train_from_iterator(lines, UnigramTrainer(vocab_size=1000, **options))
        return PreTrainedTokenizerFast(tokenizer_object=learner, **names)
    words = count_words(lines, make_tokenizer(kind))
    return make_tokenizer(kind, *learn_tokens(words, 1000, 2, kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["byte-bpe", "unigram"])
def test_no_word_of_another_tokenizer_is_cut(kind, data_dir, tmp_path):
    """On real text. Words are transformers' `word_ids`. 15 % of the tokens are chosen, within 0.5 points."""
    with gzip.open(data_dir / "wiki_en/validation.txt.gz", "rt", encoding="utf-8") as file:
        lines = [" ".join(line.split()) for line in file if line.strip()][:150]
    tokenizer = learn_tokenizer(kind, lines)
    (tmp_path / "text.txt").write_text("\n\n".join(lines), encoding="utf-8")
    options = {"language": None, "num_workers": 1, "store_words": True}
    corpus = prepare(tmp_path / "corpus", tokenizer, tmp_path / "text.txt", **options)
    collate = SnugBertDataCollatorForPretraining(tokenizer, masking="words")
    encoded = tokenizer(lines, add_special_tokens=False, verbose=False)
    known = {tuple(ids): encoded.word_ids(line) for line, ids in enumerate(encoded["input_ids"])}
    chosen = ordinary = checked = 0
    for example in PretrainingDataset(corpus, tokenizer, 512, "mlm"):
        ids, labels = example["input_ids"], collate([example])["labels"][0].numpy()
        chosen += np.count_nonzero(labels != -100)
        ends = np.flatnonzero(ids == tokenizer.sep_token_id)
        ordinary += len(ids) - 1 - len(ends)
        for start, end in zip([0, *ends], ends, strict=False):
            if words := known.get(tuple(ids[start + 1 : end].tolist())):  # a whole line
                pairs = set(zip(words, (labels[start + 1 : end] != -100).tolist(), strict=True))
                assert len(pairs) == len(set(words))
                checked += len(words)
    assert checked > 1000 and chosen / ordinary == pytest.approx(0.15, abs=0.005)


def test_words_need_a_tokenizer_with_words():
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), **special)
    other.backend_tokenizer.normalizer = normalizers.Replace(" ", "▁")  # as in Llama
    with pytest.raises(InputError, match=r"--masking words: the tokenizer does not split text into words"):
        SnugBertDataCollatorForPretraining(other, masking="words")


def test_only_words_and_spans_need_a_corpus_with_words(small, tmp_path):
    """A corpus without words has the same tokens. Words are chosen as a whole."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "w", *(f"##{digit}" for digit in range(10))]
    tokenizer = make_tokenizer("bpe", tokens)
    new = prepare(tmp_path / "new", tokenizer, small.text, language=None, num_workers=1, store_words=True)
    prepare(tmp_path / "old", tokenizer, small.text, language=None, num_workers=1)

    def load(folder, masking):
        arguments = PretrainingDataArguments(corpus=str(tmp_path / folder), masking=masking)
        return open_prepared(arguments, tokenizer, tmp_path)

    assert not load("old", "tokens").has_words and load("new", "spans").has_words
    assert content(load("old", "tokens")) == content(new)
    with pytest.raises(InputError, match=r"--corpus: .*old lacks the word boundaries that --masking words needs"):
        load("old", "words")
    dataset = PretrainingDataset(new, tokenizer, 32, "mlm", epochs_dir=tmp_path)
    examples = [dataset[index] for index in range(len(dataset))]
    for masking in ("words", "spans"):
        collate = SnugBertDataCollatorForPretraining(tokenizer, 0.3, masking=masking)
        batch = collate(examples)
        chosen = batch["labels"][0] != -100
        ids = batch["input_ids"][0].where(~chosen, batch["labels"][0])
        inner = (ids >= 6).nonzero().squeeze(1)  # digits
        assert (chosen[inner] == chosen[inner - 1])[ids[inner - 1] >= 5].all() and 0.2 < chosen.float().mean() < 0.3
        first = batch["cu_seq_lens_q"][1]
        assert torch.equal(batch["input_ids"][:, :first], collate(examples[:1])["input_ids"])


def test_an_example_is_described():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cats", "sleep", "##ing", "."]
    tokenizer = snugbert.SnugBertTokenizer({piece: index for index, piece in enumerate(pieces)})
    example = {
        "input_ids": np.array([2, 5, 6, 7, 8, 3, 7, 5, 3]),
        "token_type_ids": np.array([0, 0, 0, 0, 0, 0, 1, 1, 1]),
        "mask_seed": (0, 0, 0),
        "next_sentence_label": 1,
    }

    collator = SnugBertDataCollatorForPretraining(tokenizer, 1.0, 1, 0)
    assert collator.describe(example, "nsp").splitlines() == [
        "B is random, 9 tokens, 6 to predict",
        "A  [MASK]{cats} [MASK]{sleep} [MASK]{##ing} [MASK]{.}",
        "B  [MASK]{##ing} [MASK]{cats}",
    ]
    assert collator.describe(example, "sop").startswith("A and B are swapped, ")
