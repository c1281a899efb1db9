"""The pretraining collator: batches, and examples printed as text."""

import gzip
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from prepared import content, prepare
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
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


@pytest.mark.parametrize("objective", ["nsp", "mlm"])
@pytest.mark.parametrize("whole_word_mask", [False, True])
def test_a_batch_is_a_function_of_its_examples(corpus, tokenizer, tmp_path, objective, whole_word_mask):
    length = 512 if objective == "mlm" else 128  # long enough to contain the end of some documents
    dataset = PretrainingDataset(corpus, tokenizer, length, objective, epochs_dir=tmp_path)
    collate = SnugBertDataCollatorForPretraining(tokenizer, whole_word_mask=whole_word_mask)
    examples = [dataset[index] for index in range(64)]
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"random_replace_prob": 0.3}, "random_replace_prob 0.3 must add up to at most 1"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of 0 must be at least 1"),
    ],
)
def test_invalid_settings_are_refused(tokenizer, settings, message):
    with pytest.raises(InputError, match=message):
        SnugBertDataCollatorForPretraining(tokenizer, **settings)


def test_words_need_a_tokenizer_with_words():
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), **special)
    SnugBertDataCollatorForPretraining(other)
    for normalizer in (None, normalizers.Replace(" ", "▁")):  # as in Llama
        other.backend_tokenizer.normalizer = normalizer
        with pytest.raises(InputError, match=r"--masking words: the tokenizer does not split text into words"):
            SnugBertDataCollatorForPretraining(other, whole_word_mask=True)
        other.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")


@pytest.fixture(scope="module")
def lines(data_dir) -> list[str]:
    with gzip.open(data_dir / "wiki_en/validation.txt.gz", "rt", encoding="utf-8") as file:
        return [" ".join(line.split()) for line in file if line.strip()][:400]


def learn_tokenizer(kind: str, lines: list[str]):
    """A tokenizer of about 2,000 tokens."""
    if kind == "unigram":
        learner = Tokenizer(Unigram())
        learner.pre_tokenizer = pre_tokenizers.Metaspace()
        learner.train_from_iterator(lines, UnigramTrainer(vocab_size=2000, unk_token="<unk>", show_progress=False))
        learner.post_processor = processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0))
        names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "unk_token": "<unk>"}
        return PreTrainedTokenizerFast(tokenizer_object=learner, **names)
    words = count_words(lines, make_tokenizer(kind))
    return make_tokenizer(kind, *learn_tokens(words, 2000, 2, kind))


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte-bpe", "unigram"])
def test_words_and_spans_of_every_tokenizer_on_real_text(kind, lines, tmp_path):
    """15 % of the tokens are chosen, within 0.2 points. No word is cut. Words are transformers' `word_ids`."""
    tokenizer = learn_tokenizer(kind, lines)
    (tmp_path / "text.txt").write_text("\n\n".join(lines), encoding="utf-8")
    corpus = prepare(
        tmp_path / "corpus", tokenizer, tmp_path / "text.txt", language=None, num_workers=1, store_words=True
    )
    dataset = PretrainingDataset(corpus, tokenizer, 128, "mlm")
    examples = [dataset[index] for index in range(len(dataset))]
    encoded = tokenizer(lines, add_special_tokens=False, verbose=False)
    known = {}  # from the tokens of a line to its words
    for line, ids in enumerate(encoded["input_ids"]):
        known |= {tuple(ids): encoded.word_ids(line)} if len(ids) <= 126 else {}
    collators = {
        masking: SnugBertDataCollatorForPretraining(tokenizer, masking=masking) for masking in ("words", "spans")
    }
    for collate in collators.values():
        chosen = ordinary = checked = 0
        for example in examples:
            ids, labels = example["input_ids"], collate([example])["labels"][0].numpy()
            chosen += np.count_nonzero(labels != -100)
            ends = np.flatnonzero(ids == tokenizer.sep_token_id)
            ordinary += len(ids) - 1 - len(ends)
            for start, end in zip([0, *ends], ends, strict=False):
                if words := known.get(tuple(ids[start + 1 : end].tolist())):
                    pairs = set(zip(words, (labels[start + 1 : end] != -100).tolist(), strict=True))
                    assert len(pairs) == len(set(words))
                    checked += len(words)
        assert checked > 1000
        assert chosen / ordinary == pytest.approx(0.15, abs=0.002)
        batch, alone = collate(examples[:8]), collate([examples[5]])
        start, end = batch["cu_seq_lens_q"][5:7]
        assert torch.equal(batch["input_ids"][:, start:end], alone["input_ids"])
    # A corpus without words.
    assert ("continues_word" in examples[0]) == (kind != "wordpiece")
    old = {name: value for name, value in examples[0].items() if name != "continues_word"}
    SnugBertDataCollatorForPretraining(tokenizer)([old])
    if kind != "wordpiece":
        with pytest.raises(
            InputError,
            match=r"spans: the examples have no `continues_word`\. Prepare the text with `store_",
        ):
            collators["spans"]([old])


