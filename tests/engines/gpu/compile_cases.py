"""Launches of the kernels beside the fused chains, for compile_kernels.py: training, dynamics, ensembles."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "dynamics"))

from torchmdx import Batch, System
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.step.buffer_storage import NUM_FLAGS, SPREADS

CPU = torch.device("cpu")


def pairs(_):
    """Of the network of pairs: bilinear forms, values of edges, Coulomb energies, and the step of the optimizer."""
    from torchmdx.engines.pairs.kernels import coulomb, edge_values, multilinear, silu
    from torchmdx.engines.pairs.pair_list import PairList
    from torchmdx.neighbors.kernels.reverse import launch
    from torchmdx.training import optimizer_kernel

    batch = Batch.from_systems([System.create([[0.0, 0, 0], [0, 0, 1.1], [0, 1, 0]], [6, 8, 1])])
    edges = brute_force(batch.to(CPU, torch.float32), 3.0)
    reverse = torch.zeros(edges.capacity, dtype=torch.int32)
    launch(edges, reverse)
    found, c = PairList.of(edges, reverse), 32
    f, x = torch.ones(found.num_slots + 1, 3, c), torch.ones(3, 9, c)
    d, z = torch.ones(found.num_slots + 1, 9), torch.ones(3, 2, c)
    multilinear.messages_rows(found, f, x), multilinear.messages_pairs(found, x, x)
    for slot in range(4):
        multilinear.surroundings(found, slot, d, f, z, x)
    for slot in range(3):
        multilinear.products(slot, slot == 1, x, x, x)
    multilinear.part_sums(x, x), multilinear.scale_parts(x, z, True)
    multilinear.row_products(f[:, 0], f[:, 0]), multilinear.row_scale(f[:, 0], torch.ones(len(f), 1))
    multilinear.sum_pairs(f[:, 0], found, 1.0, 1.0, torch.ones(3, c))
    multilinear.sum_rows(f[:, 0], torch.tensor([0, 1], dtype=torch.int32), torch.ones(1, c))
    rows = torch.ones(edges.capacity + 3, 3, c)
    edge_values.to_edges(found, None, x[:, 0], x[:, 0], True), edge_values.to_pairs(found, rows[:, 0], True)
    edge_values.to_atoms(found, rows[:, 0], True, True, True)
    edge_values.messages_rows(found, rows, x, True), edge_values.messages_edges(found, x, x)
    wide, row = torch.ones(40, 32), torch.ones(40, 1)
    silu.both_gradients(1, wide, wide, wide), silu.scaled_rows(1, wide, row, wide)
    silu.rows_gradients(wide, row, wide), silu.rows_gradients_again(wide, row, wide, wide, row)
    every = coulomb.AllPairs(batch.system_index, torch.ones(1), 1.0, 1.0, None)
    every.energies(torch.ones(3, 3), torch.ones(3, 2), torch.ones(2))
    every.gradients(torch.ones(3, 3), torch.ones(3, 2), torch.ones(2), torch.ones(3))
    v, one = torch.ones(64), torch.ones((), dtype=torch.float64)
    optimizer_kernel.adamw(
        v, v, v, v, torch.ones((), dtype=torch.int64), gradient=v, decay=v, learning_rate=one, norm=v[:1].sum(),
        good=torch.ones((), dtype=torch.bool), numbers=optimizer_kernel.settings(0.9, 0.99, 0.9, 1e-8, 1.0, CPU),
        clip=True,
    )  # fmt: skip


def ensemble(_):
    """Mean and spread of members."""
    from torchmdx.engines.ensemble_kernel import combine

    new = torch.ones
    energy, forces, stress = new(2, 1, dtype=torch.float64), new(2, 3, 3), new(2, 1, 3, 3, dtype=torch.float64)
    energies = new(2, 3, dtype=torch.float64)
    out = (energy[0], energies[0], forces[0], stress[0], energy[0].clone(), energies[0].clone())
    combine[(1,)](energy, energies, forces, stress, *out, 3, 1, 1, 3, 9, 9, MEMBERS=2, STRESS=True, BLOCK=64)


def dynamics(kind):
    """Steps of integrators, barostats, restraints, multiple time steps and exchanges of temperatures."""
    from gases import gas
    from oscillators import atoms_alone, springs
    from random_restraints import many_restraints

    from torchmdx.dynamics.barostat import CellRescaling
    from torchmdx.dynamics.device_blocks import DeviceBlocks
    from torchmdx.dynamics.device_exchange import DeviceExchange
    from torchmdx.dynamics.device_state import DeviceState
    from torchmdx.dynamics.exchange import TemperatureExchange
    from torchmdx.dynamics.integrators import Bussi, Langevin
    from torchmdx.dynamics.restraint_terms import RestraintTerms

    if kind == "restraints":
        for integrator in (Langevin(), Bussi()):
            loop = gas(integrator, CellRescaling(), 1.0, [150, 40])
            given = loop.motion.particles, loop.snapshot().positions
            terms = RestraintTerms.of(many_restraints(2, np.random.default_rng(1)), *given)
            launch(DeviceState(replace(loop.motion, restraints=terms), CPU), 190, 2)
        return
    for loop in (springs(Langevin(), 1.0, [3, 3, 3]), gas(Bussi(), CellRescaling(), 1.0, [3, 3, 3])):
        launch(DeviceState(loop.motion, CPU), 9, 3)
    loop = springs(Langevin(), 1.0, [3, 3, 3], fast=1.0, inner=4)
    state = DeviceState(loop.motion, CPU)
    evaluated = SimpleNamespace(
        buffers=buffers(9, 3), device=CPU, _launch=lambda kind: None, _launch_moving=lambda moving: False
    )
    DeviceBlocks(state, loop.motion, evaluated, evaluated).launch()
    temperatures = loop.motion.temperatures
    DeviceExchange(TemperatureExchange(5, atoms_alone([3, 3, 3]), temperatures, 7), state, temperatures).launch()


def launch(state, atoms, systems):
    state.launch_advance(buffers(atoms, systems))
    state.launch_complete(buffers(atoms, systems))


def buffers(atoms, systems):
    """Those of a captured step."""

    def zeros(*shape):
        return torch.zeros(shape, dtype=torch.float64)

    outputs = {"forces": zeros(atoms, 3), "energy": zeros(systems), "stress": zeros(systems, 3, 3)}
    outputs |= {"flags": torch.zeros(NUM_FLAGS, dtype=torch.int64)}
    outputs |= {"energy_spread": zeros(atoms), "force_spread": zeros(atoms)}
    inputs = {"positions": zeros(atoms, 3), "cell": zeros(systems, 3, 3)}
    return SimpleNamespace(inputs=inputs, outputs=outputs, doubts=SPREADS)


CASES = {"pairs": pairs, "ensemble": ensemble, "dynamics": dynamics}
