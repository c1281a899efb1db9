"""Case and accents: defaults of a language, and what the command reports about them."""

from itertools import chain

import pytest
from babel import Locale
from transformers import AutoTokenizer, BertTokenizer

from snugbert.data.documents import read_lines
from snugbert.data.languages import read_language
from snugbert.errors import InputError
from snugbert.vocabulary import casing
from snugbert.vocabulary.casing import MANY_ACCENTS, TextSample
from snugbert.vocabulary.learning import KINDS
from snugbert_cli import run_command

pytestmark = pytest.mark.usefixtures("one_thread")

GERMAN = ["Es ist schon dunkel.", "Der Hund ist schön, und die Küche ist schön.", "Schon schön!"]


@pytest.fixture
def german(tmp_path):
    (tmp_path / "german.txt").write_text("\n".join(GERMAN), encoding="utf-8")
    return tmp_path / "german.txt"


def learn(folder, file, *arguments):
    flags = ["--vocab_size", "600", "--overwrite_output_dir", *arguments]
    run_command("vocabulary", ["--train_file", str(file), "--output_dir", str(folder), *flags])
    return AutoTokenizer.from_pretrained(folder)


def to_text(tokenizer, text):
    return tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("kind", KINDS)
def test_other_languages_than_english_keep_case_and_accents(kind, german, tmp_path):
    both = "Schon schön"
    of_kind = ("--model", kind)
    assert to_text(learn(tmp_path / "tok", german, *of_kind, "--language", "de"), both) == both
    assert read_language(AutoTokenizer.from_pretrained(tmp_path / "tok")) == "de"
    assert to_text(learn(tmp_path / "tok", german, *of_kind, "--language", "mul"), both) == both
    unchanged = both if kind == "byte-bpe" else "schon schon"
    for english in ([], ["--language", "en"], ["--language", "en-gb"]):
        assert to_text(learn(tmp_path / "tok", german, *of_kind, *english), both) == unchanged
    # Given flags win. Lowercased text keeps the accents of the language.
    for flags, expected in (
        (["--do_lower_case"], "schon schön"),
        (["--do_lower_case", "--strip_accents"], "schon schon"),
        (["--strip_accents"], "Schon schon"),
    ):
        assert to_text(learn(tmp_path / "tok", german, *of_kind, "--language", "de", *flags), both) == expected
    for flags in (["--no_strip_accents"], ["--strip_accents", "false"]):
        assert to_text(learn(tmp_path / "tok", german, *of_kind, "--do_lower_case", *flags), both) == "schon schön"
    with pytest.raises(InputError, match="--strip_accents and --no_strip_accents exclude each other"):
        learn(tmp_path / "tok", german, "--strip_accents", "--no_strip_accents")


def test_the_default_of_german_is_the_one_of_multilingual_bert(german, tmp_path):
    tokenizer = learn(tmp_path / "tok", german, "--language", "de")
    cased = BertTokenizer(vocab=str(tmp_path / "tok/vocab.txt"), do_lower_case=False)  # bert-base-multilingual-cased
    assert [tokenizer(line)["input_ids"] for line in GERMAN] == [cased(line)["input_ids"] for line in GERMAN]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            [],
            "Case and accents: both removed (schön -> schon). 26.7% of the words have accents. If the text is not "
            "English, add --language, such as --language de, which keeps case and accents.",
        ),
        (["--language", "de"], "Case and accents: both kept. To change this: --do_lower_case or --strip_accents."),
        (
            ["--no_strip_accents"],
            "Case: removed. Accents: kept. To change this: --no_do_lower_case or --strip_accents or --language.",
        ),
        (
            ["--language", "en"],
            "Case and accents: both removed (schön -> schon). To change this: --no_do_lower_case or "
            "--no_strip_accents.",
        ),
        (
            ["--model", "byte-bpe"],
            "Case and accents: both kept. To change this: --do_lower_case or --strip_accents.",
        ),
    ],
)
def test_one_line_reports_the_choice_and_the_example_shows_it(flags, line, german, tmp_path, capsys):
    learn(tmp_path / "tok", german, *flags)
    printed = capsys.readouterr().out.splitlines()
    assert line in printed
    assert f"Example: {GERMAN[1]}" in printed  # the first line with an accent
    assert ("Add --language if the text is not English." in printed) is ("--language" not in flags)


def test_the_settings_of_an_existing_tokenizer_hold(german, tmp_path, capsys):
    learn(tmp_path / "old", german)
    capsys.readouterr()
    more = german.with_name("more.txt")
    more.write_text("Schöne Hunde, schöne Hunde", encoding="utf-8")
    flags = ["--init", str(tmp_path / "old"), "--language", "de"]
    tokenizer = learn(tmp_path / "new", more, *flags)
    assert to_text(tokenizer, "Schon schön") == "schon schon" and read_language(tokenizer) == "de"
    line = f"Case and accents: both removed (schöne -> schone). These settings of {tmp_path / 'old'} hold."
    assert line in capsys.readouterr().out.splitlines()
    with pytest.raises(InputError, match=r"--strip_accents false: the tokenizer of .* was learned with true"):
        learn(tmp_path / "new", more, *flags, "--no_strip_accents")
    with pytest.raises(InputError, match=r"--language fr: the tokenizer .*new stores de"):
        learn(tmp_path / "newer", more, "--init", str(tmp_path / "new"), "--language", "fr")


@pytest.mark.parametrize("code", ["de", "fr", "pl", "vi", "ru", "el", "hi", "tr"])
def test_languages_with_accents_are_recognized(code):
    """Names of countries and languages, also in scripts whose vowels or letters count as accents."""
    locale = Locale(code)
    assert TextSample(chain(locale.territories.values(), locale.languages.values())).share_with_accents > 0.05


def test_english_text_is_recognized(data_dir):
    for name in ("wiki_en/train.txt.gz", "books_en/train-00.txt.gz"):
        sample = TextSample(read_lines([data_dir / name]))
        assert sample.share_with_accents < MANY_ACCENTS and sample.find_affected_word() in ("The", "They")


def test_a_sample_loses_no_line_and_its_example_contains_the_word(monkeypatch):
    monkeypatch.setattr(casing, "SAMPLE_CHARACTERS", 500)
    lines = ["plain words", "x " * 60 + "a Word " + "y " * 300, "Late"]
    sample = TextSample(iter(lines))
    assert list(sample.lines) == lines
    assert sample.find_affected_word() == "Word" and sample.find_example() == ("Word " + "y " * 50)[:100]
    assert TextSample(["plain words"]).find_example() == "plain words"
    combining = TextSample(["e\u0301te\u0301"])
    assert combining.share_with_accents == 1
