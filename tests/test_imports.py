"""The order in which files may import each other, what importing the package loads, and sizes of files."""

import ast
import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchmdx
from torchmdx.runtime.public_names import IMPORT, public_names

PACKAGE = Path(torchmdx.__file__).parent
MODULES = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}

# Each line is a rung, each word a room: a module, or a folder with what is in it that has no word of its own. A file
# imports from rungs above its own and from its own room; rooms on one rung do not import each other. The page
# docs/architecture.md shows the same list and says what each room is for.
LADDER = """
runtime checkpoints/potentials
structures
neighbors
models
evaluation
engines/ops engines/plan engines/hermite engines/knots
engines/engine engines/filter_table engines/cutoff_copies engines/gpu/triton engines/reciprocal
engines/cpu
engines/pairs
engines/gpu
engines/exact
engines
step evaluation/properties
dynamics ase/atoms ase/parameters
checkpoints
ase evaluation/conformance openmm ipi torch_sim dynamics/relaxation checkpoints/export lammps
datasets dynamics/paths materials
report/view
report dynamics/run
training commands/demo_run commands/md_openmm
learning
commands
"""
RUNGS = [line.split() for line in LADDER.strip().splitlines()]
ROOMS = {room: number for number, rooms in enumerate(RUNGS) for room in rooms}
# What type checkers alone see may come from below in these: the launches of a class's kernels take the class, and the
# public names of a folder include some of its subfolders.
TYPES_FROM_BELOW = {
    ("dynamics", "dynamics/run/recording"),
    ("engines/cpu/edge_values", "engines/pairs/pair_list"),
    ("engines/cpu/pair_forms", "engines/pairs/pair_list"),
}

# `import torchmdx` loads none of these: they are slow, optional, or both.
LATE = {
    "ase",
    "openmm",
    "lightning",
    "triton",
    "matplotlib",
    "plotly",
    "scipy",
    "vesin",
    "h5py",
    "jinja2",
    "yaml",
    "torch_cluster",
    "openmmml",
    "pydantic",
    "rdkit",
    "tblite",
    "pyscf",
    "distributed",
    "tensorboard",
    "torch_dftd",
    "huggingface_hub",
    "ipi",
    "torch_sim",
    "phonopy",
}
# Nor does the command line's help load these, which take seconds.
LATE_FOR_HELP = {"torch", "ase"}
MOST_FILE_LINES, MOST_FUNCTION_LINES = 290, 60


@functools.cache
def files() -> dict[str, Path]:
    """Every module by its name on the ladder, 'models/tensors'; the `__init__` of a folder if it imports anything."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).with_suffix("").as_posix().removesuffix("/__init__")
        if name != "__init__" and (path.stem != "__init__" or "import " in path.read_text()):
            found[name] = path
    return found


def room_of(name: str) -> str | None:
    """The room of a module: the longest word of the ladder that is the module or a folder above it."""
    fitting = [room for room in ROOMS if name == room or name.startswith(f"{room}/")]
    return max(fitting, key=len) if fitting else None


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imported(path: Path, *, types: bool = False) -> set[str]:
    """Modules of the package that a file imports, inside functions as well. types: also those for type checkers."""
    modules: set[str] = set()
    nodes = list(ast.walk(tree_of(path)))
    guards = [node for node in nodes if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"]
    typing_only = set() if types else {id(node) for guard in guards for node in ast.walk(guard)}
    for node in nodes:
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively: write the whole name"
            assert node.module
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= whole if whole <= MODULES else whole | {node.module}
    inside = {name.removeprefix("torchmdx.").replace(".", "/") for name in modules if name.startswith("torchmdx.")}
    return inside & files().keys()


def violations(graph: dict[str, set[str]]) -> list[str]:
    """What a graph of imports does against the ladder, in words."""
    wrong = []
    for name, targets in graph.items():
        here = room_of(name)
        for target in sorted(targets):
            there = room_of(target)
            if here is None or there is None or here == there:
                continue
            if ROOMS[there] >= ROOMS[here]:
                wrong.append(f"{name} imports {target}, which is not above it on the ladder")
    return wrong


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle; empty when there is none."""
    left = set(graph)
    while True:  # take away what imports nothing that is left, and what nothing left imports
        needed = {target for name in left for target in graph[name]}
        inner = {name for name in left if name in needed and graph[name] & left}
        if inner == left:
            return sorted(left)
        left = inner


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return {name: imported(path) - {name} for name, path in files().items()}


def test_every_file_has_a_place_on_the_ladder():
    homeless = [name for name in files() if room_of(name) is None]
    assert not homeless, f"add a word for {', '.join(homeless)} to LADDER in {Path(__file__).name}"


def test_every_room_is_there():
    rooms = {room_of(name) for name in files()}
    assert not ROOMS.keys() - rooms, "LADDER names rooms that are not there"
    assert sum(map(len, RUNGS)) == len(ROOMS), "LADDER names a room twice"


