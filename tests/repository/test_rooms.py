"""Imports between the rooms of the package go one way."""

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "snugbert"
# A module imports modules of its own room and of rooms in lines above. Rooms of one line do not import each other.
ORDER = (
    (".",),  # the modules in the package's folder
    ("storage", "gpu"),
    ("cli",),
    ("families", "data", "reports"),
    ("data/corpus", "tasks"),
    ("trainers/run",),
    ("trainers",),
    ("trainers/pretraining", "trainers/finetuning"),
    ("vocabulary", "evaluation", "prediction"),
    ("export", "demo"),
)
LEVELS = {room: level for level, rooms in enumerate(ORDER) for room in rooms}


def find_room(module: str) -> str:
    """Returns the room of a module, such as `trainers/pretraining` for `snugbert.trainers.pretraining.batches`."""
    if module == "snugbert.demo":  # the only module of the package's folder that imports rooms
        return "demo"
    return "/".join(module.split(".")[1:-1]) or "."


def find_imports(file: Path) -> set[str]:
    """Returns the modules of the package that a file imports anywhere, also in functions and for type checkers."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            is_room = (PACKAGE.parent / node.module.replace(".", "/")).is_dir()
            modules |= {f"{node.module}.{alias.name}" if is_room else node.module for alias in node.names}
    return {module for module in modules if module.startswith("snugbert.")}


def list_arrows_up() -> set[str]:
    arrows = set()
    for file in PACKAGE.rglob("*.py"):
        if file == PACKAGE / "__init__.py":  # the public names
            continue
        module = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
        room = find_room(module)
        for imported in find_imports(file):
            other = find_room(imported)
            if room != other and LEVELS[other] >= LEVELS[room]:
                arrows.add(f"{module} -> {imported}")
    return arrows


def test_every_folder_is_a_room():
    rooms = {folder.relative_to(PACKAGE).as_posix() for folder in [PACKAGE, *PACKAGE.rglob("*")] if folder.is_dir()}
    assert {room for room in rooms if "__pycache__" not in room and room != "reports/templates"} == set(LEVELS) - {
        "demo"
    }


def test_imports_go_one_way():
    assert not sorted(list_arrows_up())


def test_no_two_modules_or_functions_share_a_name():
    """Except the functions that each engine of an export has."""
    modules, functions = Counter(), Counter()
    for file in PACKAGE.rglob("[!_]*.py"):
        modules[file.stem] += 1
        nodes = ast.parse(file.read_text(encoding="utf-8")).body if not file.stem.endswith("_engine") else []
        definitions = [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        functions.update(name for name in definitions if not name.startswith("_"))
    assert [name for counter in (modules, functions) for name, number in counter.items() if number > 1] == []
