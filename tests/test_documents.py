"""Documents: every block is run, or says why not; every option, key and name in them exists."""

import ast
import copy
import functools
import importlib
import os
import re
import textwrap
import tomllib
from pathlib import Path

import ase.build
import numpy as np
import openmm
import pytest
import torch
from documents import commands, files
from documents.blocks import COMMANDS, LANGUAGES, ROOT, Block, all_blocks, blocks_of, pages, prose
from openmm import app
from structures import DATA

import torchmdx
from torchmdx import Batch, System
from torchmdx.learning.config import LearnConfig
from torchmdx.training.config import Config
from torchmdx.training.config_file import known_keys, read_as

# Files that a page takes for granted: names in documents.files.MAKERS.
ASSUMED = {
    "README.md": "frames/one.xyz",
    "docs/ase_recipes.md": "model.safetensors crystal.cif",
    "docs/coming_from.md": "a.xyz",
    "docs/data.md": "train.xyz more/one.npz rmd17_aspirin.npz",
    "docs/uncertainty.md": "model.safetensors train.xyz test.xyz frames.xyz",
    "docs/label.md": "frames.xyz runs/one.traj a.xyz model.safetensors",
    "docs/label_cluster.md": "frames.xyz",
    "docs/report.md": "data.store run/best.safetensors run/split.json test.xyz a.xyz spice.h5",
    "docs/tutorial_materials.md": "materials.safetensors",
    "docs/training.md": "water.xyz",
    "docs/tutorial_training.md": "frames/one.xyz",
    "docs/view.md": "frames.xyz",
}
RUNNING = [page for page in pages() if any(block.language in ("python", *COMMANDS) for block in blocks_of(page))]
# Of other programs, and of scripts in tools/ and recipes/.
FOREIGN_OPTIONS = {
    "--logdir", "--index-url", "--no-cache-dir", "--store", "--checkpoint", "--no-as-needed", "--one-launch",
    "--batches", "--peers", "--sweep", "--peer", "--arch", "--scheduler-file", "--error_threshold", "--nsave",
    "--foundation_model", "--config_index", "--config", "--ncheckerror",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHMDX_TRACEBACK", "1")
    return tmp_path


@pytest.mark.nightly_for(
    "docs/pitfalls.md",
    "docs/uncertainty.md",
    "docs/dynamics.md",
    "docs/what_runs.md",
    "docs/commands.md",
    "docs/tutorial_openmm.md",
    "docs/parallel.md",
    "docs/ase_recipes.md",
    "docs/install.md",
    "docs/tutorial_materials.md",
    "docs/tutorial_ase.md",
    "docs/label.md",
    "docs/label_cluster.md",
    "docs/add_a_model.md",
    "docs/training.md",
    "docs/free_energies.md",
    "docs/report.md",
    "docs/tutorial_training.md",
    "docs/distill.md",
    "docs/openmm.md",
    "docs/tutorial_learning.md",
)
@pytest.mark.parametrize("page", RUNNING)
def test_blocks_run(page, folder, capfd):
    blocks = blocks_of(page)
    files.prepare(folder, blocks, ASSUMED.get(page, ""))
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        if not block.not_run and "file" not in block.marks:
            try:
                run(block, names)
            except BaseException as error:
                error.add_note(f"in the block at {block.place}; there is {files.contents(folder)}")
                raise


def run(block: Block, names: dict[str, object]) -> None:
    """Runs a block of Python in `names`, or the commands of a shell's."""
    if block.language == "python":
        # Lines are counted as in the page.
        code = compile("\n" * (block.line - 1) + block.text, block.page, "exec")
        if "raises" in block.marks:
            with pytest.raises(Exception, match=re.escape(block.marks["raises"])):
                exec(code, names)
        else:
            exec(code, names)
    elif block.language in COMMANDS:
        more = [part.split() for part in block.marks.get("run with", "").split("; ")]
        for words in commands.commands(block):
            # Of several for one command each serves one of them, and the last all that follow.
            mine = [part for part in more if part[:1] == words[1:2]]
            commands.run(words, mine[0][1:] if mine else [])
            if len(mine) > 1:
                more.remove(mine[0])


def register_models(page: str) -> None:
    """Runs a page up to its last registration of a model, so that its configurations may name the model."""
    blocks = [block for block in blocks_of(page) if block.language == "python" and not block.not_run]
    last = max((k for k, block in enumerate(blocks) if "register_model(" in block.text), default=-1)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks[: last + 1]:
        run(block, names)


@pytest.mark.parametrize("page", pages())
def test_blocks_have_a_language_and_can_be_read(page, tmp_path):
    register_models(page)
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{block.place}: the language of a block is one of {', '.join(LANGUAGES)}"
        if block.language == "python":
            ast.parse(block.text)
        elif block.language in COMMANDS:
            for words in commands.commands(block):
                commands.check(words)
        elif block.language == "yaml":
            (tmp_path / "c.yaml").write_text(block.text)
            kind = LearnConfig if block.marks.get("file") == "learn.yaml" else Config
            assert isinstance(read_as(kind, tmp_path / "c.yaml"), kind)


def test_what_is_not_run_has_a_reason():
    for block in all_blocks():
        if block.not_run is not None:
            assert re.match(r"(needs|takes|makes) \w+", block.not_run), f"{block.place}: {block.not_run!r}"


@pytest.mark.parametrize("page", pages())
def test_options_in_the_text_exist(page):
    spans = re.findall(r"`([^`\n]+)`", prose(page))
    asked = {option for span in spans for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9_.-]*[a-z0-9]", span)}
    assert not asked - commands.known_options() - FOREIGN_OPTIONS


@pytest.mark.parametrize("page", pages())
def test_commands_in_the_text_exist(page):
    spans = re.findall(r"`torchmdx ([^`\n]+)`", prose(page))
    parsers = commands.subcommands()
    for span in spans:
        words = span.split()
        name = " ".join(words[:2]) if words[0] == "data" and words[1] in ("convert", "stats", "split") else words[0]
        assert name in parsers, span
        known = commands.known_options() if name == "train" else set(parsers[name]._option_string_actions)
        assert {word.split("=")[0] for word in words if word.startswith("-")} <= known, span


@pytest.mark.parametrize("page", pages())
def test_names_in_the_text_exist(page):
    for name in sorted(set(re.findall(r"`(torchmdx(?:\.\w+)+)", prose(page)))):
        assert resolved(name), f"{page}: there is no {name}"


def test_settings_of_active_learning_in_the_text_exist():
    keys = known_keys(LearnConfig)
    sections = {key.split(".")[0] for key in keys}
    for span in re.findall(r"`([a-z_]+\.[a-z_.]+)(?:: [^`]+)?`", prose("docs/tutorial_learning.md")):
        assert span in keys or span.split(".")[0] not in sections or "/" in span, span


def resolved(name: str) -> bool:
    """Whether a dotted name is a module or something in one."""
    parts = name.split(".")
    for k in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:k]))
        except ModuleNotFoundError:
            continue
        for part in parts[k:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", pages())
def test_files_that_the_text_names_exist(page):
    named = re.findall(r"`((?:torchmdx|benchmarks|examples|tests|tools|docs)/[\w/.-]*\w)`", prose(page))
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", prose(page)) if "://" not in link]
    assert not [name for name in named if not (ROOT / name).exists()]
    assert not [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]


def test_the_installation_tells_of_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = (ROOT / "docs" / "install.md").read_text().split("| extra |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE)) == set(extras)


def test_marks_and_blocks_are_found():
    text = (
        "a\n\n<!-- not run: needs a GPU -->\n\n```bash\ntorchmdx info\n```\n```{toctree}\nx\n```\n````text\n```\n````\n"
    )
    found = blocks_of("page.md", text)
    assert [(b.line, b.language, b.text, b.not_run) for b in found] == [
        (6, "bash", "torchmdx info\n", "needs a GPU"),
        (12, "text", "```\n", None),
    ]
    with pytest.raises(ValueError, match="page.md:1: a mark is one of not run, run with, file, raises, got 'not rum'"):
        blocks_of("page.md", "<!-- not rum: x -->")
    with pytest.raises(ValueError, match="page.md:3: the mark before this line belongs to no block"):
        blocks_of("page.md", "<!-- not run: x -->\n\ntext")


@pytest.mark.parametrize(
    "line",
    [
        "torchmdx md a.xyz -o b --time 1 --tempratur 300",
        "torchmdx train a.yaml --training.epoch 3",
        "pip install 'torchmdx[training]'",
        "pip install numpyy",
        "make tests",
        "python examples/none.py",
    ],
)
def test_commands_with_mistakes_would_be_seen(line, capsys):
    block = Block("page.md", 1, "bash", f"{line}  # a comment\n")
    (words,) = commands.commands(block)
    with pytest.raises((AssertionError, ValueError)):
        commands.check(words)


@pytest.mark.parametrize(
    ("language", "text", "marks", "wrong"),
    [
        ("python", "assert 1 == 2\n", {}, AssertionError),
        ("python", "1 + 1\n", {"raises": "two"}, pytest.fail.Exception),
        ("python", "raise ValueError('three')\n", {"raises": "two"}, AssertionError),
        ("bash", "torchmdx info nothing.safetensors\n", {}, FileNotFoundError),
        ("bash", "curl https://example.org\n", {}, AssertionError),
    ],
)
def test_blocks_that_do_not_work_would_be_seen(language, text, marks, wrong, folder):
    with pytest.raises(wrong):
        run(Block("page.md", 1, language, text, marks), {})


def test_arguments_of_the_test_reach_one_command_after_the_other(folder, monkeypatch):
    given = []
    monkeypatch.setattr(commands, "run", lambda words, more: given.append((words[1], more)))
    text = "torchmdx md a\ntorchmdx info\ntorchmdx md b\ntorchmdx md c\n"
    run(Block("page.md", 1, "bash", text, {"run with": "md --time 1; md --time 2"}), {})
    assert given == [("md", ["--time", "1"]), ("info", []), ("md", ["--time", "2"]), ("md", ["--time", "2"])]


def test_commands_go_on_after_a_backslash():
    block = Block("page.md", 1, "bash", "# first\nA=1 make demo\ntorchmdx info \\\n  'a b'  # second\n")
    assert list(commands.commands(block)) == [["make", "demo"], ["torchmdx", "info", "a b"]]


@functools.cache
def docstring_examples() -> dict[str, str]:
    """Indented code of docstrings that calls something, by where it stands."""
    found = {}
    sources = {path: path.read_text() for path in sorted(Path(torchmdx.__file__).parent.rglob("*.py"))}
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)) if "::\n\n" in source else ():
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                for part in re.findall(r"::\n\n((?:    .*\n(?:\n(?=    ))?)+)", f"{text}\n"):
                    code = textwrap.dedent(part)
                    if is_example(code):
                        found[f"{path.relative_to(ROOT)}:{getattr(node, 'name', 'module')}"] = code
    return found