def test_files_import_only_from_above(graph):
    assert len(graph) > 20
    assert "structures/system" in graph["models/potential"]
    wrong = violations(graph)
    assert not wrong, "\n".join(wrong)


def test_types_come_from_above_too():
    graph = {name: imported(path, types=True) - {name} for name, path in files().items()}
    kept = {name: {t for t in targets if (name, t) not in TYPES_FROM_BELOW} for name, targets in graph.items()}
    wrong = violations(kept)
    assert not wrong, "\n".join(wrong)
    for name in ("step/audit", "step/report", "step/spread_limit", "step/results"):
        assert not {"step/captured_step", "step/pool"} & graph[name], f"{name} needs the parts of a step, not the step"


def type_cycle(graph: dict[str, set[str]], room: str) -> list[str]:
    """Modules of a room that import each other in a circle."""
    inside = {name for name in graph if name.startswith(f"{room}/")}
    return cycle({name: graph[name] & inside for name in inside})


@pytest.mark.parametrize("room", ["step", "runtime", "checkpoints", "evaluation/conformance", "openmm", "structures"])
def test_types_inside_a_room_form_no_cycle(room):
    graph = {name: imported(path, types=True) - {name} for name, path in files().items()}
    assert any(name.startswith(f"{room}/") for name in graph)
    assert not type_cycle(graph, room)


def test_a_cycle_of_types_inside_a_room_would_be_seen(tmp_path):
    taking = tmp_path / "change.py"
    lines = ("from typing import TYPE_CHECKING", "if TYPE_CHECKING:", "    from torchmdx.step import captured_step")
    taking.write_text("\n".join(lines))
    graph = {"step/change": imported(taking, types=True), "step/captured_step": {"step/change"}}
    assert type_cycle(graph, "step") == ["step/captured_step", "step/change"]
    assert not imported(taking)


def test_there_is_no_import_cycle(graph):
    assert not cycle(graph)


def test_violations_and_cycles_would_be_seen():
    assert violations({"models/a": {"step/b"}}) == ["models/a imports step/b, which is not above it on the ladder"]
    assert violations({"runtime/a": {"checkpoints/potentials"}}) == [
        "runtime/a imports checkpoints/potentials, which is not above it on the ladder"
    ]
    assert violations({"step/a": {"models/b"}, "engines/pairs/a": {"engines/pairs/b", "models/tensors"}}) == []
    assert violations({"engines/cpu/pair_forms": {"engines/pairs/energy"}})
    assert not violations({"engines/pairs/energy": {"engines/cpu/pair_forms"}})
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == ["a", "b", "c"]
    assert (room_of("models/priors/zbl"), room_of("nonsense")) == ("models", None)


def test_the_page_on_architecture_shows_the_ladder():
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
    assert f"```text\n{LADDER.strip()}\n```" in page, "docs/architecture.md must show LADDER as it is"
    table = page[page.index("| package in `torchmdx/` |") :].split("\n\n")[0]
    assert re.findall(r"^\| `([\w/]+)` \|", table, re.MULTILINE) == list(ROOMS), "a row for each room, in order"


def test_a_folder_opens_only_its_own_files(graph):
    for name, path in files().items():
        if path.stem == "__init__":
            own = ("runtime/public_names", f"{name}/")
            outside = [target for target in graph[name] if not target.startswith(own)]
            assert not outside, f"{path} imports {outside}"


