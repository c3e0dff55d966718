"""Choosing a backend, and the ones that serve some batches only."""

import importlib.util

import numpy as np
import pytest
import torch
from checks import backends, batch_of, require_neighbours
from interpreter import INTERPRETED

from torchmdx.neighbors.backends import cell_list
from torchmdx.neighbors.choose import BACKENDS, CELL_LIST_FROM
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.structures.system import Batch, System

MOLECULES = [(np.random.default_rng(k).normal(0, 2, (k + 3, 3)), np.zeros((3, 3)), (False,) * 3) for k in range(3)]
CRYSTAL = [(np.zeros((1, 3)), np.eye(3), (True,) * 3)]


def test_on_the_cpu_the_cell_list_is_chosen_else_vesin_else_plain_torch(monkeypatch):
    search = EdgeSearch(3.0)
    if cell_list.available():
        search.allocate(batch_of(MOLECULES, "vesin"))
        assert search.backend == "cell_list"
    monkeypatch.setattr(cell_list, "available", lambda: False)
    search.allocate(batch_of(MOLECULES, "vesin"))
    assert search.backend == "vesin"
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vesin" else find(name))
    search.allocate(batch_of(MOLECULES, "vesin"))
    assert search.backend == "brute_force"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_the_gpu_the_size_of_the_largest_system_decides():
    for count, backend in ((CELL_LIST_FROM - 1, "triton_brute_force"), (CELL_LIST_FROM, "triton_cell_list")):
        atoms = np.random.default_rng(0).random((count, 3)) * 30
        search = EdgeSearch(3.0)
        search.allocate(batch_of([(atoms, 30 * np.eye(3), True)], "triton_cell_list"))
        assert search.backend == backend


def test_unknown_backends_are_refused_by_name():
    with pytest.raises(ValueError, match=f"backend must be auto or one of {', '.join(BACKENDS)}, got 'cells'"):
        EdgeSearch(3.0, backend="cells")


@pytest.mark.skipif(INTERPRETED, reason="the interpreter makes it work")
@pytest.mark.parametrize("backend", ["triton_brute_force", "triton_cell_list"])
def test_kernels_need_a_gpu(backend):
    with pytest.raises(ValueError, match=f"backend '{backend}' needs positions on a CUDA GPU, got cpu"):
        EdgeSearch(3.0, backend=backend).allocate(batch_of(MOLECULES, "vesin"))


@pytest.mark.parametrize("cutoff", [0.0, -1.0, np.nan, np.inf])
def test_cutoffs_are_lengths(cutoff):
    with pytest.raises(ValueError, match=f"cutoff must be > 0 Å and finite, got {cutoff}"):
        EdgeSearch(cutoff)


@pytest.mark.parametrize("skin", [-0.1, np.nan, np.inf])
def test_skins_are_lengths_or_zero(skin):
    with pytest.raises(ValueError, match=f"skin must be >= 0 Å and finite, got {skin}"):
        EdgeSearch(3.0, skin=skin)


def test_without_torch_cluster_its_backend_says_how_to_get_it(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch_cluster" else find(name))
    with pytest.raises(ImportError, match=r"pip install 'torchmdx\[cluster\]'"):
        EdgeSearch(3.0, backend="torch_cluster").allocate(batch_of(MOLECULES, "vesin"))


def test_torch_cluster_refuses_periodic_batches(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(ValueError, match="has no periodic images, got a batch with periodic directions"):
        EdgeSearch(3.0, backend="torch_cluster").allocate(batch_of(CRYSTAL, "vesin"))


def test_torch_cluster_finds_the_oracle_s_neighbours():
    pytest.importorskip("torch_cluster")
    edges = EdgeSearch(3.0, backend="torch_cluster").allocate(batch_of(MOLECULES, "vesin"))
    require_neighbours(edges, MOLECULES, 3.0)


@pytest.mark.parametrize("backend", backends("brute_force", "vesin"))
def test_energies_do_not_depend_on_the_skin(backend, potential, ethanol):
    from torchmdx import Batch, System
    from torchmdx.evaluation.derivatives import evaluate

    batch = Batch.from_systems([System.from_ase(ethanol)])
    plain = evaluate(potential, batch, EdgeSearch(potential.cutoff, backend=backend).allocate(batch))
    skin = evaluate(potential, batch, EdgeSearch(potential.cutoff, skin=1.0, backend=backend).allocate(batch))
    torch.testing.assert_close(plain.energy, skin.energy, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(plain.forces, skin.forces, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", backends("vesin", "cell_list"))
def test_few_atoms_far_apart_take_no_time_in_empty_cells(backend):
    """vesin alone can take seconds for such a structure, most of all where some directions are periodic."""
    rng = np.random.default_rng(0)
    positions = np.concatenate([rng.uniform(0, 2000, (8, 3)), [[5.0, 5, 5], [5.1, 5, 5]]])
    for cell, pbc in ((None, False), (np.eye(3) * 2000, True), (np.eye(3) * 2000, [True, False, True])):
        batch = Batch.of(System.create(positions, np.ones(10, int), cell, pbc))
        edges = EdgeSearch(0.2, backend=backend).allocate(batch)
        assert int(edges.num_edges) == 2
        assert edges.target[:2].tolist() == [8, 9]
        assert edges.source[:2].tolist() == [9, 8]
