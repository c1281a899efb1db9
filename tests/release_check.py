"""`make release-check`: checks the files of a release, and that the installed wheel works on its own.

    python tests/release_check.py files dist                 # the archives
    python tests/release_check.py light                      # in an environment with only the wheel
    python tests/release_check.py train                      # the same, after `pip install 'snugbert[train]'`
    python tests/release_check.py bill dist/train.cdx.json   # the bill of materials of that environment

`light` and `train` run in a temporary folder, with the installed package and command.
"""

import csv
import json
import os
import pydoc_data.topics
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import metadata, packages_distributions
from pathlib import Path

from licenses import read_table
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SMALL = "--config_name tiny --max_steps 4 --logging_steps 1 --use_cpu --disable_tqdm true --max_seq_length 64"


def check_files(dist: Path) -> None:
    """Checks that wheel and source archive contain the whole package and nothing else.

    A build from the unpacked source archive must give the same bytes, so no file contains a time, user or folder.
    """
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    files = [file for pattern in ("*.py", "*.yaml", "*.md") for file in (ROOT / "snugbert").rglob(pattern)]
    package = {f"snugbert/{path.relative_to(ROOT / 'snugbert')}" for path in files}
    package |= {"snugbert/py.typed", "snugbert_cli.py"}
    name = source.name.removesuffix(".tar.gz")
    more = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    compare_names(zipfile.ZipFile(wheel).namelist(), package | {f"{name}.dist-info/{each}" for each in more})
    more = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md", "SECURITY.md", "pyproject.toml"}
    with tarfile.open(source) as archive, tempfile.TemporaryDirectory() as folder:
        compare_names(archive.getnames(), {f"{name}/{each}" for each in package | more | {".gitignore"}})
        assert {(each.uid, each.gid, each.uname, each.gname) for each in archive} == {(0, 0, "", "")}
        archive.extractall(folder, filter="data")
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, f"{folder}/{name}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for file in (wheel, source):
            assert Path(folder, file.name).read_bytes() == file.read_bytes(), f"Another build of {file.name} differs."
    print(f"{wheel.name} and {source.name}: {len(package)} files of the package, and another build is the same")


def compare_names(names: list[str], expected: set[str]) -> None:
    """Checks that an archive has each expected file once and no other."""
    assert sorted(names) == sorted(expected), sorted(set(names) ^ expected)


def check_bill(bill: Path) -> None:
    """Checks that a bill of materials has SnugBERT, packages with known licenses, and no local paths."""
    text = bill.read_text(encoding="utf-8")
    names = {canonicalize_name(each["name"]) for each in json.loads(text)["components"]}
    assert {"snugbert", "torch", "transformers", "datasets"} <= names
    assert names - {"snugbert"} <= read_table().keys(), names - read_table().keys()
    assert "file:" not in text
    print(f"{bill.name}: {len(names)} packages")


def check_light_installation() -> None:
    """Loads, runs, saves and converts a model without the packages for training."""
    import torch
    import transformers

    import snugbert

    assert "site-packages" in str(snugbert.__file__)
    assert not {"datasets", "scipy", "sklearn", "matplotlib", "pyarrow"} & packages_distributions().keys()
    links = re.findall(r"\]\(([^)]*)\)", metadata("snugbert").get_payload() or "")
    assert len(links) > 5 and all(link.startswith("https://") for link in links), links

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "word"]
    snugbert.SnugBertTokenizer({word: index for index, word in enumerate(words)}).save_pretrained("model")
    config = snugbert.SnugBertConfig.from_size("tiny", vocab_size=len(words))
    snugbert.SnugBertForMaskedLM(config).save_pretrained("model")
    model = transformers.AutoModelForMaskedLM.from_pretrained("model").eval()
    inputs = transformers.AutoTokenizer.from_pretrained("model")("a word", return_tensors="pt")
    run("convert model bert --to bert")
    stock = transformers.BertForMaskedLM.from_pretrained("bert").eval()
    torch.testing.assert_close(model(**inputs).logits, stock(**inputs).logits)
    assert "--task_name" in run("glue --help")
    for command in ("glue", "pretrain"):
        command += " --config_name tiny --tokenizer_name model"
        assert "pip install 'snugbert[train]'" in run(command, status=2)


def check_training() -> None:
    """Runs text -> vocabulary -> pretraining in two processes -> fine-tuning -> stock BERT, for a few steps each."""
    texts = [text for text in pydoc_data.topics.topics.values() if len(text) > 1000]
    Path("text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    rows = [(line, name[0] < "i") for name, text in pydoc_data.topics.topics.items() for line in text.splitlines()[:4]]
    with open("labels.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("sentence", "label"), *((text, int(label)) for text, label in rows if text)])
    run("vocabulary --train_file text.txt --vocab_size 2000 --output_dir tokenizer")
    pretrain = f"pretrain --tokenizer_name tokenizer --train_file text.txt --output_dir pretrained {SMALL}"
    printed = run(f"launch --multi_gpu --num_processes 2 -m snugbert {pretrain}", program="accelerate")
    assert printed.count("4 steps of 64 examples") == 1, printed
    run(
        "glue --model_name_or_path pretrained --train_file labels.csv --validation_file labels.csv "
        f"--output_dir classifier {SMALL.replace('--config_name tiny', '')}"
    )
    run("convert classifier bert --to bert")
    assert json.loads(Path("classifier/results.json").read_text())["metrics"]["eval"]["accuracy"] > 0
    assert {"training.png", "README.md", "model.safetensors"} <= {path.name for path in Path("pretrained").iterdir()}


def run(command: str, status: int = 0, program: str = "snugbert") -> str:
    """Runs a program of this environment, checks its exit status, and returns its output."""
    path = Path(sys.executable).with_name(program)
    process = subprocess.run([path, *command.split()], capture_output=True, text=True, timeout=600)
    assert process.returncode == status, process.stdout + process.stderr
    print(f"{program} {command}", flush=True)
    return process.stdout + process.stderr


if __name__ == "__main__":
    if sys.argv[1] == "files":
        check_files(Path(sys.argv[2]))
    elif sys.argv[1] == "bill":
        check_bill(Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["HF_HOME"] = folder
            os.chdir(folder)
            {"light": check_light_installation, "train": check_training}[sys.argv[1]]()
