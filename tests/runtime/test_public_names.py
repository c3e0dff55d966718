"""Public names: they can be imported, lazily, and type checkers see them."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from documents.public import NEEDED, PUBLIC, names_of

import torchmdx

PACKAGE = Path(torchmdx.__file__).parent
FOLDERS = [module for module in PUBLIC if (PACKAGE.parent / module.replace(".", "/")).is_dir()]


@pytest.fixture(params=PUBLIC)
def module(request) -> str:
    if request.param in NEEDED:
        pytest.importorskip(NEEDED[request.param])
    return request.param


def init_of(module: str) -> Path:
    return PACKAGE.parent / module.replace(".", "/") / "__init__.py"


def test_public_names_can_be_imported(module):
    names = names_of(module)
    assert names
    assert set(names) <= set(dir(importlib.import_module(module)))
    for name, thing in names.items():
        assert not isinstance(thing, ModuleType) or thing.__name__ == f"{module}.{name}"
        assert not name.startswith("_")


@pytest.mark.parametrize("module", FOLDERS)
def test_type_checkers_see_the_public_names(module):
    """The imports of a folder's `__init__`, each as itself, are its public names."""
    tree = ast.parse(init_of(module).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname: node.module for node in imports for alias in node.names if alias.asname == alias.name}
    assert sorted(seen) == sorted(importlib.import_module(module).__all__)
    for name, source in seen.items():
        assert getattr(importlib.import_module(source), name) is getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", FOLDERS)
def test_no_file_is_called_like_a_public_name(module):
    """Importing such a file would put the module in the place of the function."""
    if "public_names(" not in init_of(module).read_text():
        return  # imports all names at once, after which they stay
    names = names_of(module)
    files = {path.stem for path in init_of(module).parent.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not {name for name in names if name in files and not isinstance(names[name], ModuleType)}


def test_names_that_do_not_exist_are_refused(module):
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'Nonsense'"):
        _ = importlib.import_module(module).Nonsense


def test_public_names_are_imported_when_they_are_used():
    code = (
        "import sys, {0}; assert 'torch' not in sys.modules and 'numpy' not in sys.modules, '{0}'; "
        "assert not [name for name in sys.modules if name.startswith('{0}.')]"
    )
    lazy = [m for m in FOLDERS[1:] if "public_names(" in init_of(m).read_text() and not inner_folders(m)]
    assert len(lazy) > 10
    for module in lazy:
        subprocess.run([sys.executable, "-c", code.format(module)], check=True, timeout=60)


def inner_folders(module: str) -> list[str]:
    """Public folders above a module, which its import imports first."""
    return [other for other in FOLDERS[1:] if module.startswith(f"{other}.")]


@pytest.mark.nightly
def test_the_package_itself_imports_from_the_defining_modules():
    """So that the order of imports stays visible, and nothing depends on what is imported lazily."""
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in FOLDERS and path.name != "__init__.py":
                names = names_of(node.module)
                found = [a.name for a in node.names if not isinstance(names.get(a.name, torchmdx), ModuleType)]
                wrong += [f"{path.relative_to(PACKAGE)}: from {node.module} import {name}" for name in found]
    assert not wrong, "\n".join(wrong)
