"""Measurements of text, corpora, rows and masks."""

import pytest
from markdown_tables import cells

from snugbert import SnugBertTokenizer

pytestmark = pytest.mark.long


def test_data_preparation(data_dir, minilm, capsys):
    from data_preparation import main

    text = str(data_dir / "sample_text/sample_text.txt")
    settings = ["--max_seq_length", "64", "--num_workers", "1", "--rounds", "1", "--skip_memory"]
    main(["--train_file", text, "--tokenizer_name", str(minilm), *settings])
    _, *rows = cells(capsys.readouterr().out)
    rates = {row[0]: [float(cell.replace(",", "")) for cell in row[1:] if cell] for row in rows}
    both = [stage for stage, values in rates.items() if len(values) == 3]
    assert len(both) == 4 and len(rates) - len(both) == 4
    for stage in both:
        ours, theirs, ratio = rates[stage]
        assert ratio == pytest.approx(ours / theirs, abs=0.06)


def test_the_original_recipe(minilm):
    from data_preparation import original_masks, original_pairs, original_tokens

    tokenizer = SnugBertTokenizer.from_pretrained(minilm)
    texts = [[f"Sentence {name}{number} is not the last, naïvely." for number in range(30)] for name in "abc"]
    tokens = original_tokens(texts, tokenizer)
    assert tokens == [[tokenizer.tokenize(text) for text in document] for document in texts]
    pairs = original_pairs(tokens, 64, seed=0)
    documents = ["".join(piece for sentence in document for piece in sentence) for document in tokens]
    same = 0
    for first, second in pairs:
        assert 0 < len(first) and 0 < len(second) and len(first) + len(second) <= 61
        (home,) = [number for number, document in enumerate(documents) if "".join(first) in document]
        same += "".join(second) in documents[home]
    assert 0.3 < same / len(pairs) < 0.7
    for (first, second), (ids, segments, places, labels) in zip(
        pairs, original_masks(pairs, tokenizer, 0), strict=True
    ):
        plain = tokenizer.convert_tokens_to_ids(["[CLS]", *first, "[SEP]", *second, "[SEP]"])
        assert segments == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert len(places) == round(len(plain) * 0.15) and [plain[place] for place in places] == labels
        assert {place for place, (shown, true) in enumerate(zip(ids, plain, strict=True)) if shown != true} <= {
            *places
        }


def test_row_sizes(data_dir, capsys, monkeypatch):
    import row_sizes

    monkeypatch.setattr(row_sizes, "PRETRAINING", ((2, 32, True), (2, 32, False)))
    text, glue = str(data_dir / "sample_text/sample_text.txt"), str(data_dir / "glue")
    row_sizes.main(["--train_file", text, "--glue_dir", glue, "--tasks", "wnli", "--batches", "3"])
    _, *rows = cells(capsys.readouterr().out)
    assert [row[0] for row in rows][2:] == ["WNLI"] and rows[0][0].startswith("pretraining")
    for _, tokens, multiple, sizes, padding, frequent in rows:
        assert int(sizes) <= 3 and frequent == "100.0%"
        assert float(padding.rstrip("%")) / 100 <= int(multiple) / int(tokens.replace(",", ""))
