"""The order in which files may import each other, what importing the package loads, and sizes of files."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import torchmdx

PACKAGE = Path(torchmdx.__file__).parent

# A file imports only from lines above its own. `folder/*` is every file of a folder that has no line of its own; they
# may import each other. `folder` is its `__init__`, where that imports anything. Add a line when you add a file, as far
# up as it can stand; lines of files that are yet to be written do no harm.
LADDER = """
units
host
compile_cache
damaged_file
potentials
progress_line
interrupt
grad_mode
device_guard
own_streams
kernel_compile
cell
system
neighbors/edges
neighbors/capacity
neighbors/images
neighbors/brute_force
neighbors/kernels*
neighbors/backends/*
neighbors/backends
neighbors/*
neighbors/search
models/cutoff
models/radial
models/tensors
models/embedding
models/interaction
models/tensornet
models/card
models/charges
models/tensornet2
models/kernels/all_pairs
models/priors/base
models/priors/*
models/heads
models/registry
models/table
models/compiled/*
models/skeleton
models/potential
models/wanted
models/ensemble
models/multilinear
models/kernels/activations
models/kernels/smooth
models/kernels/pairwise
models/smooth
models/pairs
models/forms
models/kernels/*
models/fast
models/fast_charged
models/*
forces
models/pairwise
outputs
prior_engine
engines
ensemble_engine
step_result
step_kernels
step_order
step_buffers
step_graph
step_policy
step_*
step
pool
integrators
recorded_energy
ensemble_file
torchmdnet/report
torchmdnet/archive
torchmdnet/container
torchmdnet/*
torchmdnet/reader
hub
located
checkpoint
prepared
conformance_parts/structures
conformance_parts/*
conformance
ase_calculator
datasets/*
labelling/*
report/*
training/*
openmm_plugin/build
openmm_plugin/*
openmm_parts/settings
openmm_parts/atoms
openmm_parts/evaluator
openmm_parts/references
openmm_parts/python_transport
openmm_parts/torch_transport
openmm_parts/native_audit
openmm_parts/native_transport
openmm_parts/add
openmm_parts/mixed_bonded
openmm_parts/mixed_pairs
openmm_parts/mixed
openmm_force
openmm_parts/openmmml
commands/options
md/*
demo/*
commands/*
cli
""".split()  # noqa: SIM905 (one a line)

# `import torchmdx` loads none of these: they are slow, optional, or both.
LATE = {
    "ase",
    "openmm",
    "lightning",
    "triton",
    "matplotlib",
    "scipy",
    "vesin",
    "h5py",
    "yaml",
    "torch_cluster",
    "openmmml",
    "pydantic",
    "rdkit",
    "tblite",
    "tensorboard",
    "torch_dftd",
    "huggingface_hub",
}
MOST_FILE_LINES, MOST_FUNCTION_LINES = 300, 60


def files() -> dict[str, Path]:
    """Every module by its name on the ladder, 'models/tensors'; the `__init__` of a folder if it imports anything."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).with_suffix("").as_posix().removesuffix("/__init__")
        if name != "__init__" and (path.stem != "__init__" or "import " in path.read_text()):
            found[name] = path
    return found


def rung(name: str) -> int | None:
    """The line of the ladder that a module stands on: its own, else the one whose pattern fits it most closely."""
    if name in LADDER:
        return LADDER.index(name)
    fitting = [line for line in LADDER if line.endswith("*") and name.startswith(line[:-1])]
    return LADDER.index(max(fitting, key=len)) if fitting else None


def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports, inside functions as well; not those that only type checkers see."""
    modules: set[str] = set()
    tree = ast.parse(path.read_text())
    guards = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    typing_only = {id(node) for guard in guards for node in ast.walk(guard)}
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively: write the whole name"
            assert node.module
            modules |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    inside = {name.removeprefix("torchmdx.").replace(".", "/") for name in modules if name.startswith("torchmdx.")}
    return inside & files().keys()


def violations(graph: dict[str, set[str]]) -> list[str]:
    """What a graph of imports does against the ladder, in words."""
    wrong = []
    for name, targets in graph.items():
        for target in sorted(targets):
            above, here = rung(target), rung(name)
            if above is None or here is None:
                continue
            together = above == here and LADDER[here].endswith("*")
            if above >= here and not together:
                wrong.append(f"{name} imports {target}, which stands below it on the ladder")
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
    homeless = [name for name in files() if rung(name) is None]
    assert not homeless, f"add a line for {', '.join(homeless)} to LADDER in {Path(__file__).name}"


def test_files_import_only_from_above(graph):
    assert len(graph) > 20
    assert "system" in graph["models/potential"]
    wrong = violations(graph)
    assert not wrong, "\n".join(wrong)


def test_there_is_no_import_cycle(graph):
    assert not cycle(graph)


def test_violations_and_cycles_would_be_seen():
    assert violations({"cell": {"system"}}) == ["cell imports system, which stands below it on the ladder"]
    assert violations({"system": {"cell"}, "models/kernels/a": {"models/kernels/b", "models/tensors"}}) == []
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == ["a", "b", "c"]
    assert (rung("models/kernels/messages"), rung("nonsense")) == (LADDER.index("models/kernels/*"), None)


def test_the_ladder_names_nothing_twice():
    assert len(set(LADDER)) == len(LADDER)


def test_a_folder_opens_only_its_own_files(graph):
    for name, path in files().items():
        if path.stem == "__init__":
            outside = [target for target in graph[name] if not target.startswith(f"{name}/")]
            assert not outside, f"{path} imports {outside}"


def modules_after(*lines: str) -> set[str]:
    """Names of all modules that a fresh interpreter holds after some lines."""
    code = "; ".join([*lines, "import sys, json", "print(json.dumps(sorted(sys.modules)))"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(json.loads(done.stdout))


def test_importing_the_package_adds_little_to_torch():
    torch, package = modules_after("import torch, numpy"), modules_after("import torchmdx")
    added = package - torch
    ours = {name for name in added if name.split(".")[0] == "torchmdx"}
    others = {name for name in added - ours if name.split(".")[0] not in sys.stdlib_module_names | {"numpy"}}
    assert "torchmdx.system" in ours
    assert len(ours) <= 38, sorted(ours)
    assert not others, sorted(others)
    assert not {name.split(".")[0] for name in package} & LATE


def test_what_is_late_is_loaded_on_first_use():
    loaded = modules_after("import torchmdx", "torchmdx.load")
    assert "torchmdx.checkpoints.save_load" in loaded
    assert "ase" not in loaded
    assert "ase" in modules_after("import torchmdx", "torchmdx.Calculator")


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


def test_public_names_are_there():
    for name in torchmdx.__all__:
        assert getattr(torchmdx, name) is not None
    assert set(torchmdx.__all__) <= set(dir(torchmdx))
    with pytest.raises(AttributeError, match="module 'torchmdx' has no attribute 'Potentials'"):
        _ = torchmdx.Potentials


def is_kernel(name: str) -> bool:
    return name.startswith(("models/kernels", "neighbors/kernels"))


@pytest.mark.parametrize("name", files())
def test_files_and_functions_are_short(name):
    text = files()[name].read_text()
    if is_kernel(name):
        return
    assert len(text.splitlines()) <= MOST_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            assert length <= MOST_FUNCTION_LINES, f"{node.name} has {length} lines"
