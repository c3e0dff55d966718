"""What a release consists of: version and changelog, files of the package, and that the check of archives can fail."""

import importlib.util
import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest

import torchmdx

ROOT = Path(__file__).parents[2]


def load_tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def check_archives():
    return load_tool("check_archives")


@pytest.fixture(scope="module")
def check_release():
    return load_tool("check_release")


def test_the_changelog_has_the_version_and_at_most_one_that_is_unreleased():
    titles = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = titles[1:] if titles[0].endswith(" (unreleased)") else titles
    assert released[0].startswith(f"{torchmdx.__version__} (")
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", title) for title in released)


def test_the_demo_extra_holds_what_the_demo_imports():
    """For its page; what it needs else is required by torchmdx, or by ASE: matplotlib."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in extras["view"]}
    assert "plotly" in names
    assert any(re.match(r"matplotlib\b[^;]*$", requirement) for requirement in requires("ase"))
    assert names <= {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in extras["dev"]}
    makefile = (ROOT / "Makefile").read_text()
    assert "\t@./tools/setup.sh view\n\t@$(BIN)/torchmdx demo $(ARGS)\n" in makefile


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
TOP = {"pyproject.toml", "setup.py", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt"}
INFO = {f"torchmdx-0.1.0.dist-info/{name}": 10 for name in ("METADATA", "entry_points.txt", "licenses/LICENSE")}
LIBRARIES = {
    "torchmdx/engines/cpu/tensornet-0123456789abcdef.so": 1000,
    "torchmdx/engines/cpu/kernels-0123456789abcdef.so": 1000,
    "torchmdx/neighbors/backends/cell_list-0123456789abcdef.so": 1000,
}


def archives(check_archives):
    package = {*check_archives.NEEDED, "torchmdx/__init__.py", "torchmdx/models/potential.py"}
    return package, package | TOP, dict.fromkeys(package, 1000) | INFO | LIBRARIES


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
        (
            lambda p, s, w: (p, s, without(w, "torchmdx/engines/cpu/tensornet-0123456789abcdef.so")),
            "the wheel lacks the library torchmdx/engines/cpu/tensornet-",
        ),
        (
            lambda p, s, w: (p, s | {"tests/structures/test_cell.py"}, w),
            "the sdist holds a test: tests/structures/test_cell.py",
        ),
        (lambda p, s, w: (p, s, w | {"tools/x.py": 1}), "the wheel holds what is not of the package: tools/x.py"),
        (
            lambda p, s, w: (p, s, without(w, "torchmdx-0.1.0.dist-info/licenses/LICENSE")),
            "the wheel has no licence",
        ),
        (
            lambda p, s, w: (p, s, w | {"torchmdx/checkpoints/potentials/organic-1.safetensors": 6_000_000}),
            "torchmdx/checkpoints/potentials/organic-1.safetensors must be at most 5,000,000 bytes, got 6,000,000",
        ),
    ],
)
def test_what_is_wrong_with_archives_is_named(check_archives, change, problem):
    assert check_archives.problems(*change(*archives(check_archives)), METADATA) == [problem]


def test_a_file_that_the_checkout_lacks_is_named(check_archives):
    name = "torchmdx/checkpoints/potentials/organic-1.safetensors"
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


CHANGELOG = """# Changelog

## 0.2.0 (2026-12-01)

### Added

- Something.
"""
CITATION = 'title: torchmdx\nversion: 0.2.0\ndate-released: "2026-12-01"\n'


def test_a_changelog_that_is_ready_passes(check_release):
    assert check_release.changelog_problem("0.2.0", CHANGELOG) == ""
    assert check_release.citation_problem("0.2.0", CHANGELOG, CITATION) == ""
    assert check_release.version_of('x = 1\n__version__ = "0.2.0"\n') == "0.2.0"


@pytest.mark.parametrize(
    ("version", "date", "got"),
    [
        ("0.3.0", "2026-12-01", "0.2.0 (2026-12-01)"),
        ("0.2.0", "unreleased", "0.2.0 (unreleased)"),
        ("0.2.0", "December", "0.2.0 (December)"),
    ],
)
def test_what_is_wrong_with_a_changelog_is_named(check_release, version, date, got):
    problem = check_release.changelog_problem(version, CHANGELOG.replace("2026-12-01", date))
    assert problem == f"the first heading must be {version} (YYYY-MM-DD), got {got}"


def test_an_empty_changelog_is_named(check_release):
    assert check_release.changelog_problem("0.2.0", "") == ("the first heading must be 0.2.0 (YYYY-MM-DD), got none")


def test_another_version_or_date_to_cite_is_named(check_release):
    citation = CITATION.replace("0.2.0", "0.1.0").replace("2026-12-01", "2026-11-21")
    assert check_release.citation_problem("0.2.0", CHANGELOG, citation) == (
        "version must be 0.2.0, got 0.1.0; date-released must be 2026-12-01, got 2026-11-21"
    )


def test_the_citation_is_that_of_the_version(check_release):
    text = {name: (ROOT / name).read_text() for name in ("CHANGELOG.md", "CITATION.cff")}
    assert check_release.citation_problem(torchmdx.__version__, text["CHANGELOG.md"], text["CITATION.cff"]) == ""


@pytest.mark.parametrize(
    ("tags", "changes", "problem"),
    [
        (["v0.2.0"], "", ""),
        ([], "", "the commit must have the tag v0.2.0, got none"),
        (["v0.1.0", "x"], "", "the commit must have the tag v0.2.0, got v0.1.0, x"),
        (["v0.2.0"], " M a\n?? b", "the checkout must be clean, got 2 changed files"),
    ],
)
def test_a_missing_tag_and_changed_files_are_named(check_release, tags, changes, problem):
    assert check_release.tag_problem("0.2.0", tags, changes) == problem


def test_each_check_is_printed_and_failures_count(check_release, capsys):
    assert check_release.run({"one": lambda: "", "two": lambda: "it is wrong"}) == 1
    assert capsys.readouterr().out == "pass  one\nFAIL  two: it is wrong\n"


def test_a_command_that_fails_shows_what_it_printed(check_release):
    assert check_release.command_problem("true") == ""
    assert check_release.command_problem("sh", "-c", "echo oh; exit 3") == "exit status 3\noh"
