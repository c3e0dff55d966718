"""Documents and examples use public names only; the reference shows all of them."""

import re
from types import ModuleType

import pytest
from documents.blocks import ROOT, pages, prose
from documents.public import PUBLIC, inner_imports, is_installed, is_public_name, names_of

SCRIPTS = sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".ipynb"))
SHOWN = re.findall(r"^\.\. auto(\w+):: (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", pages())
def test_pages_use_public_names_only(page):
    assert not inner_imports((ROOT / page).read_text())
    for name in sorted(set(re.findall(r"`(torchmdx(?:\.\w+)+)", prose(page)))):
        assert is_public_name(name), f"{page}: {name} is not public"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_examples_use_public_names_only(script):
    assert not inner_imports(script.read_text())


def test_inner_imports_would_be_seen():
    assert inner_imports("from torchmdx.structures.units import HARTREE\nimport torchmdx.step\nimport torchmdx") == []
    assert inner_imports("from torchmdx.structures import System, units; import torchmdx.structures.units") == []
    assert inner_imports('"x = 1\\n",\n"from torchmdx.step.results import StepError\\n"') == [
        "from torchmdx.step.results import StepError"
    ]
    assert inner_imports("from torchmdx.step import (\n    StepError,\n    results,\n)") == [
        "from torchmdx.step import results"
    ]
    assert is_public_name("torchmdx.Dynamics.restore")
    assert is_public_name("torchmdx.structures.units.HARTREE")
    assert not is_public_name("torchmdx.step.results.StepError")
    assert inner_imports("import torchmdx.step.pool") == ["import torchmdx.step.pool"]
    assert inner_imports("from torchmdx.models import Potential as P, Potentials as Q") == [
        "from torchmdx.models import Potentials"
    ]


def test_the_reference_shows_the_public_names_and_nothing_else():
    available = [module for module in PUBLIC if is_installed(module)]
    public = {f"{module}.{name}": thing for module in available for name, thing in names_of(module).items()}
    shown = {name: kind for kind, name in SHOWN if kind != "method" and is_installed(name.rpartition(".")[0])}
    names = [name for kind, name in SHOWN if kind != "method"]
    assert sorted(names) == sorted(set(names)), "a name is shown twice"
    assert not shown.keys() - public.keys(), "these are not public"
    assert len(shown) == len({id(public[name]) for name in shown}), "a name is shown twice, at two paths"
    ids = {id(public[name]) for name in shown}
    assert not sorted(name for name, thing in public.items() if id(thing) not in ids), "these are not shown"
    for name, kind in shown.items():
        assert (kind == "module") == isinstance(public[name], ModuleType)


def test_the_page_on_architecture_shows_the_public_modules():
    page = (ROOT / "docs" / "architecture.md").read_text()
    listed = re.search(r"## Public names\n.*?```text\n(.*?)```", page, re.DOTALL)
    assert listed
    assert tuple(listed[1].split()) == PUBLIC
