"""examples/: jobs start each shard once, and torchrun again after a fault. Recipes have valid arguments."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from snugbert.cli.model_arguments import ModelArguments, TokenizerArguments
from snugbert.cli.parser import parse_arguments
from snugbert.data.data_arguments import OutputArguments, PreparationArguments
from snugbert.trainers.pretraining.pretraining_arguments import (
    PretrainingArguments,
    PretrainingDataArguments,
    PretrainingModelArguments,
)
from snugbert_cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = {
    # Runs the command on each machine, as `srun` does. The files of tries contain the exit statuses.
    "srun": """
        status=$(head -n 1 statuses) && sed -i 1d statuses
        machines=$2 && while [ "$1" != bash ]; do shift; done
        for ((i = 0; i < machines; i++)); do SLURM_NODEID=$i "$@"; done
        exit "$status"
    """,
    "scontrol": 'if [ "$1" = show ]; then printf "first\\nsecond\\n"; else echo "$*" > requeued; fi',
    "squeue": "cat time_left",
    "torchrun": 'printf \'%q \' "$TORCH_ELASTIC_SHUTDOWN_TIMEOUT" "$@" >> commands; echo >> commands',
    "snugbert": 'printf "%q " "$@" >> commands; echo >> commands',
}


def run(folder, command, variables, statuses=(0,), time_left="1:23:45"):
    """Runs a script with programs that note their arguments. `statuses` are the exit statuses of its tries.

    Returns the exit status, the arguments of each torchrun after its shutdown timeout, and whether it was requeued.
    """
    for name, text in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}")
        (folder / name).chmod(0o755)
    (folder / "statuses").write_text("\n".join(map(str, statuses)))
    (folder / "time_left").write_text(time_left)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"} | {name: str(value) for name, value in variables.items()}
    status = subprocess.run(command, cwd=folder, env=environment).returncode
    commands = folder / "commands"
    lines = commands.read_text().splitlines() if commands.exists() else []
    assert not (folder / "requeued").exists() or (folder / "requeued").read_text() == "requeue 7\n"
    return status, [shlex.split(line) for line in lines], (folder / "requeued").exists()


def list_slurm_jobs():
    array = re.search(r"^#SBATCH --array=1-(\d+)%", (EXAMPLES / "prepare_slurm.sh").read_text(), re.M)
    # As with `sbatch --array=7`, which starts a lost shard again.
    variables = {"SLURM_ARRAY_TASK_COUNT": 1, "SLURM_ARRAY_TASK_MIN": 7, "SLURM_CPUS_PER_TASK": 16}
    variables = [variables | {"SLURM_ARRAY_TASK_ID": task} for task in range(1, int(array[1]) + 1)]
    return ["bash", EXAMPLES / "prepare_slurm.sh"], variables


def list_pods():
    spec = yaml.safe_load((EXAMPLES / "prepare_kubernetes.yaml").read_text())["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert spec["completionMode"] == "Indexed"
    variables = [{"JOB_COMPLETION_INDEX": index} for index in range(spec["completions"])]
    return [*container["command"], *container["args"]], variables


@pytest.mark.parametrize("list_jobs", [list_slurm_jobs, list_pods])
def test_each_shard_is_started_once(tmp_path, list_jobs):
    command, variables = list_jobs()
    assert len(variables) == 50
    for shard in (1, 7, 50):
        _, commands, _ = run(tmp_path, command, variables[shard - 1])
        name, *arguments = commands[-1]
        assert name == "prepare"
        types = (TokenizerArguments, PreparationArguments, OutputArguments)
        _, text, output = parse_arguments(types, arguments, "snugbert prepare", "")
        assert text.train_file == ["s3://bucket/text/*.txt.gz"] and text.preprocessing_num_workers == 16
        assert (output.output_dir, output.shard_number, output.num_shards) == ("s3://bucket/prepared", shard, 50)


def run_slurm_job(folder, machines=2, restarts=0, seconds=0, **more):
    variables = {"SLURM_JOB_ID": 7, "SLURM_JOB_NODELIST": "x", "SLURM_JOB_NUM_NODES": machines}
    variables |= {"SLURM_CPUS_PER_TASK": 64, "SECONDS": seconds}  # bash counts from this value
    if restarts:
        variables["SLURM_RESTART_COUNT"] = restarts
    return run(folder, ["bash", EXAMPLES / "pretrain_slurm.sh", "--max_steps", "9"], variables, **more)


def read_command(command, folder, monkeypatch):
    """Returns the arguments of torchrun and of `snugbert pretrain`, as each program reads them."""
    timeout, *arguments = command
    assert timeout == "60"
    launch = get_args_parser().parse_args(arguments)
    assert launch.module and launch.training_script == "snugbert"
    name, *flags = launch.training_script_args
    assert name == "pretrain"
    (folder / "bucket").mkdir(exist_ok=True)
    for name in ("bucket/validation.txt.gz", "validation.txt.gz"):
        (folder / name).touch()
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(folder)
    types = (PretrainingModelArguments, PretrainingDataArguments, PretrainingArguments)
    flags = [flag.removeprefix("s3://") for flag in flags]  # otherwise, they would be downloaded
    flags += ["--use_cpu", "true"]  # parsing must work without a GPU
    *_, training = parse_arguments(types, flags, "snugbert pretrain", "")
    assert str(training.resume_from_checkpoint).lower() == "true"
    processes = int(launch.nnodes) * int(launch.nproc_per_node)
    batch = training.per_device_train_batch_size * training.gradient_accumulation_steps * processes
    assert batch == 1024  # with any number of machines
    return launch, training


@pytest.mark.parametrize("machines", [1, 2])
def test_slurm_starts_each_machine(tmp_path, monkeypatch, machines):
    status, commands, requeued = run_slurm_job(tmp_path, machines)
    assert (status, len(commands), requeued) == (0, machines, False)
    for index, command in enumerate(commands):
        launch, training = read_command(command, tmp_path, monkeypatch)
        assert (launch.nnodes, launch.node_rank, launch.master_addr) == (str(machines), index, "first")
        assert training.max_steps == 9


def test_slurm_tries_again(tmp_path):
    for job, expected in (
        ({"statuses": (1, 0)}, (0, 2, False)),  # a process fails once
        ({"statuses": (1, 1, 1)}, (1, 3, False)),  # a wrong argument
        ({"statuses": (1, 1, 1), "seconds": 600}, (0, 3, True)),  # a machine that always fails
        ({"statuses": (1, 1, 1), "restarts": 1}, (0, 3, True)),
        ({"statuses": (1, 1, 1), "restarts": 100}, (1, 3, False)),
        ({"statuses": (1,), "seconds": 600, "time_left": "4:59"}, (0, 1, True)),  # the time is over
        ({"machines": 3}, (2, 0, False)),  # a batch that cannot be divided
    ):
        for file in ("commands", "requeued"):
            (tmp_path / file).unlink(missing_ok=True)
        status, commands, requeued = run_slurm_job(tmp_path, **job)
        tries = len([command for command in commands if command[1:3] == ["--node-rank", "0"]])
        assert (status, tries, requeued) == expected, job


@pytest.mark.parametrize("machines", [1, 2])
def test_kubernetes_starts_all_machines_together(tmp_path, monkeypatch, machines):
    job_set = yaml.safe_load((EXAMPLES / "pretrain_kubernetes.yaml").read_text())
    (jobs,) = job_set["spec"]["replicatedJobs"]
    job = jobs["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    constant = {variable["name"]: variable["value"] for variable in container["env"]}
    for index in range(machines):
        variables = constant | {"MACHINES": machines, "JOB_COMPLETION_INDEX": index}
        status, commands, _ = run(tmp_path, [*container["command"], *container["args"]], variables)
        launch, _ = read_command(commands[-1], tmp_path, monkeypatch)
        assert (status, launch.nnodes, launch.node_rank) == (0, str(machines), index)
        name = job_set["metadata"]["name"]  # JobSet gives this address to the first pod
        assert launch.master_addr == f"{name}-{jobs['name']}-0-0.{name}"
        assert {"s3://bucket/prepared", "s3://bucket/base"} < set(launch.training_script_args)
    assert job["completions"] == job["parallelism"] == int(constant["MACHINES"]) == 2
    pod = job["template"]["spec"]
    assert job["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"  # otherwise, pods restart one by one
    assert int(constant["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]
    assert job["completionMode"] == "Indexed" and job_set["spec"]["failurePolicy"]["maxRestarts"] > 0


# --- recipes of pretraining ---


RECIPES = sorted({*EXAMPLES.glob("pretrain_*.yaml")} - {EXAMPLES / "pretrain_kubernetes.yaml"})
# Sequences per step, number of GPUs, and the first phase's share of the steps, from the comments.
STEPS = {
    "small_corpus": (128, 1, 0.8),
    "small_corpus_1_gpu": (320, 1, 0.5),
    "electra_small_corpus": (64, 1, 0.9),
    "base_1_gpu": (256, 1, 0.9),
    "base_8_gpus": (1024, 8, 0.9),
    "large": (32768, 64, 0.9),
}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_recipes_and_their_comments_have_valid_arguments(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    for name in ("corpus/text.txt.gz", "validation.txt.gz"):
        Path(name).touch()
    types = (ModelArguments, PretrainingDataArguments, PretrainingArguments)
    argv = ["--config", str(recipe), "--use_cpu", "true"]  # parsing must work without a GPU
    _, data_args, training_args = parse_arguments(types, argv, "snugbert pretrain", "")
    sequences, processes, share = STEPS[recipe.stem.removeprefix("pretrain_")]
    per_process = training_args.per_device_train_batch_size * training_args.gradient_accumulation_steps
    assert per_process * processes == sequences
    assert data_args.parsed_phases[0].share == pytest.approx(share)

    comment = "\n".join(re.findall(r"^#   (.*)", recipe.read_text(), flags=re.MULTILINE)).replace("\\\n", " ")
    assert f"snugbert pretrain --config examples/{recipe.name}" in comment
    for command, arguments in re.findall(r"snugbert (vocabulary|prepare|pretrain) (.*)", comment):
        with pytest.raises(SystemExit):
            main([command, "--help-all"])
        known = set(re.findall(r"--\w+", capsys.readouterr().out))
        assert {word for word in shlex.split(arguments) if word.startswith("--")} <= known
