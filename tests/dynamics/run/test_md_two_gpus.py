"""`torchmdx md --device cuda:1` with every transport."""

from pathlib import Path

import numpy as np
import pytest
import torch
from md_runs import md

pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")

from torchmdx.dynamics.log import read_log

pytestmark = [pytest.mark.gpu, pytest.mark.two_gpus]
OPTIONS = ["--ensemble", "nve", "--steps", 40, "--save-every", 10, "--log-every", 10, "--timestep", 0.4, "--seed", 1]


@pytest.mark.parametrize("transport", ["native", "python", "torch", "auto"])
def test_a_run_on_either_gpu(model, ethanol_file, unplotted, transport):
    if transport == "torch":
        from torchmdx.openmm.transport_torch import why_not_torch

        if (reason := why_not_torch(cuda=True)) is not None:
            pytest.skip(reason)
    energies = []
    for gpu in (0, 1):
        where = ["--device", f"cuda:{gpu}", "--platform", "CUDA", "--transport", transport, "--precision", "float32"]
        torch.cuda.reset_peak_memory_stats(gpu)
        assert md(ethanol_file, model, f"run{gpu}", *OPTIONS, *where) == 0
        energies.append(read_log(Path(f"run{gpu}.log"))["potential_eV"])
        assert torch.cuda.max_memory_allocated(gpu) > 0
    np.testing.assert_allclose(energies[1], energies[0], atol=1e-3)
    assert torch.cuda.current_device() == 0