def test_only_words_and_spans_need_a_corpus_with_words(small, tmp_path):
    """A corpus without words has the same tokens."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "w", *(f"##{digit}" for digit in range(10))]
    tokenizer = make_tokenizer("bpe", tokens)
    new = prepare(tmp_path / "new", tokenizer, small.text, language=None, num_workers=1, store_words=True)
    prepare(tmp_path / "old", tokenizer, small.text, language=None, num_workers=1)

    def load(folder, masking):
        arguments = PretrainingDataArguments(corpus=str(tmp_path / folder), masking=masking)
        return open_prepared(arguments, tokenizer, tmp_path)

    assert not load("old", "tokens").has_words and load("new", "spans").has_words
    assert content(load("old", "tokens")) == content(new)
    with pytest.raises(InputError, match=r"--corpus: .*old was prepared without the words that --masking words needs"):
        load("old", "words")


def test_an_example_is_described():
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
        "A  [MASK]{cats} [MASK]{sleep} [MASK]{##ing} [MASK]{.}",
        "B  [MASK]{##ing} [MASK]{cats}",
    ]
    kept = describe("sop", mask_replace_prob=0, random_replace_prob=0)
    assert kept.splitlines() == [
        "A and B are swapped, 9 tokens, 6 to predict",
        "A  cats{cats} sleep{sleep} ##ing{##ing} .{.}",
        "B  ##ing{##ing} cats{cats}",
    ]
    few = describe(mlm_probability=0.01)
    assert "9 tokens, 1 to predict" in few
    assert re.sub(r"\S+?\{(\S+?)\}", r"\1", few).splitlines()[1:] == ["A  cats sleep ##ing .", "B  ##ing cats"]
    del example["next_sentence_label"]
    example["input_ids"] = np.array([2, *[5, 6] * 20, 3, 8, 3])
    documents = describe("mlm", mlm_probability=0.1).splitlines()
    assert len(documents) == 3 and documents[0] == "44 tokens, 4 to predict" and documents[1].startswith("-  ")


def test_characters_of_several_bytes_are_readable():
    """Except parts of a character."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ĠÃ", "ĠÃĦ"]
    tokenizer = make_tokenizer("byte-bpe", tokens, [("Ġ", "Ã"), ("ĠÃ", "Ħ")])
    example = {"input_ids": np.array(tokenizer("aÄ Ä Ä")["input_ids"])}
    few = SnugBertDataCollatorForPretraining(tokenizer, 0.01, mask_replace_prob=1, random_replace_prob=0)
    shown = {few.describe(example | {"mask_seed": number}, "mlm").splitlines()[1] for number in range(40)}
    assert {"-  Ġ a Ã Ħ [MASK]{ĠÄ} ĠÄ"} <= shown
