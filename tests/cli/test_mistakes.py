"""Mistyped flags, files, folders and reporters."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import httpx

from snugbert.errors import InputError
from snugbert.families.loading import check_repository
from snugbert_cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working directory of a user, with text and a model."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/train.txt.gz").touch()
    (tmp_path / "corpus/dev.txt.gz").touch()
    (tmp_path / "out/classifier").mkdir(parents=True)
    (tmp_path / "out/bert_model.ckpt.index").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUN = "--model_name_or_path bert --output_dir x"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pretrain --outptu_dir x", "unknown argument --outptu_dir. Did you mean --output_dir?"),
        ("glue --epochs 3", "unknown argument --epochs. Did you mean --num_train_epochs?"),
        ("demo --config no.yaml", "--config: "),
        ("pretrain --train_file corpus/*.gz corpsu/*.gz", "--train_file: corpsu/*.gz: no such file."),
        ("predict --model_name_or_path b --output_file x --input_file corpus/trian.txt.gz", "mean corpus/train."),
        (
            "vocabulary --output_dir x --train_file corpus",
            "corpus is a folder. Pass a file in it, or for text a pattern such as 'corpus/*'.",
        ),
        ("glue --output_dir x --model_name_or_path ./nope", "--model_name_or_path: the folder ./nope does not exist."),
        ("demo --model out/classifer", "the folder out/classifer does not exist. Did you mean out/classifier?"),
        (f"ner {RUN} --tokenizer-name out/x/y", "--tokenizer_name: the folder out/x/y does not exist."),
        (f"ner {RUN} --report_to mlfow", "--report_to: unknown value 'mlfow'. Did you mean mlflow? Choose one of "),
        (f"ner {RUN} --report_to neptune", "--report_to neptune: its package is not installed."),
        ("prepare --language Deutsch", "--language 'Deutsch' is not a language code. Use a lowercase ISO 639 code"),
    ],
)
def test_mistakes(line, words, folder, capsys):
    assert main(line.split()) == 2
    assert words in capsys.readouterr().err


def test_a_name_that_is_nowhere(folder, monkeypatch):
    with pytest.raises(InputError, match=r"^corpsu: no such folder, no earlier download in .* Did you mean corpus\?$"):
        check_repository("corpsu", cache_dir=str(folder))
    (folder / "models--me--bert/snapshots").mkdir(parents=True)
    for name in ("corpus", "me/bert"):
        check_repository(name, cache_dir=str(folder))
    answer = httpx.Response(404, request=httpx.Request("GET", "https://huggingface.co"))
    unknown = RepositoryNotFoundError("Repository Not Found", response=answer)
    monkeypatch.setattr(HfApi, "model_info", Mock(side_effect=unknown))
    with pytest.raises(InputError, match=r"^corpsu: no such folder, and no such repository on the Hub\. Did"):
        check_repository("corpsu", revision="main", token="x", cache_dir=str(folder))