def is_example(code: str) -> bool:
    try:
        return any(isinstance(node, ast.Call) for node in ast.walk(ast.parse(code)))
    except SyntaxError:  # text, a formula, a command
        return False


@pytest.mark.nightly_for("torchmdx/dynamics/paths/run.py:neb")
@pytest.mark.parametrize("name", docstring_examples())
def test_examples_of_docstrings_run(name, folder):
    if "torch_sim" in name:
        pytest.importorskip("torch_sim")
    if "openmm" in name:
        pytest.importorskip("openmmml")  # before the module that it imports itself
    module = importlib.import_module(
        name.split(":")[0].removesuffix(".py").replace(os.sep, ".").removesuffix(".__init__")
    )
    for file in ("model.safetensors", "fast.safetensors"):
        files.copy_potential(folder / file)
    if "openmm" in name:
        from openmmml import MLPotential

        example = dict(MLPotential=MLPotential, **openmm_names())
    else:
        example = ase_names(folder)
    exec(docstring_examples()[name], {**vars(module), **example})


def ase_names(folder: Path) -> dict[str, object]:
    """What examples without OpenMM take for granted."""
    atoms = ase.build.molecule("CH3CH2OH")
    batch = Batch.of(System.from_ase(atoms))
    ammonia = ase.build.molecule("NH3")
    inverted = ammonia.copy()
    inverted.positions[:, 2] *= -1
    return dict(
        atoms=atoms,
        many=[atoms, ase.build.molecule("H2O")],
        minima=[ammonia, inverted],
        batch=batch,
        frames=[(batch.positions, batch.cell), (batch.positions * 0.9, batch.cell)],
        potential=torchmdx.load("model.safetensors", dtype=torch.float32),
        torchmdx=torchmdx,
        System=System,
        directory=folder / "logs",
        positions=atoms.positions,
        numbers=atoms.numbers,
        num_owned=len(atoms),
        cell=np.diag([30.0, 30.0, 30.0]),
        config={},
    )


def openmm_names() -> dict[str, object]:
    """What examples with OpenMM take for granted."""
    pdb = app.PDBFile(str(DATA / "alanine_dipeptide.pdb"))
    system = openmm.System()
    for atom in pdb.topology.atoms():
        system.addParticle(atom.element.mass)
    return dict(
        system=system,
        mm_system=copy.deepcopy(system),
        topology=pdb.topology,
        positions=pdb.positions,
        ligand=range(pdb.topology.getNumAtoms()),
        context=scaled_context(system, pdb.positions),
    )


def scaled_context(system: openmm.System, positions: object) -> openmm.Context:
    """With a force that the global parameter lambda_sterics scales."""
    scaled = copy.deepcopy(system)
    force = openmm.CustomExternalForce("lambda_sterics * 100 * (x^2 + y^2 + z^2)")
    force.addGlobalParameter("lambda_sterics", 1.0)
    for atom in range(scaled.getNumParticles()):
        force.addParticle(atom)
    scaled.addForce(force)
    context = openmm.Context(scaled, openmm.LangevinMiddleIntegrator(300, 1, 0.001), openmm.Platform.getPlatform("CPU"))
    context.setPositions(positions)
    return context
