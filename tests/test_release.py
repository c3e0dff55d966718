"""What a release consists of: version and changelog, files of the package, and that the check of archives can fail."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import torchmdx

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def check_archives():
    spec = importlib.util.spec_from_file_location("check_archives", ROOT / "tools" / "check_archives.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_changelog_has_the_version_below_what_is_unreleased():
    titles = re.findall(r"^## \[(.*?)\](?: - (.*))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert titles[0] == ("Unreleased", "")
    assert titles[1][0] == torchmdx.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", titles[1][1])


def test_the_demo_extra_holds_what_the_demo_imports():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in extras["openmm"]}
    assert {"openmm", "matplotlib"} <= names
    assert names <= {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in extras["dev"]}
    makefile = (ROOT / "Makefile").read_text()
    assert "\t@./tools/setup.sh openmm\n\t@$(BIN)/torchmdx demo\n" in makefile


METADATA = """\
Metadata-Version: 2.4
Name: torchmdx
Version: 0.1.0
Summary: a summary
Requires-Python: >=3.11
License-Expression: MIT
Project-URL: Paper, https://example.org
Provides-Extra: openmm
Provides-Extra: train
Provides-Extra: label

"""
TOP = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt"}
INFO = {f"torchmdx-0.1.0.dist-info/{name}": 10 for name in ("METADATA", "entry_points.txt", "licenses/LICENSE")}


def archives(check_archives):
    package = {*check_archives.NEEDED, "torchmdx/__init__.py", "torchmdx/models/potential.py"}
    return package, package | TOP, dict.fromkeys(package, 1000) | INFO


def test_archives_that_are_whole_have_no_problems(check_archives):
    assert check_archives.problems(*archives(check_archives), METADATA) == []


def without(names, name):
    return {key: names[key] for key in names if key != name} if isinstance(names, dict) else names - {name}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda p, s, w: (p, s, without(w, "torchmdx/py.typed")), "the wheel lacks torchmdx/py.typed"),
        (lambda p, s, w: (p, without(s, "torchmdx/__init__.py"), w), "the sdist lacks torchmdx/__init__.py"),
        (lambda p, s, w: (p, without(s, "LICENSE"), w), "the sdist lacks LICENSE"),
        (lambda p, s, w: (p, s | {"tests/test_cell.py"}, w), "the sdist holds a test: tests/test_cell.py"),
        (lambda p, s, w: (p, s, w | {"tools/x.py": 1}), "the wheel holds what is not of the package: tools/x.py"),
        (
            lambda p, s, w: (p, s, without(w, "torchmdx-0.1.0.dist-info/licenses/LICENSE")),
            "the wheel has no licence",
        ),
        (
            lambda p, s, w: (p, s, w | {"torchmdx/potentials/organic-1.safetensors": 6_000_000}),
            "torchmdx/potentials/organic-1.safetensors must be at most 5,000,000 bytes, got 6,000,000",
        ),
    ],
)
def test_what_is_wrong_with_archives_is_named(check_archives, change, problem):
    assert check_archives.problems(*change(*archives(check_archives)), METADATA) == [problem]


def test_a_file_that_the_checkout_lacks_is_named(check_archives):
    name = "torchmdx/potentials/organic-1.safetensors"
    package, sdist, wheel = archives(check_archives)
    found = check_archives.problems(package - {name}, sdist - {name}, without(wheel, name), METADATA)
    assert found == [f"the checkout has no {name}"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("Version: 0.2.0.dev0", "the version must be a release's, got 0.2.0.dev0"),
        ("Provides-Extra: opnmm", "the metadata lack the extra openmm"),
    ],
)
def test_wrong_metadata_are_named(check_archives, line, problem):
    wrong = re.sub(f"^{line.split(':')[0]}: .*$", line, METADATA, count=1, flags=re.MULTILINE)
    assert check_archives.problems(*archives(check_archives), wrong) == [problem]


def test_what_the_checkout_must_have_is_there(check_archives):
    files = check_archives.package_files(ROOT)
    assert not [name for name in check_archives.NEEDED if name not in files]
