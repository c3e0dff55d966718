"""Settings of the C libraries, and that settings in the environment take precedence."""

import os
import platform
import subprocess
import sys

import pytest

from torchmdx.runtime.cpu_memory import CHOICES, SPINS

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the C library glibc")

# Pages of 4 KB that an evaluation of 512 atoms gets from the system.
PAGES = """
import resource
import numpy as np
import torchmdx

grid = 2.2 * np.stack(np.meshgrid(*3 * [np.arange(8.0)], indexing="ij"), -1).reshape(-1, 3)
step = torchmdx.CapturedStep(torchmdx.load("organic-1"), torchmdx.System.create(grid, np.full(len(grid), 6)))
for _ in range(3):
    step(grid)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step(grid)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 4)
"""


WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def run(code, **environment):
    kept = {name: value for name, value in os.environ.items() if name not in (*CHOICES, "GLIBC_TUNABLES", *WAITING)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=True)


def pages(**environment):
    return int(run(PAGES, **environment).stdout)


@pytest.mark.nightly
def test_an_evaluation_takes_the_memory_of_the_one_before():
    assert pages() < 10_000


@pytest.mark.nightly
@pytest.mark.parametrize("choice", [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.top_pad=0"}])
def test_a_choice_of_the_environment_stays(choice):
    assert pages(**choice) > 40_000


@pytest.mark.parametrize(
    ("choice", "spins"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "active"}, "30000000000")],
)
def test_threads_wait_briefly(choice, spins):
    """As reported by the OpenMP library that torch has loaded."""
    said = run("import torchmdx", OMP_DISPLAY_ENV="verbose", **choice).stderr
    if "GOMP_SPINCOUNT" not in said:
        pytest.skip("torch was built with another OpenMP library than GNU's")
    assert f"GOMP_SPINCOUNT = '{spins}'" in said
