"""A ladder trains recipes and stock BERT on equal tokens, continues, and reports scores on the same examples."""

import json
import math
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark_files import BENCHMARKS
from markdown_tables import cells

from snugbert import SnugBertTokenizer
from snugbert.cli.model_arguments import ModelArguments
from snugbert.cli.parser import parse_arguments
from snugbert.errors import InputError
from snugbert.trainers.pretraining.batches import plan_phases
from snugbert.trainers.pretraining.examples import PretrainingDataset
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments, PretrainingDataArguments
from snugbert_cli import main as snugbert_command

pytestmark = pytest.mark.long
RECIPES = sorted((BENCHMARKS / "ladder").glob("*.yaml"))


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_recipes_are_arguments_and_begin_with_a_comment(file, tmp_path, monkeypatch):
    import pretraining_ladder

    monkeypatch.chdir(tmp_path)
    Path("a").write_text("text")
    Path("b").write_text("text")
    argv = ["--recipe", str(file), "--train_file", "a", "--validation_file", "b", "--tokenizer_name", "."]
    args = pretraining_ladder.parse_arguments([*argv, "--output_dir", "c", "--passes", "1", "--use_cpu", "--bf16"])
    recipe = pretraining_ladder.read_recipe(file, args)
    assert recipe.about.endswith(".")
    types = (ModelArguments, PretrainingDataArguments, PretrainingArguments)
    flags = pretraining_ladder.our_flags(recipe, Path("c"), 7, 3, args)
    model_args, data_args, training_args = parse_arguments(types, flags, "snugbert pretrain", "")
    assert (model_args.config_name, training_args.max_steps, training_args.seed) == ("mini", 7, 3)
    assert data_args.train_file == ["a"] and data_args.validation_file == ["b"] and training_args.bf16


@pytest.mark.parametrize("text", ["# What.\nseed: [1", "# What.\n\xff: 1", "seed: 1", "# Only a comment."])
def test_a_file_that_is_not_a_recipe_is_refused(text, tmp_path):
    import pretraining_ladder

    file = tmp_path / "recipe.yaml"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"^--recipe: .*recipe\.yaml (is not a YAML file|must contain)"):
        pretraining_ladder.read_recipe(file, pretraining_ladder.parse_arguments(["--report", "a"]))


@pytest.mark.parametrize("steps", [1, 12, 99, 100, 101, 739, 2900, 12_345])
def test_checkpoints_are_saved_at_log_lines(steps):
    """Thus the time to save them does not count as training time."""
    from pretraining_ladder import POINTS, steps_per_line, steps_per_point

    every = steps_per_point(steps)
    assert every % steps_per_line(steps) == 0
    assert min(steps, POINTS) - 1 <= -(-steps // every) <= POINTS


@pytest.fixture
def material(tmp_path) -> list[str]:
    """Flags for a text of two common and 60 rare words, for its tokenizer, and for minimal pairs."""
    words = [f"w{number}" for number in range(62)]
    rng = random.Random(0)
    documents = (
        "\n".join(f"{' '.join(rng.choices(words, [60, 60] + [1] * 60, k=9))}." for _ in range(9)) for _ in range(9)
    )
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *words]
    tokenizer = SnugBertTokenizer(vocab={token: number for number, token in enumerate(vocabulary)})
    tokenizer.save_pretrained(tmp_path / "tok")
    for number in range(2):
        lines = [
            {"sentence_good": " ".join(rng.choices(words, k=4)), "sentence_bad": " ".join(rng.choices(words, k=4))}
            for _ in range(5)
        ]
        (tmp_path / f"pairs-{number}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    text, pairs = str(tmp_path / "text.txt"), str(tmp_path / "pairs-*.jsonl")
    flags = ["--train_file", text, "--validation_file", text, "--tokenizer_name", str(tmp_path / "tok")]
    return [*flags, "--pairs_file", pairs, "--pairs_per_file", "3"]


def read_table(report: str) -> list[dict[str, str]]:
    """Returns the rows of the table in a report."""
    titles, *rows = cells(report)
    return [dict(zip(titles, row, strict=True)) for row in rows]


def test_recipes_with_other_tokenizers_have_equal_passes(material, tmp_path):
    """The same steps as `snugbert pretrain --num_train_epochs`."""
    from pretraining_ladder import make_task, parse_arguments, read_recipe

    file, pieces = tmp_path / "recipe.yaml", ["w", *(f"##{digit}" for digit in range(10))]
    settings = "# What.\nno_nsp: true\nphases: 16:60%,32:40%\nper_device_train_batch_size: 8\n"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *pieces]
    tokenizer = SnugBertTokenizer(vocab={token: number for number, token in enumerate(vocabulary)})
    tokenizer.save_pretrained(tmp_path / "pieces")
    args = parse_arguments([*material, "--recipe", str(file), "--output_dir", str(tmp_path), "--passes", "6"])
    epochs = PretrainingArguments(str(tmp_path), per_device_train_batch_size=8, num_train_epochs=6)
    tokens = []
    for own in ("", f"tokenizer_name: {tmp_path / 'pieces'}\n"):
        file.write_text(settings + own)
        task = make_task(read_recipe(file, args), args)
        corpus = task.sentences.corpus  # of the same text as the training corpus
        datasets = [PretrainingDataset(corpus, task.tokenizer, length, "mlm") for length in (16, 32)]
        steps = sum(phase.steps for phase in plan_phases(datasets, [0.6, 0.4], epochs))
        assert abs(task.steps - steps) <= 1
        assert task.bits_per_character(1) == pytest.approx(
            corpus.num_tokens / math.log(2) / count_characters(tmp_path / "text.txt")
        )
        tokens.append(corpus.num_tokens)
    assert tokens[1] > 2 * tokens[0]


