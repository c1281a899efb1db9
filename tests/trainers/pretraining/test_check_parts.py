"""`snugbert prepare --check` finds missing, unfinished, damaged and foreign parts, in a folder and in a bucket."""

import pytest
from prepared import text_arguments

from snugbert.data.corpus.preparation import prepare_parts
from snugbert.data.corpus.text_parts import plan_parts
from snugbert_cli import main as snugbert_command


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_the_shards_of_missing_and_damaged_parts_are_named(tmp_path, tokenizer, bucket, monkeypatch, capsys, place):
    monkeypatch.setattr("snugbert.storage.inputs.HF_HOME", str(tmp_path / "home"))
    for number in range(7):
        (tmp_path / f"{number}.txt").write_text(f"Text {number} of some words.\n\nAnd more of it.\n" * (1 + number))
    parts = plan_parts(text_arguments(tmp_path / "*.txt"), num_shards=7)
    output, folder = (tmp_path / "corpus", tmp_path / "corpus")
    if place == "bucket":
        output, folder = f"{bucket.url}/corpus", bucket.folder / "corpus"
    command = ["prepare", "--check", "--output_dir", str(output), "--shard", "1/3"]
    prepare_parts(output, parts, tokenizer, show_progress=False)
    assert snugbert_command(command) == 0
    assert capsys.readouterr().out == f"{output}: complete parts: 7 of 7\n"
    files = [folder / part.name for part in parts]
    files[1].unlink()
    files[2].write_bytes(files[2].read_bytes()[:-100])  # a block is cut
    files[3].write_bytes(files[3].read_bytes()[:-8])  # only its end is missing
    files[4].write_bytes(b"\xff" * 100)
    files[5].unlink()
    prepare_parts(tmp_path / "other", [parts[5]], tokenizer, language=None, show_progress=False)
    for file in (files[5], files[5].with_suffix(".index")):
        file.write_bytes((tmp_path / "other" / file.name).read_bytes())
    assert snugbert_command(command) == 2
    printed, error = capsys.readouterr()
    *lines, last = printed.splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        f"{output}/{files[1].name} is missing.",
        *(f"{output}/{files[number].name} is damaged" for number in (2, 3, 4)),
        f"{output}/{files[5].name} has other settings, or another version of the dataset, than {files[0].name}.",
    ]
    assert last == f"{output}: complete parts: 2 of 7"
    assert all(line.count("damaged") <= 1 for line in lines)
    assert f"--check: {output}: 5 parts missing, damaged or different. Remove damaged parts, and run" in error
    assert "prepare --overwrite_output_dir` again with --shard 1/3, --shard 2/3, --shard 3/3.\n" in error
    for number in (2, 3, 4):  # the advice works
        files[number].unlink()
    for number in range(3):
        prepare_parts(output, parts[number::3], tokenizer, replace=True, show_progress=False)
    assert snugbert_command(command) == 0


def test_a_bucket_that_does_not_answer_is_not_damage(tmp_path, tokenizer, faults, bucket, monkeypatch, capsys):
    monkeypatch.setattr("snugbert.storage.inputs.HF_HOME", str(tmp_path / "home"))
    (tmp_path / "text.txt").write_text("Text of some words.\n")
    prepare_parts(
        f"{bucket.url}/corpus", plan_parts(text_arguments(tmp_path / "text.txt")), tokenizer, show_progress=False
    )
    faults.fail("status", (500, "InternalError"), path=r"\.arrow")
    assert snugbert_command(["prepare", "--check", "--output_dir", f"{bucket.url}/corpus"]) == 2
    printed, error = capsys.readouterr()
    assert "damaged" not in printed and "the store does not answer" in error
