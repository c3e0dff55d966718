"""tools/fuzz_cpu.py: random structures in C against the reference, and how differences and crashes are reported."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from torchmdx.engines.cpu import build
from torchmdx.neighbors.backends import cell_list

TOOLS = Path(__file__).parents[2] / "tools"
pytestmark = pytest.mark.skipif(
    build.tensornet_library() is None or not cell_list.available(), reason="needs a C compiler"
)


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import fuzz_cpu

    before = torch.get_num_threads()
    yield fuzz_cpu
    torch.set_num_threads(before)
    sys.modules.pop("fuzz_cpu")


def fuzz(*arguments):
    """(exit status, what the tool prints)"""
    command = [sys.executable, str(TOOLS / "fuzz_cpu.py"), *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.nightly
def test_a_few_structures_of_every_kind_agree():
    """More by hand: tools/fuzz_cpu.py 100000."""
    status, said = fuzz(80, "--start", 200_000)
    assert status == 0, said
    for became in ("equal", "empty", "at one place", "not finite"):
        assert f"'{became}'" in said


def test_structures_cover_what_is_promised(tool):
    found = [tool.structure(np.random.default_rng(seed)) for seed in range(2000)]
    counts = [len(positions) for positions, *_ in found]
    assert min(counts) == 0
    assert max(counts) > 250
    assert {tuple(pbc) for *_, pbc in found} == {tuple(k > 0 for k in pbc) for pbc in np.ndindex(2, 2, 2)}
    volumes = [abs(np.linalg.det(cell)) for _, _, cell, pbc in found if pbc.all()]
    assert min(volumes) < 1
    assert max(volumes) > 1e9
    assert any(np.linalg.det(cell) < 0 for _, _, cell, pbc in found if pbc.all())


def test_a_difference_is_reported_with_its_structure(tool, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(tool, "LIMIT", 1e-12)
    assert tool.run_part(0, 3, tmp_path / "progress") == 1
    assert "fuzz_cpu: structure 1: AssertionError: " in capsys.readouterr().out
    assert "'FAILED'" in (tmp_path / "progress").read_text()


def test_a_process_that_ends_is_reported_with_its_structure(tool, monkeypatch, capsys):
    class Ended:
        returncode = -11

    def crash(command, check):
        Path(command[command.index("--part") + 1]).write_text("17")
        return Ended

    monkeypatch.setattr(tool.subprocess, "run", crash)
    assert tool.main(["30"]) == 1
    assert "fuzz_cpu: structure 17: the process ended with -11" in capsys.readouterr().out
