"""A ladder trains recipes on equal tokens or passes, continues, and reports the scores of `snugbert evaluate`."""

import json
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
from snugbert.data.corpus.preparation import prepare_corpus
from snugbert.trainers.pretraining.examples import PretrainingDataset
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments, PretrainingDataArguments
from snugbert_cli import main as snugbert_command

pytestmark = pytest.mark.long
RECIPES = sorted((BENCHMARKS / "ladder").glob("*.yaml"))
SETTINGS = """max_seq_length: 32
per_device_train_batch_size: 8
learning_rate: 1e-2
config_overrides: hidden_dropout_prob=0,attention_probs_dropout_prob=0,num_hidden_layers=1
"""


def test_recipes_are_arguments_and_begin_with_a_comment(tmp_path, monkeypatch):
    import pretraining_ladder

    monkeypatch.chdir(tmp_path)
    Path("a").write_text("text")
    for file in RECIPES:
        argv = ["--recipe", str(file), "--train_file", "a", "--validation_file", "a", "--tokenizer_name", "."]
        args = pretraining_ladder.parse_arguments([*argv, "--output_dir", "c", "--passes", "1", "--use_cpu", "--bf16"])
        recipe = pretraining_ladder.read_recipe(file, args)
        assert recipe.about.endswith(".")
        types = (ModelArguments, PretrainingDataArguments, PretrainingArguments)
        flags = pretraining_ladder.make_flags(recipe, Path("c"), 7, 3, args)
        model_args, data_args, training_args = parse_arguments(types, flags, "snugbert pretrain", "")
        assert (model_args.config_name, training_args.max_steps, training_args.seed) == ("mini", 7, 3)
        assert data_args.train_file == ["a"] and training_args.bf16


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
    lines = [{"sentence_good": f"w{number} w3", "sentence_bad": f"w{number} w7"} for number in range(5)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    text = str(tmp_path / "text.txt")
    flags = ["--train_file", text, "--validation_file", text, "--tokenizer_name", str(tmp_path / "tok")]
    flags += ["--pairs_file", str(tmp_path / "pairs.jsonl"), "--pairs_per_file", "3", "--config_name", "tiny"]
    return [*flags, "--use_cpu", "--max_seq_length", "32", "--max_eval_samples", "20"]


@pytest.mark.usefixtures("one_thread")
def test_a_ladder_continues_and_compares(material, tmp_path, monkeypatch, capsys):
    import pretraining_ladder

    recipes = [tmp_path / "pairs.yaml", tmp_path / "sentences.yaml"]
    recipes[0].write_text(f"# Pairs.\n\n{SETTINGS}")
    recipes[1].write_text(f"# No pairs.\n\n{SETTINGS}no_nsp: true\n")
    ladder, commands = tmp_path / "ladder", []
    argv = [*material, "--output_dir", str(ladder), "--recipe", *map(str, recipes), "--max_tokens", "2500"]

    def run(command, log):
        """Runs a command in this process. The second one is stopped."""
        commands.append(command)
        work = "import time\nwhile time.process_time() < 0.4: pass"
        subprocess.run([sys.executable, "-c", work], check=True)
        return 128 + signal.SIGTERM if len(commands) == 2 else snugbert_command(command[3:])

    monkeypatch.setattr(pretraining_ladder, "run_process", run)
    monkeypatch.setattr(pretraining_ladder, "POINTS", 3)
    with pytest.raises(SystemExit) as stopped:
        pretraining_ladder.main(argv)
    assert stopped.value.code == 143
    pretraining_ladder.main(argv)
    assert len(commands) == 3  # finished runs are kept
    assert all("--resume_from_checkpoint" in command for command in commands)
    pairs, sentences = runs = [json.loads(line) for line in (ladder / "ladder.jsonl").read_text().splitlines()]

    assert [run["recipe"] for run in runs] == ["pairs", "sentences"]
    for run_, processes in ((pairs, 1), (sentences, 2)):  # one was stopped
        assert run_["tokens"] == pytest.approx(2500, rel=0.1)
        assert run_["points"][-1]["step"] == run_["step"] and len(run_["points"]) == 3
        for name in ("step", "tokens", "flops", "seconds"):
            values = [point[name] for point in run_["points"]]
            assert values == sorted(values) and values[0] > 0
        assert 3600 * run_["core_hours"] == pytest.approx(processes * 0.4, rel=0.5)
    assert 0 <= pairs["nsp_accuracy"] <= 1 and "nsp_accuracy" not in sentences
    assert pairs["points"][0]["mlm_loss"] - pairs["mlm_loss"] > 0.05
    folder = ladder / "pairs/tiny/1"
    assert pairs["flops"] == json.loads((folder / "train_results.json").read_text())["total_flos"]
    assert [path.name for path in folder.glob("checkpoint-*")] == [f"checkpoint-{pairs['step']}"]

    # The table: another seed of the first recipe, and the gain of the second.
    accuracy = pairs["minimal_pairs"]["accuracy"]["original"]
    assert pairs["minimal_pairs"]["pairs"] == 3
    other = {"minimal_pairs": {"accuracy": {"original": accuracy + 0.01}}}
    with (ladder / "ladder.jsonl").open("a") as file:
        file.write(json.dumps(pairs | {"seed": 2, "mlm_loss": pairs["mlm_loss"] + 0.5} | other) + "\n")
    capsys.readouterr()
    pretraining_ladder.main(argv)
    titles, *lines = cells(capsys.readouterr().out)
    rows = [dict(zip(titles, line, strict=True)) for line in lines]
    assert [row["seeds"] for row in rows] == ["2", "1"] and [row["spread"] for row in rows] == ["0.500", ""]
    assert rows[0]["gain"] == "" and rows[0]["masked token loss, nats"] == f"{pairs['mlm_loss'] + 0.25:.3f}"
    assert float(rows[1]["gain"]) == pytest.approx(pairs["mlm_loss"] + 0.25 - sentences["mlm_loss"], abs=1e-3)
    mean, smallest, largest = (100 * accuracy + more for more in (0.5, 0, 1))
    assert rows[0]["BLiMP"] == f"{mean:.1f} ({smallest:.1f}-{largest:.1f})" and "(" not in rows[1]["BLiMP"]
    assert (ladder / "pretraining_ladder.png").exists()

    # Nothing that differs is compared.
    with pytest.raises(SystemExit, match=r"has results with other settings \(max_tokens\)\. Choose another folder\."):
        pretraining_ladder.main([*argv, "--max_tokens", "9999"])
    recipes[0].write_text("# Pairs.\n" + SETTINGS.replace("1e-2", "2e-2"))
    with pytest.raises(SystemExit, match=r"pairs\.yaml: .* has runs of this recipe with other settings"):
        pretraining_ladder.main(argv)


def test_passes_are_epochs(material, tmp_path):
    from pretraining_ladder import parse_arguments, plan_runs, read_recipe

    file = tmp_path / "recipe.yaml"
    file.write_text(f"# What.\n{SETTINGS}no_nsp: true\n")
    args = parse_arguments([*material, "--recipe", str(file), "--output_dir", str(tmp_path), "--passes", "6"])
    tokenizer = SnugBertTokenizer.from_pretrained(args.tokenizer_name)
    corpus = prepare_corpus(args.train_file, tokenizer, tmp_path / "corpus", show_progress=False)
    steps, has_pairs = plan_runs(read_recipe(file, args), args)
    assert abs(steps - 6 * len(PretrainingDataset(corpus, tokenizer, 32, "mlm")) / 8) <= 1 and not has_pairs


def test_recipes_with_other_tokenizers_are_compared_in_bits_per_character(tmp_path):
    """Losses per token cannot be compared then."""
    from ladder_report import report

    facts = {"model": "mini", "seed": 1, "about": "New.", "settings": {}, "command": "", "machine": {}, "points": []}
    new = {"recipe": "new", "mlm_loss": 3.0, "bits_per_character": 1.5, **facts}
    own = {"recipe": "own", "mlm_loss": 3.5, "bits_per_character": 1.25, **facts, "settings": {"tokenizer_name": "a"}}
    (tmp_path / "ladder.jsonl").write_text(f"{json.dumps(new)}\n{json.dumps(own)}")
    _, *rows = cells(report(tmp_path))
    assert [row[0] for row in rows] == ["new", "own"] and rows[1][-1] == "0.250"  # the gain
