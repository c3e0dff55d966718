"""Settings of the C libraries, and that settings in the environment take precedence."""

import os
import platform
import subprocess
import sys

import pytest

from torchmdx.runtime import cpu_memory
from torchmdx.runtime.cpu_memory import CHOICES, SPINS

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the C library glibc")

# Pages of 4 KB that an evaluation of 125 atoms gets from the system.
PAGES = """
import resource
import numpy as np
import torchmdx

grid = 2.2 * np.stack(np.meshgrid(*3 * [np.arange(5.0)], indexing="ij"), -1).reshape(-1, 3)
# Of torch operations, which get memory each time; the compiled networks keep their own.
potential = torchmdx.Potential(torchmdx.TensorNetConfig(num_layers=1)).double().requires_grad_(False)
step = torchmdx.CapturedStep(potential, torchmdx.System.create(grid, np.full(len(grid), 6)), engine="exact")
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


@pytest.mark.nightly
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


def test_available_memory_is_at_most_that_of_the_machine():
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < cpu_memory.available_bytes() <= machine


def test_a_control_group_limits_what_is_available(tmp_path, monkeypatch):
    values = {"memory.max": "5000\n", "memory.current": "3000\n", "memory.stat": "anon 1\ninactive_file 400\n"}
    for name, text in values.items():
        (tmp_path / name).write_text(text)
    assert cpu_memory._in_control_group(tmp_path) == 2400
    (tmp_path / "memory.max").write_text("max\n")
    assert cpu_memory._in_control_group(tmp_path) is None
    assert cpu_memory._in_control_group(tmp_path / "missing") is None
    monkeypatch.setattr(cpu_memory, "_in_control_group", lambda: 2400)
    assert cpu_memory.available_bytes() == 2400
