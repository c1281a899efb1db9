"""`--init` extends tokenizers and models, and refuses contradictions."""

import json
import shutil
from itertools import islice
from pathlib import Path

import pytest
import torch
from family_checkpoints import write_checkpoint
from parity import perturb
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForPreTraining,
    BertTokenizer,
)
from vocabularies import split_longest_first, train, write_ties

from snugbert import (
    SnugBertForMaskedLM,
    SnugBertForPreTraining,
    SnugBertForReplacedTokenDetection,
    SnugBertTokenizer,
)
from snugbert.cli.main import run_command
from snugbert.cli.model_arguments import ModelArguments
from snugbert.data.documents import read_lines
from snugbert.errors import InputError
from snugbert.families.loading import load_config
from snugbert.trainers.pretraining.electra import load_pair

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=[True])
def small_checkpoint(tmp_path: Path, request) -> Path:
    """A cased stock BERT with an added token, random biases, and more embeddings than tokens.

    It has more heads than its configuration names, as google-bert's have. The output is tied, or not.
    """
    train(tmp_path / "vocab", "--train_file", write_ties(tmp_path), "--vocab_size", "40", "--no_do_lower_case")
    tokenizer = BertTokenizer(vocab=str(tmp_path / "vocab/vocab.txt"), do_lower_case=False, model_max_length=1024)
    tokenizer.add_tokens(["snug-bert"])
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig(vocab_size=48, **sizes, tie_word_embeddings=request.param))
    perturb(model, 0.1)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "old")
    file = tmp_path / "old/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": ["BertForMaskedLM"]}))
    return tmp_path / "old"


