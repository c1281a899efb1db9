r"""Distillation: fine-tuned teachers, and students with half of their layers, with and without the teacher.

    python benchmarks/distillation.py --model_name_or_path MODEL --data_dir data --use_cpu --output_dir distillation

For each task, `snugbert` fine-tunes MODEL as the teacher. Then it trains students with `--seeds` seeds:

- with the teacher, from layers of the teacher
- without the teacher, from the same layers of the teacher
- without the teacher, from MODEL's layers

The command reports scores. Teachers and students of a task train for the same number of epochs (`TASKS`),
and all students have the same settings.

The same command continues after an interruption.
Nothing else may run then. `--report` only prints the tables. Other arguments, such as `--learning_rate`, go to all
students. Arguments of distillation, such as `--distillation_weight`, are used only with a teacher.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path

from pretraining_ladder import as_flags
from side_by_side import choose_device, describe_machine, positive
from steps import check_settings, format_table, run_snugbert

from snugbert.errors import InputError

TASKS = {
    "sst2": "glue --task_name sst2 --data_dir {}/glue --num_train_epochs 1",
    "mrpc": "glue --task_name mrpc --data_dir {}/glue --num_train_epochs 5",
    "conll2003": (
        "ner --train_file {}/conll2003/train.jsonl.gz --validation_file {}/conll2003/valid.jsonl.gz "
        "--num_train_epochs 3"
    ),
    "squad": (
        "squad --train_file {}/squad/train-v1.1-first44.jsonl.gz {}/squadshifts/new_wiki.jsonl.gz "
        "--validation_file {}/squad/dev-v1.1.jsonl.gz --num_train_epochs 1"
    ),
}
# Results can be compared only if these arguments are equal.
COMPARED = (
    "model_name_or_path",
    "num_student_layers",
    "student_layers",
    "bf16",
    "use_cpu",
    "max_train_samples",
    "max_eval_samples",
)
NEED_TEACHER = ("--distillation_temperature", "--distillation_weight", "--unlabeled_file")
COLUMNS = (
    "task",
    "model",
    "metric",
    "score",
    "% of the teacher",
)


def parse_arguments(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses the command line. Unknown arguments go to the commands of the students."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="checkpoint to fine-tune as the teacher")
    parser.add_argument("--data_dir", required=True, help="folder with glue/, conll2003/, squad/ and squadshifts/")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--num_student_layers", type=positive, default=3)
    parser.add_argument("--student_layers", default="first", help="as for `snugbert glue`; default: first")
    parser.add_argument("--seeds", type=positive, default=3, help="seeds of each student; default: 3")
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16; fast on AVX512-BF16 and AMX")
    parser.add_argument("--use_cpu", action="store_true")
    parser.add_argument("--max_train_samples", type=positive, help="train on the first examples only")
    parser.add_argument("--max_eval_samples", type=positive, help="score the first examples only")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--report", action="store_true", help="only print the tables of the finished tasks")
    return parser.parse_known_args(argv)


def run_task(task: str, args: argparse.Namespace, student_flags: list[str]) -> None:
    """Trains the teacher and the students of a task, or continues.

    Raises:
        SystemExit: a command failed or was stopped.
    """
    command = [part.replace("{}", args.data_dir) for part in TASKS[task].split()]
    names = ("bf16", "use_cpu", "max_train_samples", "max_eval_samples")
    command += as_flags({name: getattr(args, name) for name in names if getattr(args, name)})
    teacher, student, without, alone = (
        args.output_dir / task / name for name in ("teacher", "student", "without", "alone")
    )
    start = ["--model_name_or_path", args.model_name_or_path]
    run([*command, *start, "--resume_from_checkpoint", "true"], teacher, args.use_cpu)
    command += as_flags({name: getattr(args, name) for name in ("num_student_layers", "student_layers", "seeds")})
    command += ["--sweep", "fixed"]  # so that one seed can continue, too
    for folder, model in ((alone, args.model_name_or_path), (without, str(teacher))):
        names = ["--model_name_or_path", model]
        run([*command, *names, *drop_flags(student_flags, NEED_TEACHER)], folder, args.use_cpu)
    run([*command, "--teacher_name_or_path", str(teacher), *student_flags], student, args.use_cpu)


def drop_flags(command: list[str], names: tuple[str, ...]) -> list[str]:
    """Returns a command without some flags and their values."""
    kept, keeps = [], True
    for part in command:
        keeps = part.partition("=")[0] not in names if part.startswith("--") else keeps
        if keeps:
            kept.append(part)
    return kept


def run(command: list[str], folder: Path, use_cpu: bool) -> None:
    """Runs a command. Writes its output to NAME.log and the machine to NAME.machine, next to its output folder."""
    run_snugbert([*command, "--output_dir", str(folder)], folder.with_name(f"{folder.name}.log"))
    machine = ", ".join(f"{name} {value}" for name, value in describe_machine(choose_device(use_cpu)).items())
    folder.with_name(f"{folder.name}.machine").write_text(machine)


def make_rows(task: str, folder: Path) -> list[list[str]]:
    """Formats the scores of a task's models."""
    names = ("teacher", "student", "without", "alone")
    teacher, *students = (json.loads((folder / name / "results.json").read_text()) for name in names)
    metric = students[0]["sweep"]["chosen_by"].removeprefix("eval_")
    score, interval = teacher["metrics"]["eval"][metric], teacher["intervals"]["eval"][metric]
    found = {"teacher": {"mean": score, "std": None, "interval": interval}}
    titles = ("student", "student without teacher", "the same, from MODEL's layers")
    found |= {title: each["sweep"]["best_setting"] for title, each in zip(titles, students, strict=True)}
    scale, rows = 100 / teacher["perfect_score"], []
    for title, row in found.items():
        spread = "" if row["std"] is None else f" ± {scale * row['std']:.2f}"
        low, high = (f"{scale * end:.1f}" for end in row["interval"])
        share = f"{100 * row['mean'] / score:.1f}" if score else ""
        rows.append([task, title, metric, f"{scale * row['mean']:.2f}{spread} ({low} to {high})", share])
    return rows


def report(output_dir: Path) -> str:
    """Makes the table of the finished tasks."""
    finished = [task for task in TASKS if (output_dir / task / "student/results.json").exists()]
    machines = dict.fromkeys((output_dir / task / "student.machine").read_text() for task in finished)
    rows = [row for task in finished for row in make_rows(task, output_dir / task)]
    return "\n".join(
        [
            *machines,
            "",
            format_table([COLUMNS, *rows]),
            "",
            "Scores are on the dev sets, in percent. Students: mean ± standard deviation over the seeds (95 % "
            "interval of the mean, Student's t). Teacher: one seed (95 % interval from a bootstrap over the "
            "examples). The student without teacher also starts from the teacher's layers.",
            "",
        ]
    )


def main(argv: list[str]) -> None:
    """Runs what is missing, and prints the report."""
    args, student_flags = parse_arguments(argv)
    if not args.report:
        settings = {name: getattr(args, name) for name in COMPARED} | {"students": student_flags}
        try:
            check_settings(args.output_dir, settings)
        except InputError as error:
            raise SystemExit(f"error: {error}") from error
        for task in args.tasks:
            run_task(task, args, student_flags)
    print(f"python benchmarks/distillation.py {shlex.join(argv)}\n\n{report(args.output_dir)}", end="")


if __name__ == "__main__":
    main(sys.argv[1:])
