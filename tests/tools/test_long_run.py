"""tools/long_run.py: memory over many evaluations."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TOOLS = Path(__file__).parents[2] / "tools"
pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")


@pytest.mark.nightly
def test_memory_is_constant_over_thousands_of_evaluations():
    """More by hand: tools/long_run.py 100000."""
    command = [sys.executable, str(TOOLS / "long_run.py"), "3000"]
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, crystal = (line for line in done.stdout.splitlines() if "longer lists" in line)
    assert ": 0 longer" not in crystal


@pytest.mark.nightly
def test_memory_that_is_kept_is_seen(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import long_run

    kept, size = [], 800_000

    def keep(positions, cell):
        kept.append(mmap.mmap(-1, size))  # not from memory that the process has already
        kept[-1].write(b"x" * size)

    found = long_run.memory_over(keep, np.ones((3, 3)), np.eye(3), 40, 0)
    sys.modules.pop("long_run")
    assert len(kept) == 40
    assert found[-1] - found[1] > 20 * size