@pytest.mark.parametrize("small_checkpoint", [True, False], indirect=True, ids=["tied", "untied"])
def test_init_extends_embeddings_and_output_bias_and_keeps_everything_else(tmp_path, small_checkpoint, capsys):
    text = ["--train_file", tmp_path / "ties.txt", "--vocab_size", "80"]
    tokens = train(tmp_path / "new", "--init", small_checkpoint, *text)
    assert "Added 39 tokens to the 41 of" in capsys.readouterr().out
    before = BertForPreTraining.from_pretrained(small_checkpoint).eval()
    after, info = SnugBertForPreTraining.from_pretrained(tmp_path / "new", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    old, new = AutoTokenizer.from_pretrained(small_checkpoint), AutoTokenizer.from_pretrained(tmp_path / "new")
    assert type(new) is SnugBertTokenizer and tokens[:41] == old.convert_ids_to_tokens(range(41))
    assert len(old) == 41 and len(set(tokens)) == len(new) == after.config.vocab_size == 80
    assert new.tokenize("aebc snug-bert AEBC")[-2:] == ["snug-bert", "[UNK]"]
    assert (new.convert_tokens_to_ids("snug-bert"), new.do_lower_case, new.model_max_length) == (40, False, 1024)
    tables = []
    for model in (before, after):
        vectors, output = model.get_input_embeddings().weight, model.get_output_embeddings()
        tables.append((vectors, output.weight, output.bias))
    assert len({vectors is output for vectors, output, _ in tables}) == 1  # both tied, or none
    for table, longer in zip(*tables, strict=True):
        assert torch.equal(longer[:41], table[:41])
        for index in range(41, 80):
            ids = split_longest_first(new.convert_ids_to_tokens(index), old.get_vocab())
            assert len(ids) > 1
            torch.testing.assert_close(longer[index], table[ids].mean(dim=0))
    inputs = old("ae bc", return_tensors="pt")
    expected, found = before(**inputs), after.eval()(**inputs)
    torch.testing.assert_close(found.seq_relationship_logits, expected.seq_relationship_logits)
    torch.testing.assert_close(found.prediction_logits[..., :41], expected.prediction_logits[..., :41])


def extend(old: Path, file: Path, size: int, new: Path, *flags: str) -> None:
    arguments = ["--init", str(old), "--train_file", str(file), "--vocab_size", str(size), "--output_dir", str(new)]
    run_command("vocabulary", [*arguments, *flags])


@pytest.mark.slow
def test_init_extends_the_generator_of_an_electra(tmp_path, some_text):
    """Both models get the same new embeddings, because they share them."""
    old, new = write_checkpoint(tmp_path / "old", "electra", "ForPreTraining"), tmp_path / "new"
    tokenizer = AutoTokenizer.from_pretrained(old)
    args = ModelArguments(model_name_or_path=str(old))
    pair = load_pair(args, load_config(args, tokenizer), tokenizer, generator_size=0.5)
    pair.generator.save_pretrained(old / "generator")
    tokenizer.save_pretrained(old / "generator")
    size = len(tokenizer) + 50
    extend(old, some_text, size, new)
    discriminator = SnugBertForReplacedTokenDetection.from_pretrained(new)
    generator, info = SnugBertForMaskedLM.from_pretrained(new / "generator", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and generator.config.vocab_size == size
    for name, table in discriminator.bert.embeddings.named_parameters():
        assert torch.equal(generator.bert.embeddings.get_parameter(name), table)
    assert len(AutoTokenizer.from_pretrained(new / "generator")) == size

    shutil.rmtree(old / "generator")
    extend(old, some_text, size, new, "--overwrite_output_dir")
    assert not (new / "generator").exists()  # it would belong to another model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_init_continues_merging(tmp_path: Path, bpe_folders, some_text, data_dir, kind, capsys):
    extend(bpe_folders[kind], some_text, 6000, tmp_path)
    assert "only the tokenizer was extended" in capsys.readouterr().out
    old, new = AutoTokenizer.from_pretrained(bpe_folders[kind]), AutoTokenizer.from_pretrained(tmp_path)
    assert {token: index for token, index in new.get_vocab().items() if index < 4000} == old.get_vocab()
    assert len(new) == 6000 and new.mask_token_id == 4 and new("a", "b")["token_type_ids"][-1] == 1
    lines = list(islice(read_lines([data_dir / "wiki_en/validation.txt.gz"]), 100))
    cuts = [
        [tokenizer(line, return_offsets_mapping=True, verbose=False) for line in lines] for tokenizer in (old, new)
    ]
    for before, after in zip(*cuts, strict=True):
        # New tokens only remove boundaries between old tokens.
        assert {end for _, end in after["offset_mapping"]} <= {end for _, end in before["offset_mapping"]}
        assert old.decode(before["input_ids"]) == new.decode(after["input_ids"])
    lengths = [sum(len(cut["input_ids"]) for cut in side) for side in cuts]
    assert lengths[1] < 0.95 * lengths[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vocab_size", "41"], r"--vocab_size 41 must be above the 41 tokens of .*old"),
        (["--model", "bpe"], r"--model: the new tokens are split as in .*old. Remove the flag"),
        (["--no_tokenize_chinese_chars"], r"--tokenize_chinese_chars: the new tokens are split as in .*old"),
        (["--init", "{folder}/other"], r"--init: the tokenizer of .*other cannot be extended"),
        (["--init", "{folder}/decoder"], r"config\.json: unsupported architecture BertLMHeadModel\. Supported: BertM"),
    ],
)
def test_init_refuses_what_contradicts_or_cannot_be_extended(tmp_path, small_checkpoint, arguments, message):
    for name in ("other", "decoder"):
        shutil.copytree(small_checkpoint, tmp_path / name)
    for name, change in (
        ("other/tokenizer.json", {"pre_tokenizer": {"type": "Whitespace"}}),
        ("other/tokenizer_config.json", {"tokenizer_class": "TokenizersBackend"}),
        ("decoder/config.json", {"architectures": ["BertLMHeadModel"]}),
    ):
        (tmp_path / name).write_text(json.dumps(json.loads((tmp_path / name).read_text()) | change))
    arguments = [argument.format(folder=tmp_path) for argument in arguments]
    text = ["--train_file", tmp_path / "ties.txt", "--vocab_size", "80"]
    with pytest.raises(InputError, match=message):
        train(tmp_path / "new", "--init", small_checkpoint, *text, *arguments)
    assert not list(tmp_path.glob("new/*"))
