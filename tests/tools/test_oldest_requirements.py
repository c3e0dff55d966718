"""tools/oldest_requirements.py: constraints for the lower bounds of pyproject.toml."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = ["openmm", "train", "label"]


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("oldest_requirements", ROOT / "tools" / "oldest_requirements.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_bounds_become_exact_versions_and_torch_is_the_pinned_one(tool, capsys, monkeypatch):
    monkeypatch.delenv("TORCH_REQUIREMENT", raising=False)
    assert tool.main(EXTRAS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(re.fullmatch(r"[a-z0-9]+==[0-9.]+", line) for line in lines)
    pinned = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    assert pinned in lines
    assert {"numpy==1.26", "openmm==8.6", "pydantic==2.7"} <= set(lines)
    monkeypatch.setenv("TORCH_REQUIREMENT", "torch==2.9.0")
    tool.main([])
    assert "torch==2.9.0" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("requirement", ["rdkit", "rdkit<3", "rdkit>=1,<3", "rdkit>=1; platform_system == 'Linux'"])
def test_a_requirement_without_a_plain_lower_bound_is_refused(tool, requirement):
    with pytest.raises(ValueError, match=re.escape(f"got {requirement!r}")):
        tool.oldest(requirement)


def test_an_unknown_extra_is_refused(tool):
    with pytest.raises(ValueError, match="extras must be of cluster, dask, dev, .*, got nothing"):
        tool.requirements(["nothing"], ROOT / "pyproject.toml")
