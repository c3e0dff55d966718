"""The GPU kernels' suite on the CPU. In a process of its own: Triton decides when it is imported."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="the same tests run on the GPU")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["triton_brute_force", "triton_cell_list"])
def test_the_suite_passes_under_the_interpreter(backend):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # NumPy, which stands in for the GPU, warns of NaN and of division by zero; a GPU does not.
    command += [
        "-W",
        "ignore::RuntimeWarning",
        "-m",
        "interpreted",
        "-k",
        backend,
        str(Path(__file__).with_name("test_search.py")),
    ]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