def modules_after(*lines: str) -> set[str]:
    """Names of all modules that a fresh interpreter holds after some lines."""
    code = "; ".join([*lines, "import sys, json", "print(json.dumps(sorted(sys.modules)))"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(json.loads(done.stdout))


def test_importing_the_package_imports_no_other():
    loaded = modules_after("import torchmdx")
    others = {name.split(".")[0] for name in loaded - modules_after("import json")} - sys.stdlib_module_names
    assert others == {"torchmdx"}
    assert len([name for name in loaded if name.startswith("torchmdx")]) <= 6


def test_the_public_names_add_little_to_torch():
    names = "Batch, System, Ensemble, Potential, Result, TensorNetConfig, TensorNet2Config, evaluate, register_model"
    torch, package = modules_after("import torch, numpy"), modules_after(f"from torchmdx import {names}")
    added = package - torch
    ours = {name for name in added if name.split(".")[0] == "torchmdx"}
    others = {name for name in added - ours if name.split(".")[0] not in sys.stdlib_module_names | {"numpy"}}
    assert "torchmdx.structures.system" in ours
    assert len(ours) <= 57, sorted(ours)
    assert not others, sorted(others)
    assert not {name.split(".")[0] for name in package} & LATE


@pytest.mark.nightly
def test_what_is_late_is_loaded_on_first_use():
    loaded = modules_after("import torchmdx", "torchmdx.load")
    assert "torchmdx.checkpoints.save_load" in loaded
    assert "ase" not in loaded
    assert "ase" in modules_after("import torchmdx", "torchmdx.Calculator")


def test_help_imports_neither_torch_nor_ase():
    """Of every command: a command's options are made by the modules that are imported here."""
    loaded = modules_after("from torchmdx.commands.cli import build_parser", "build_parser().format_help()")
    assert "torchmdx.commands.relax" in loaded
    assert not loaded & LATE_FOR_HELP, "modules of commands import these inside of functions"
    assert not {name.split(".")[0] for name in loaded} & LATE


def test_workers_of_labelling_need_no_torch():
    """Each of many would need a few hundred MB and seconds more."""
    loaded = modules_after("import torchmdx.datasets.labelling.serve, torchmdx.datasets.labelling.work")
    assert "torchmdx.datasets.labelling.sampling" in loaded
    assert not loaded & LATE_FOR_HELP


@pytest.mark.nightly
def test_modules_of_the_package_are_attributes():
    check = "assert torchmdx.structures.units.HARTREE > 27 and torchmdx.models.potential.Potential"
    modules_after("import torchmdx", check)


@pytest.mark.nightly
def test_a_first_energy_and_forces_need_no_compiler_of_torch():
    """torch._dynamo and sympy take seconds to import, and some derivatives of torch import them."""
    loaded = modules_after(
        "import torchmdx, ase",
        "atoms = ase.Atoms('OH', [[0, 0, 0], [0, 0, 1]], info={'charge': -1})",
        "atoms.calc = torchmdx.Calculator()",
        "atoms.get_forces()",
    )
    assert "torchmdx.engines.filter_table" in loaded
    assert not {"torch._dynamo", "torch._inductor", "sympy"} & loaded


@pytest.mark.nightly
def test_comparing_a_step_with_the_exact_model_needs_no_compiler_of_torch():
    """On a GPU each first step does that."""
    loaded = modules_after(
        "import torchmdx",
        "from torchmdx.step.exact import exact_results",
        "potential = torchmdx.Potential(torchmdx.TensorNetConfig(num_layers=1, num_channels=8, num_radial=4))",
        "batch = torchmdx.Batch.of(torchmdx.System.create([[0, 0, 0], [0, 0, 1.0]], [8, 1]))",
        "exact_results(potential, batch)",
    )
    assert "torchmdx.evaluation.blocks" in loaded
    assert not {"torch._dynamo", "torch._inductor", "sympy"} & loaded


def names_for_type_checkers(source: str) -> list[str]:
    """Of imports such as `from a import X as X` under TYPE_CHECKING, however they are wrapped."""
    nodes = list(ast.walk(ast.parse(source)))
    guards = [node for node in nodes if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"]
    imports = [node for guard in guards for node in ast.walk(guard) if isinstance(node, ast.ImportFrom)]
    return sorted(alias.name for node in imports for alias in node.names if alias.asname == alias.name)


def test_no_public_name_is_lost_to_the_way_its_import_is_written():
    """`public_names` reads imports of one line each."""
    folders = [path.parent for path in PACKAGE.rglob("__init__.py") if "public_names(" in path.read_text()]
    assert len(folders) > 20
    for folder in folders:
        module = ".".join(folder.relative_to(PACKAGE.parent).parts)
        names = names_for_type_checkers((folder / "__init__.py").read_text())
        assert names == public_names(module)[0], module


def test_a_wrapped_import_would_be_seen():
    wrapped = "if TYPE_CHECKING:\n    from a import (\n        X as X,\n    )\n    from b import Y as Y, Z as Z\n"
    assert names_for_type_checkers(wrapped) == ["X", "Y", "Z"]
    assert not IMPORT.findall(wrapped)


def test_public_names_are_there():
    for name in torchmdx.__all__:
        assert getattr(torchmdx, name) is not None
    assert set(torchmdx.__all__) <= set(dir(torchmdx))
    with pytest.raises(AttributeError, match="module 'torchmdx' has no attribute 'Potentials'"):
        _ = torchmdx.Potentials


def test_a_class_name_has_one_meaning():
    places: dict[str, list[str]] = {}
    for name, path in files().items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    twice = [f"{name} in {', '.join(where)}" for name, where in places.items() if len(where) > 1]
    assert not twice, "\n".join(twice)


def is_kernel(name: str) -> bool:
    return "/kernels/" in name or "/triton/" in name


def docstring_lines(node: ast.AST) -> int:
    """Lines of a node's own docstring."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    return node.body[0].end_lineno - node.body[0].lineno + 1 if ast.get_docstring(node) else 0


def test_files_and_functions_are_short():
    """Docstrings aside."""
    long = []
    for name, path in files().items():
        if is_kernel(name):
            continue
        nodes = list(ast.walk(tree_of(path)))
        length = len(path.read_text().splitlines()) - sum(map(docstring_lines, nodes))
        long += [f"{name} has {length} lines"] * (length > MOST_FILE_LINES)
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = node.end_lineno - node.lineno + 1 - docstring_lines(node)
                long += [f"{name}: {node.name} has {length} lines"] * (length > MOST_FUNCTION_LINES)
    assert not long, "\n".join(long)