def count_characters(text: Path) -> int:
    """Counts the characters without line ends."""
    return len(text.read_text().replace("\n", ""))


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_ladder_continues_and_compares(material, tmp_path, monkeypatch, capsys):
    """Runs in this process. Without dropout, stock BERT and SnugBERT learn the same from the same recipe."""
    import pretraining_ladder
    import pretraining_run

    recipes = [tmp_path / "pairs.yaml", tmp_path / "sentences.yaml"]
    settings = "max_seq_length: 32\nper_device_train_batch_size: 8\nlearning_rate: 1e-2\n"
    settings += "config_overrides: hidden_dropout_prob=0,attention_probs_dropout_prob=0,num_hidden_layers=1\n"
    recipes[0].write_text(f"# Pairs.\n\n{settings}")
    recipes[1].write_text(f"# No pairs.\n\n{settings}no_nsp: true\n")
    ladder, processes = tmp_path / "ladder", []
    argv = [*material, "--config_name", "tiny", "--output_dir", str(ladder), "--use_cpu"]
    argv += ["--max_tokens", "2500", "--max_seq_length", "32", "--max_eval_samples", "20"]
    core_seconds = 0.4

    def run(command, log):
        processes.append(command)
        work = f"import time\nwhile time.process_time() < {core_seconds}: pass"
        subprocess.run([sys.executable, "-c", work], check=True)
        if len(processes) == 2:
            return 128 + signal.SIGTERM
        if command[1] == "-m":
            return snugbert_command(command[3:])
        pretraining_run.main(command[2:])
        return 0

    monkeypatch.setattr(pretraining_ladder, "run_process", run)
    monkeypatch.setattr(pretraining_ladder, "POINTS", 3)
    both = ["--recipe", *map(str, recipes), "--seeds", "1"]
    with pytest.raises(SystemExit) as stopped:
        pretraining_ladder.main([*both, *argv])
    assert stopped.value.code == 143
    pretraining_ladder.main([*both, *argv])
    pretraining_ladder.main(["--recipe", str(recipes[0]), "--stock", *argv])
    assert len(processes) == 4  # finished runs are kept
    assert all("--resume_from_checkpoint" in command for command in processes[:3])
    pairs, sentences, stock = (json.loads(line) for line in (ladder / "ladder.jsonl").read_text().splitlines())

    assert [run["recipe"] for run in (pairs, sentences, stock)] == ["pairs", "sentences", "pairs-stock"]
    for run_ in (pairs, sentences, stock):
        assert run_["tokens"] == pytest.approx(2500, rel=0.1)
        assert run_["points"][-1]["step"] == run_["step"] and len(run_["points"]) == 3
        for name in ("step", "tokens", "flops", "seconds"):
            values = [point[name] for point in run_["points"]]
            assert values == sorted(values) and values[0] > 0
    assert sentences["step"] != pairs["step"] == stock["step"] and "nsp_accuracy" not in sentences
    assert pairs["points"][0]["mlm_loss"] - pairs["mlm_loss"] > 0.05
    for name in ("tokens", "flops", "mlm_loss", "pairs_mlm_loss", "nsp_accuracy"):
        assert stock[name] == pytest.approx(pairs[name], rel=1e-4), name
    for run_, processes_of_run in ((pairs, 1), (sentences, 2), (stock, 1)):  # one was stopped
        assert 3600 * run_["core_hours"] == pytest.approx(processes_of_run * core_seconds, rel=0.5)
    folder = ladder / "pairs/tiny/1"
    results = json.loads((folder / "train_results.json").read_text())
    assert pairs["flops"] == results["total_flos"]
    assert [path.name for path in folder.glob("checkpoint-*")] == [f"checkpoint-{pairs['step']}"]

    # `snugbert evaluate` has the same scores on the selected minimal pairs.
    for name in ("pairs-0.jsonl", "pairs-1.jsonl"):
        lines = (tmp_path / name).read_text().splitlines()
        (tmp_path / name).write_text("\n".join(lines[number] for number in (0, 1, 3)))
    flags = ["--model_name_or_path", str(ladder / f"sentences/tiny/1/checkpoint-{sentences['step']}"), *material[2:4]]
    flags += ["--pairs_file", str(tmp_path / "pairs-*.jsonl"), "--no_nsp", "--max_seq_length", "32"]
    assert snugbert_command(["evaluate", *flags, "--max_eval_samples", "20", "--output_dir", str(tmp_path / "e")]) == 0
    scores = json.loads((tmp_path / "e/results.json").read_text())
    for name in ("pairs", "accuracy", "phenomena"):
        assert sentences["minimal_pairs"][name] == scores["minimal_pairs"][name]
    for name in ("mlm_loss", "bits_per_character"):
        assert sentences[name] == pytest.approx(scores["held_out_text"]["metrics"][name], rel=1e-4)

    # The table: another seed of the first recipe, and the gain of the second.
    accuracy = pairs["minimal_pairs"]["accuracy"]["original"]
    other = {"minimal_pairs": {"accuracy": {"original": accuracy + 0.01}}}
    with (ladder / "ladder.jsonl").open("a") as file:
        file.write(json.dumps(pairs | {"seed": 2, "mlm_loss": pairs["mlm_loss"] + 0.5} | other) + "\n")
    capsys.readouterr()
    pretraining_ladder.main(["--report", str(ladder)])
    output = capsys.readouterr().out
    rows = read_table(output)
    assert [row["seeds"] for row in rows] == ["2", "1", "1"]
    assert [row["spread"] for row in rows] == ["0.500", "", ""] and rows[0]["gain"] == ""
    assert rows[0]["masked token loss, nats"] == f"{pairs['mlm_loss'] + 0.25:.3f}"
    assert float(rows[1]["gain"]) == pytest.approx(pairs["mlm_loss"] + 0.25 - sentences["mlm_loss"], abs=1e-3)
    mean, smallest, largest = (100 * accuracy + more for more in (0.5, 0, 1))
    assert rows[0]["BLiMP"] == f"{mean:.1f} ({smallest:.1f}-{largest:.1f})" and "(" not in rows[1]["BLiMP"]
    assert "Seeds alone change it by up to 1.0 points." in output
    assert "- `sentences`: No pairs." in output and output == (ladder / "pretraining_ladder.md").read_text() + "\n"
    assert (ladder / "pretraining_ladder.png").exists()

    # Nothing that differs is compared.
    with pytest.raises(SystemExit, match=r"has results with other settings \(max_tokens\)\. Choose another folder\."):
        pretraining_ladder.main([*both, *argv, "--max_tokens", "9999"])
    recipes[0].write_text("# Pairs.\n" + settings.replace("1e-2", "2e-2"))
    with pytest.raises(SystemExit, match=r"pairs\.yaml: .* has runs of this recipe with other settings"):
        pretraining_ladder.main([*both, *argv])


