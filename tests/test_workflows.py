"""The public workflows call targets and tools that exist, for the Pythons and platforms that the project names."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES = {"pip", "build", "cibuildwheel"}  # that the steps install


def jobs(path):
    return yaml.safe_load(path.read_text())["jobs"]


def matrix_of(job) -> list[dict]:
    """The values of each run of a job."""
    matrix = job.get("strategy", {}).get("matrix", {})
    if "include" in matrix:
        return matrix["include"]
    return [{name: value} for name, values in matrix.items() for value in values] or [{}]


def filled(text: str, values: dict) -> str:
    """The text with the values of the matrix. Raises KeyError for one that the matrix does not have."""
    return re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda found: str(values[found[1]]), text)


def commands(path) -> list[list[str]]:
    """Words of each command, for each value of the matrix."""
    return [
        shlex.split(filled(line, values))
        for job in jobs(path).values()
        for values in matrix_of(job)
        for step in job["steps"]
        for line in step.get("run", "").splitlines()
    ]


def wrong(words: list[str]) -> str | None:
    """What of a command does not exist."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    match words:
        case ["make", *given] if given:
            return next((f"no target {name}" for name in given if name not in targets), None)
        case ["python", "-m", module, *_]:
            return None if module in MODULES else f"no module {module}"
        case [script, *_] if script.startswith("tools/"):
            path = ROOT / script
            return None if path.is_file() and path.stat().st_mode & 0o100 else f"no program {script}"
    return f"not known: {words}"


def test_there_are_workflows_for_every_kind_of_check():
    called = {word for path in WORKFLOWS for words in commands(path) if words[0] == "make" for word in words[1:]}
    assert {"lint", "types", "test", "docs"} <= called
    assert any(words[:3] == ["python", "-m", "cibuildwheel"] for path in WORKFLOWS for words in commands(path))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_calls_exists(path):
    found = commands(path)
    assert found
    assert [reason for words in found if (reason := wrong(words))] == []


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("make test", None),
        ("make tests", "no target tests"),
        ("tools/check_wheel.sh", None),
        ("tools/check_nothing.sh", "no program tools/check_nothing.sh"),
        ("python -m pip install build", None),
        ("python -m nothing", "no module nothing"),
        ("curl x", "not known: ['curl', 'x']"),
    ],
)
def test_a_command_that_does_not_exist_would_be_seen(command, reason):
    assert wrong(command.split()) == reason


def test_versions_of_python_are_allowed_and_include_the_classifiers():
    pythons = {
        value for path in WORKFLOWS for job in jobs(path).values() for v in matrix_of(job) if (value := v.get("python"))
    }
    least = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert least == min(pythons, key=lambda version: int(version.split(".")[1]))
    classified = {line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if "Python :: 3." in line}
    assert classified <= pythons


def test_wheels_are_built_for_the_platforms_of_pyproject():
    built = {
        platform: {arch for one in runs if one["platform"] == platform for arch in one["archs"].split()}
        for runs in [matrix_of(jobs(ROOT / ".github" / "workflows" / "wheels.yml")["wheels"])]
        for platform in ("linux", "macos")
    }
    configured = PROJECT["tool"]["cibuildwheel"]
    assert built == {platform: set(configured[platform]["archs"]) for platform in built}


def test_the_oldest_torch_is_that_of_pyproject():
    (bound,) = [
        line.removeprefix("torch>=") for line in PROJECT["project"]["dependencies"] if line.startswith("torch>=")
    ]
    runs = {v["which"]: v["torch"] for v in matrix_of(jobs(ROOT / ".github" / "workflows" / "tests.yml")["versions"])}
    assert runs == {"newest": "torch", "oldest": f"torch=={bound}.0"}


def test_workflows_may_only_read():
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}, path.name
