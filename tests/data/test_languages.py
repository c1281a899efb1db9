"""Language codes, and the language that tokenizers, corpora and checkpoints store."""

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from transformers import AutoConfig, AutoTokenizer, BertConfig, BertTokenizer

import snugbert
from snugbert.data.corpus.corpus import open_corpus
from snugbert.data.corpus.preparation import prepare_corpus
from snugbert.data.documents import split_sentences
from snugbert.data.languages import choose_language, read_language, store_language, stored_in_model
from snugbert.errors import InputError
from snugbert_cli import main as snugbert_command


@pytest.mark.parametrize(("code", "number"), [("pt", 2), ("pt-pt", 2), ("pt_BR", 2), ("pt-419", 2), ("en-gb", 3)])
def test_a_region_has_the_rules_of_its_language(code, number):
    assert len(split_sentences(["A Sra. Maria chegou. Ela ficou."], code)) == number


@pytest.mark.parametrize(
    ("given", "stored", "chosen"),
    [
        (None, [None, "de"], "de"),
        ("pt-br", ["pt"], "pt-br"),  # a region contradicts nothing
        (None, ["zh-hans", "zh"], "zh-hans"),
        ("de", ["mul"], "de"),  # neither do several languages
        (None, ["mul", "de"], "de"),
        ("de", [None, "en"], "the language is de in --language, but en in the file 1. Change one: the flag "),
        ("de", ["de", "fr"], "the language is de in --language, but fr in the file 1. "),
        (None, ["de", "en"], "the language is de in the file 0, but en in the file 1. "),
    ],
)
def test_a_contradiction_names_both(given, stored, chosen):
    files = [(f"the file {index}", language) for index, language in enumerate(stored)]
    if chosen is not None and " " in chosen:
        with pytest.raises(InputError) as raised:
            choose_language(given, files)
        assert chosen in str(raised.value)
    else:
        assert choose_language(given, files) == chosen


def test_configurations_and_tokenizers_keep_the_language(tmp_path):
    config, tokenizer = snugbert.SnugBertConfig.from_size("tiny"), snugbert.SnugBertTokenizer()
    for language, folder in ((None, tmp_path / "without"), ("de", tmp_path / "with")):
        store_language(language, config, tokenizer)
        for part in (config, tokenizer):
            part.save_pretrained(folder)
    for file in (tmp_path / "without").glob("*config.json"):
        assert "language" not in json.loads(file.read_text())
    for value in ("english", "German", ["de"], 5, None, ""):  # FARM wrote names into public checkpoints
        assert read_language(BertConfig(language=value)) is None
    for reader in (AutoConfig, AutoTokenizer, snugbert.SnugBertConfig, BertConfig, BertTokenizer):
        reader.from_pretrained(tmp_path / "with").save_pretrained(tmp_path / "again")
        assert read_language(reader.from_pretrained(tmp_path / "again")) == "de"
    # The checkpoint's language replaces the one of its own tokenizer, but not of another.
    config.language = "fr"
    for model, given, expected in (("model", None, ["fr"]), ("model", "tok", ["fr", "de"]), (None, "tok", ["de"])):
        assert [language for _, language in stored_in_model(config, tokenizer, model, given)] == expected


def write_german(file: Path, documents: int) -> None:
    """Documents of three sentences. By the rules of English, an abbreviation ends a sentence."""
    nouns = ("Brücke", "Küche", "Straße", "Tür", "Katze", "Schule")
    sentences = [f"Die {noun} hört bzw. sieht Hr. Weiß am 1. März." for noun in nouns * documents]
    texts = [" ".join(sentences[5 * number : 5 * number + 3]) for number in range(documents)]
    file.write_text("\n\n".join(texts) + "\n", encoding="utf-8")


@pytest.mark.usefixtures("one_thread")
def test_commands_take_the_language_from_the_tokenizer_the_corpus_and_the_checkpoint(tmp_path, monkeypatch, capsys):
    """`vocabulary --language de`, and no flag afterwards. Every text is split by the rules of German."""
    monkeypatch.chdir(tmp_path)
    write_german(Path("train.txt"), 40)
    write_german(Path("dev.txt"), 12)
    sizes = "num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=16"
    short = ["--max_seq_length", "24", "--cache_dir", "cache"]
    run = [*short, "--max_steps", "2", "--use_cpu", "--per_device_train_batch_size", "4", "--output_dir"]
    text, held_out = ["--train_file", "train.txt"], ["--validation_file", "dev.txt"]

    def command(*arguments: str, status: int = 0) -> str:
        assert snugbert_command(list(arguments)) == status
        return "".join(capsys.readouterr())

    command("vocabulary", "--language", "de", *text, "--vocab_size", "200", "--output_dir", "tok")
    tokenizer = AutoTokenizer.from_pretrained("tok")
    command("prepare", "--tokenizer_name", "tok", *text, "--output_dir", "corpus")
    corpus = open_corpus("corpus", tokenizer)
    assert (corpus.language, corpus.num_sentences) == ("de", 120)
    assert prepare_corpus("train.txt", tokenizer, "in_python", show_progress=False).digest == corpus.digest
    new = ["--tokenizer_name", "tok", "--config_name", "tiny", "--config_overrides", sizes]
    command("pretrain", *new, "--corpus", "corpus", *held_out, *run, "pretrained")
    (dev,) = Path("cache/snugbert").iterdir()
    assert (open_corpus(dev, tokenizer).language, open_corpus(dev, tokenizer).num_sentences) == ("de", 36)
    assert ModelCard.load("pretrained/README.md").data.language == "de"
    assert json.loads(Path("pretrained/config.json").read_text())["language"] == "de"
    command("evaluate", "--model_name_or_path", "pretrained", *held_out, *text, *short)
    assert sorted(open_corpus(each, tokenizer).num_sentences for each in Path("cache/snugbert").iterdir()) == [36, 120]

    for arguments, place in (
        (["prepare", "--tokenizer_name", "tok", *text, "--output_dir", "x"], "the tokenizer tok"),
        (["vocabulary", "--init", "pretrained", *text, "--output_dir", "x"], "the tokenizer pretrained"),
        (["pretrain", *new, "--corpus", "corpus", *held_out, *run, "x"], "the corpus corpus"),
        (["pretrain", "--model_name_or_path", "pretrained", *text, *run, "x"], "the checkpoint"),
        (["evaluate", "--model_name_or_path", "pretrained", *held_out, *short], "the checkpoint pretrained"),
    ):
        error = command(*arguments, "--language", "fr", status=2)
        assert f"the language is fr in --language, but de in {place}" in error and "Change one: the flag" in error


def test_a_corpus_of_lines_stores_its_language_only_if_it_is_known(tmp_path, words_tokenizer):
    (tmp_path / "text.txt").write_text("w1 w2\nw3\n")
    for lines, given, stored in ((True, None, None), (True, "de", "de"), (False, None, "en")):
        options = {"lines_are_sentences": lines, "language": given, "show_progress": False}
        corpus = prepare_corpus(tmp_path / "text.txt", words_tokenizer, tmp_path / f"{lines} {given}", **options)
        assert corpus.language == stored and (corpus.settings["sentence_splitter"] is None) == lines