def test_recipes_with_other_tokenizers_are_compared_in_bits_per_character(tmp_path):
    """Losses per token cannot be compared then."""
    from pretraining_ladder import report

    costs = {"step": 1, "tokens": 1e6, "flops": 1e15, "seconds": 60.0}
    facts = {"model": "mini", "seed": 1, "about": "New.", "settings": {}, "command": "", "machine": {}}
    bits = {"bits_per_character": 1.5, "unigram_bits_per_character": 2.5}
    new = {"recipe": "new", "mlm_loss": 3.0, **facts, **costs, **bits, "points": [costs | bits]}
    own = new | {"recipe": "own", "settings": {"tokenizer_name": "tok16"}, "mlm_loss": 3.5, "bits_per_character": 1.25}
    runs = [new, own | {"unigram_bits_per_character": 2.25}]
    (tmp_path / "ladder.jsonl").write_text("\n".join(map(json.dumps, runs)))
    output = report(tmp_path)
    _, *rows = cells(output)
    assert [row[0] for row in rows] == ["new", "own"] and rows[1][-1] == "0.250"  # the gain
    assert "by token frequency: 2.500, 2.250." in output


def test_sigterm_reaches_the_run(tmp_path):
    from pretraining_ladder import run_process

    child = f"import os, signal; os.kill({os.getpid()}, signal.SIGTERM); signal.pause()"
    before = signal.getsignal(signal.SIGTERM)
    assert run_process([sys.executable, "-c", child], tmp_path / "log.txt") == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
