"""The examples in model cards are in the language of the model."""

import ast
import re

import pytest

from snugbert.card_heads_snugbert import EXAMPLE_SENTENCES, HEADS, how_to_load


def read_masked_texts(section: str) -> list[str]:
    """Returns the text of each `fill_mask` call in the code of a card. The mask is written [MASK]."""
    texts = []
    for code in section.split("```python\n")[1:]:
        for node in ast.walk(ast.parse(code.partition("```")[0])):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "[MASK]" for part in node.values)
                texts.append("".join(parts))
    return texts


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForPreTraining"])
@pytest.mark.parametrize(
    ("language", "text"),
    [
        (None, "Paris is the [MASK] of France."),
        (["en", "de"], "Paris is the [MASK] of France."),
        ("de", "Paris ist die [MASK] von Frankreich."),
        ("pt-BR", "Paris é a [MASK] da França."),
        (["fr"], "Paris est la [MASK] de la France."),
        ("yo", "... [MASK] ..."),  # no sentence rather than one in another language
    ],
)
def test_the_masked_sentence_is_in_the_language_of_the_model(head, language, text):
    assert read_masked_texts(how_to_load("me/model", HEADS[head], language)) == [text, text]


@pytest.mark.parametrize("head", HEADS)
def test_other_texts_are_english_or_dots(head):
    assert "..." not in how_to_load("me/model", HEADS[head], "en")
    german = how_to_load("me/model", HEADS[head], "de")
    assert german.count("# Replace the dots with text in the language of the model.") == 2 * (head != "ForMaskedLM")
    texts = [text for text in re.findall('"(.*?)"', german) if " " in text and "mask_token" not in text]
    assert not texts


def test_every_sentence_has_one_mask():
    assert len(EXAMPLE_SENTENCES) > 20
    for language, sentence in EXAMPLE_SENTENCES.items():
        assert read_masked_texts(how_to_load("me/model", HEADS["ForMaskedLM"], language)) == [sentence, sentence]
        assert sentence.count("[MASK]") == 1
