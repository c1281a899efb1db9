"""The folder that `snugbert vocabulary` writes, and its summary."""

from itertools import chain
from pathlib import Path

import pytest
from transformers import BertTokenizer
from vocabularies import DOCUMENTS, train

from snugbert import SnugBertTokenizer
from snugbert.errors import InputError
from snugbert_cli import run_command

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_the_folder_opens_as_snugberts_and_as_berts_tokenizer(tmp_path: Path, text_file: Path, do_lower_case: bool):
    casing = "--do_lower_case" if do_lower_case else "--no_do_lower_case"
    tokens = train(tmp_path / "tok", "--train_file", text_file, casing)
    tokenizer = SnugBertTokenizer.from_pretrained(tmp_path / "tok")
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == tokens
    assert sorted(tokenizer.all_special_ids) == [0, 1, 2, 3, 4]
    assert tokenizer.model_max_length == 512
    bert = BertTokenizer(vocab=str(tmp_path / "tok" / "vocab.txt"), do_lower_case=do_lower_case)
    for document in DOCUMENTS:
        ids = tokenizer(document)["input_ids"]
        assert ids == bert(document)["input_ids"]
        assert tokenizer.unk_token_id not in chain.from_iterable(ids)
    assert ("The" in tokens) is not do_lower_case


def test_the_summary_names_the_result_and_the_next_command(tmp_path: Path, text_file: Path, capsys):
    tokens = train(tmp_path / "my tok", "--train_file", text_file)
    printed = capsys.readouterr().out
    assert f"Learned {len(tokens)} tokens (wordpiece) from 35 words (29 distinct)." in printed
    assert "Note: the vocabulary has fewer than 30,522 tokens" in printed
    files = ", ".join(sorted(file.name for file in (tmp_path / "my tok").iterdir()))
    assert f"Written to {tmp_path / 'my tok'}: {files}\n" in printed and "tokenization_snugbert.py" in files
    next_command = f"Next: snugbert pretrain --tokenizer_name '{tmp_path / 'my tok'}' --config_name mini --train_file"
    assert f"{next_command} {text_file} --output_dir pretrained" in printed


def test_bad_text_is_counted_and_the_next_command_has_the_same_flags(tmp_path: Path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b'{"body": "two words"}\n{"body": "b\xffd"}\n{"body": 5}\n')
    arguments = ("--train_file", rows, "--text_column_name", "body", "--on_bad_text")
    with pytest.raises(
        InputError, match=r"rows.jsonl, line 2: not UTF-8 .* To continue, set --on_bad_text skip or replace\."
    ):
        train(tmp_path / "tok", *arguments[:-1])
    train(tmp_path / "tok", *arguments, "skip")
    printed = capsys.readouterr().out
    assert "from 2 words" in printed
    assert f"Note: --on_bad_text skip: 2 bad lines left out. The first: {rows}, line 2: not UTF-8" in printed
    assert f"--train_file {rows} --text_column_name body --on_bad_text skip --output_dir pretrained" in printed
    rows.write_bytes(b'{"body": 5}\n')
    with pytest.raises(InputError, match=r"rows.jsonl: the text is empty. --on_bad_text skip: 1 bad line left out."):
        train(tmp_path / "other", *arguments, "skip")


def test_an_output_folder_is_replaced_only_on_request(tmp_path: Path, text_file: Path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/vocab.txt").write_text("somebody else's")
    with pytest.raises(InputError, match="already contains a tokenizer"):
        train(tmp_path / "theirs", "--train_file", text_file)
    first = train(tmp_path / "tok", "--train_file", text_file)
    with pytest.raises(InputError, match=r"already contains a tokenizer or a model. .*--overwrite_output_dir"):
        train(tmp_path / "tok", "--train_file", text_file, "--vocab_size", "60")
    assert (tmp_path / "tok" / "vocab.txt").read_text(encoding="utf-8").splitlines() == first
    arguments = ("--train_file", text_file, "--vocab_size", "60", "--overwrite_output_dir")
    assert len(train(tmp_path / "tok", *arguments)) == 60
    run_command(
        "vocabulary",
        [*map(str, arguments[:2]), "--model", "bpe", "--overwrite_output_dir", "--output_dir", str(tmp_path / "tok")],
    )
    assert not (tmp_path / "tok/vocab.txt").exists()  # otherwise the folder would open as WordPiece
    with pytest.raises(InputError, match="is a file, not a folder"):
        train(text_file, "--train_file", text_file)
