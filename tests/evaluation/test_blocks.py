"""Networks in blocks of atoms: the numbers of the reference, the memory, and refusals."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from ase.build import bulk
from model_kinds import kinds

from torchmdx import Batch, System, TensorNetConfig, evaluate
from torchmdx.evaluation import blocks
from torchmdx.evaluation.blocks import BlockedTensorNet, bounded
from torchmdx.models.potential import Potential
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.step.captured_step import CapturedStep


@pytest.fixture
def batch(ethanol, crystal) -> Batch:
    diamond = bulk("C") * (2, 2, 1)
    diamond.rattle(0.1, seed=1)
    return Batch.of([System.from_ase(atoms) for atoms in (ethanol, diamond, crystal)])


@pytest.fixture(params=[1.0, 2e5, 1e6], ids=["single atoms", "few atoms", "many atoms"])
def small_blocks(request, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", request.param)


@pytest.mark.nightly_for("SO(3)", "zbl", "d2", "everything", "d3", "coulomb", "coulomb-cut")
@pytest.mark.parametrize("kind", kinds())
def test_results_are_those_of_the_reference(make_kind, kind, batch, monkeypatch):
    potential = make_kind(kind)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1e12)
    wanted = evaluate(potential, batch, stress=True)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2e5)
    found = evaluate(potential, batch, stress=True)
    for name in ("energy", "energies", "forces", "stress", "charges", "dipoles"):
        expected = getattr(wanted, name)
        if expected is not None:
            torch.testing.assert_close(getattr(found, name), expected, atol=1e-12, rtol=1e-12, equal_nan=True)


@pytest.mark.nightly_for("single atoms")
def test_blocks_of_any_size_give_the_same(potential, batch, small_blocks):
    edges = brute_force(batch, potential.search_cutoff(batch))
    assert isinstance(bounded(potential, edges, create_graph=False).network, BlockedTensorNet)
    found = evaluate(potential, batch)
    # Second derivatives take the reference itself.
    wanted = evaluate(potential, batch, create_graph=True)
    torch.testing.assert_close(found.forces, wanted.forces.detach(), atol=1e-12, rtol=1e-12)


def test_a_step_with_the_exact_model_evaluates_in_blocks(potential, ethanol, monkeypatch):
    step = CapturedStep(potential, System.from_ase(ethanol), stress=False, energies=True, engine="exact")
    wanted = step(ethanol.positions)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1.0)
    counted = []
    plain = blocks.embed
    monkeypatch.setattr(blocks, "embed", lambda *given: counted.append(1) or plain(*given))
    found = step(ethanol.positions)
    assert counted == [1]
    np.testing.assert_allclose(found.forces, wanted.forces, atol=1e-12)


def test_small_structures_other_networks_and_second_derivatives_are_not_cut(potential, batch, make_kind):
    edges = brute_force(batch, potential.search_cutoff(batch))
    assert bounded(potential, edges, create_graph=False) is potential

    class Other(type(potential.network)):
        pass

    other = potential.with_network(Other(potential.config))
    assert bounded(other, edges, create_graph=False) is other


def test_too_much_memory_is_refused_with_an_estimate(potential, batch, monkeypatch):
    monkeypatch.setattr(blocks, "LEAST_ESTIMATE", 0)
    monkeypatch.setattr(blocks, "available_bytes", lambda: 1_000_000)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 5e4)
    evaluate(potential, batch)  # a bounded evaluation fits
    with pytest.raises(MemoryError, match="of 20 atoms in float64 on the CPU needs about .* GB of memory, but 0.0 GB"):
        evaluate(potential, batch, create_graph=True)
    monkeypatch.setattr(blocks, "available_bytes", lambda: 1000)
    with pytest.raises(MemoryError, match="use float32, a GPU or fewer atoms"):
        evaluate(potential, batch)
    with pytest.raises(MemoryError, match="in float32 .* use a GPU or fewer atoms"):
        evaluate(Potential(TensorNetConfig()), batch)
    monkeypatch.setattr(blocks, "available_bytes", lambda: None)
    evaluate(potential, batch, create_graph=True)


PROGRAM = """
import resource, sys
import numpy as np
from ase import Atoms
import torchmdx
count = int(sys.argv[1])
calculator = torchmdx.Calculator(dtype="float64", device="cpu")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
grid = np.stack(np.meshgrid(*[np.arange(count)] * 3), -1).reshape(-1, 3) * 2.15
atoms = Atoms(f"C{len(grid)}", grid, cell=[count * 2.15] * 3, pbc=True)
atoms.rattle(0.1, seed=1)
atoms.calc = calculator
assert np.isfinite(atoms.get_forces()).all()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, len(atoms))
"""


def grown(count: int) -> tuple[float, int]:
    """MiB that forces of a crystal need in a program of their own, and its number of atoms."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(count)], capture_output=True, text=True, timeout=600, env=environment
    )
    assert done.returncode == 0, done.stderr
    memory, atoms = re.findall(r"[\d.]+", done.stdout)
    return float(memory), int(atoms)


@pytest.mark.nightly
def test_memory_of_float64_is_bounded():
    memory, atoms = grown(5)
    assert atoms == 125
    assert memory < 300  # without blocks 1.2 GB


@pytest.mark.nightly
def test_memory_of_3000_atoms_in_float64_is_at_most_1_gb():
    memory, atoms = grown(15)
    assert atoms > 3000
    assert memory < 700  # beside torch itself


@pytest.mark.parametrize(("free", "expected"), [(10**9, 4), (8 * 10**9, 1e9 / 64e6), (80 * 10**9, 32)])
def test_blocks_are_larger_on_a_gpu_with_room(monkeypatch, free, expected):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free - 10**8, 10**11))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 * 10**8)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 * 10**8)
    assert blocks._block_bytes(torch.device("cuda", 0)) == pytest.approx(expected * 64e6)
    assert blocks._block_bytes(torch.device("cpu")) == 64e6
