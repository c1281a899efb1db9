"""Language codes."""

import pytest

from snugbert.errors import InputError
from snugbert.trainers.corpus.arguments import PreparationArguments
from snugbert.trainers.corpus.languages import check_language
from snugbert.trainers.corpus.preparation import prepare_corpus


@pytest.mark.parametrize(
    ("code", "hint"), [("klingon", "Give an ISO 639-1 code"), ("DE", "Did you mean de?"), ("en_US", "mean en?")]
)
def test_an_unknown_language_is_refused(code, hint, tmp_path):
    message = rf"--language '{code}' is not a known language code\. .*{hint}".replace("?", r"\?")
    for prepare in (
        lambda: PreparationArguments(language=code),
        lambda: prepare_corpus([], None, tmp_path, language=code),
    ):
        with pytest.raises(InputError, match=message):
            prepare()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("code", ["en", "de", "tr", "zh", "zh-hans", "nds"])
def test_known_languages(code):
    check_language(code)
