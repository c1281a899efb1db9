"""The array jobs of Slurm and Kubernetes start each shard once, with the variables that the schedulers set."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.cli.parser import parse_arguments
from snugbert.data.data_arguments import OutputArguments, PreparationArguments

EXAMPLES = Path(__file__).parents[2] / "examples"


def list_slurm_jobs():
    file = EXAMPLES / "prepare_slurm.sh"
    first, last = re.search(r"^#SBATCH --array=(\d+)-(\d+)%", file.read_text(), re.MULTILINE).groups()
    count = int(last) - int(first) + 1
    constant = {"SLURM_ARRAY_TASK_COUNT": count, "SLURM_ARRAY_TASK_MIN": first, "SLURM_CPUS_PER_TASK": 16}
    return [(["bash", file], constant | {"SLURM_ARRAY_TASK_ID": task}) for task in range(int(first), int(last) + 1)]


def list_pods():
    spec = yaml.safe_load((EXAMPLES / "prepare_kubernetes.yaml").read_text())["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert spec["completionMode"] == "Indexed"
    command = [*container["command"], *container["args"]]
    return [(command, {"JOB_COMPLETION_INDEX": index}) for index in range(spec["completions"])]


def read_command(tmp_path, command, variables):
    """Runs a job, with a command `snugbert` that prints its arguments."""
    program = tmp_path / "snugbert"
    program.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | {
        name: str(value) for name, value in variables.items()
    }
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("jobs", [list_slurm_jobs(), list_pods()], ids=["slurm", "kubernetes"])
def test_each_shard_is_started_once(tmp_path, jobs):
    shards = []
    for command, variables in (jobs[0], jobs[6], jobs[-1]):
        name, *arguments = read_command(tmp_path, command, variables)
        assert name == "prepare"
        types = (TokenizerArguments, PreparationArguments, OutputArguments)
        _, text, output = parse_arguments(types, arguments, "snugbert prepare", "")
        assert text.train_file == ["s3://bucket/text/*.txt.gz"] and text.preprocessing_num_workers == 16
        assert output.output_dir == "s3://bucket/prepared"
        shards.append((output.shard_number, output.num_shards))
    assert shards == [(1, 50), (7, 50), (50, 50)] and len(jobs) == 50


def test_one_lost_shard_of_slurm_is_started_again(tmp_path):
    """`sbatch --array=7` changes the number of tasks and the first one."""
    command, variables = list_slurm_jobs()[6]
    variables |= {"SLURM_ARRAY_TASK_COUNT": 1, "SLURM_ARRAY_TASK_MIN": 7}
    assert "7/50" in read_command(tmp_path, command, variables)
