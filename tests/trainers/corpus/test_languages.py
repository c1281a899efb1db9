"""Language codes."""

import pytest

from snugbert.errors import InputError
from snugbert.trainers.corpus.arguments import PreparationArguments
from snugbert.trainers.corpus.languages import check_language, primary_language
from snugbert.trainers.corpus.preparation import prepare_corpus
from snugbert.trainers.documents import split_sentences


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("klingon", "Give an ISO 639 code"),
        ("english", "Did you mean en?"),
        ("", "Give an ISO 639 code"),
        ("EN ", "Did you mean en?"),
    ],
)
def test_a_name_is_not_a_code(code, hint, tmp_path):
    message = rf"--language '{code}' is not a language code\. .*{hint}".replace("?", r"\?")
    for prepare in (
        lambda: PreparationArguments(language=code),
        lambda: prepare_corpus([], None, tmp_path, language=code),
    ):
        with pytest.raises(InputError, match=message):
            prepare()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("code", ["en", "nds", "ceb", "war", "fil", "en-us", "pt_PT", "zh-hans", "zh-min-nan"])
def test_codes(code):
    check_language(code)
    assert primary_language(code) in ("en", "nds", "ceb", "war", "fil", "pt", "zh")


@pytest.mark.parametrize(("code", "number"), [("pt", 2), ("pt-pt", 2), ("pt_BR", 2), ("pt-419", 2), ("en-gb", 3)])
def test_a_region_has_the_rules_of_its_language(code, number):
    assert len(split_sentences(["A Sra. Maria chegou. Ela ficou."], code)) == number
