"""Charges that a TensorNet2 with an Ewald sum learns from energies and forces alone, where the true ones are ±0.8 e.

    python -m benchmarks.learned_charges [--seeds 1] [--steps 200] [--processes 16] [--names "gas;melt"] [--plot]

OpenMM labels 200 structures of each set-up: an Ewald sum of the charges, and 1 eV (2.6 Å / r)¹² up to 4 Å. 160 train a
network of one layer, 16 channels, one set of charges and a cutoff of 4 Å, with Adam; 40 test it. Columns: energy_std,
eV, of the structures; charge, e, the mean size at the end, and charge_after_100 steps; force_error, relative to the
forces of the test, and force_error_without the Coulomb energy. --plot draws docs/images/learned_charges.svg. The
prior damps pairs below lengths from 2 Å, which
none are, to its default, 4.6 Å, beyond the cutoff of the network. Set-ups: a gas, where the nearest ion is 5.5 Å away;
random positions at the density of a melt; a melt at 1500 K; a melt of which 20 % of the structures are at random.
"""

from __future__ import annotations

import argparse
import itertools
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import record
from torchmdx import Batch, Potential, System, TensorNet2Config, evaluate
from torchmdx.models.priors.coulomb import CoulombConfig

CHARGE, CUTOFF, STRUCTURES, TRAINED, KJ_MOL = 0.8, 4.0, 200, 160, 96.4853
BATCH, SMOOTHED = 8, 20  # structures in a step; steps over which charges are averaged
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "learned_charges.svg"


@dataclass(frozen=True)
class Setup:
    """Ions in a cubic box, `melted` of them from dynamics at 1500 K, the others at random, none too close.

    box, closest: Å.
    """

    ions: int
    box: float
    closest: float
    melted: int


SETUPS = {
    "gas": Setup(16, 24.0, 2.8, 0),
    "random": Setup(32, 10.2, 2.4, 0),
    "melt": Setup(32, 10.2, 2.4, STRUCTURES),
    "melt, 20 % random": Setup(32, 10.2, 2.4, STRUCTURES * 4 // 5),
}
DAMPINGS = (2.0, 3.0, 4.0, 4.6)  # Å, of the prior: none of the distances that occur, to the default, beyond the cutoff


def prior(damping: float) -> CoulombConfig:
    """Only the charges of the layer count."""
    return CoulombConfig(periodic="ewald", weights=(0.0, 1.0), damping=damping, cutoff=9.0, accuracy=1e-4)


def oracle(setup: Setup) -> Any:
    """A Context of OpenMM, 1500 K."""
    import openmm

    system, coulomb = openmm.System(), openmm.NonbondedForce()
    repulsion = openmm.CustomNonbondedForce(f"{KJ_MOL} * (0.26 / r)^12")
    system.setDefaultPeriodicBoxVectors(*(0.1 * setup.box * np.eye(3)))
    coulomb.setNonbondedMethod(coulomb.Ewald)
    coulomb.setEwaldErrorTolerance(1e-6)
    coulomb.setCutoffDistance(min(0.9, 0.049 * setup.box))
    repulsion.setNonbondedMethod(repulsion.CutoffPeriodic)
    repulsion.setCutoffDistance(0.1 * CUTOFF)
    for ion in range(setup.ions):
        system.addParticle(29.0)
        coulomb.addParticle(CHARGE * (-1) ** ion, 0.1, 0.0)
        repulsion.addParticle([])
    system.addForce(coulomb)
    system.addForce(repulsion)
    integrator = openmm.LangevinMiddleIntegrator(1500.0, 1.0, 0.004)
    integrator.setRandomNumberSeed(1)
    return openmm.Context(system, integrator, openmm.Platform.getPlatform("Reference"))


def at_random(setup: Setup, rng: np.random.Generator) -> np.ndarray:
    """Positions, Å, drawn one after the other."""
    places = rng.uniform(0, setup.box, (1, 3))
    while len(places) < setup.ions:
        drawn = rng.uniform(0, setup.box, 3)
        apart = places - drawn - setup.box * np.round((places - drawn) / setup.box)
        if np.linalg.norm(apart, axis=1).min() > setup.closest:
            places = np.vstack([places, drawn])
    return places


def structures(setup: Setup, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shuffled (positions [B,N,3], energies [B] eV, forces [B,N,3] eV/Å)."""
    import openmm

    rng, context = np.random.default_rng(seed), oracle(setup)
    found = []
    if setup.melted:
        context.setPositions(0.1 * at_random(setup, rng))
        openmm.LocalEnergyMinimizer.minimize(context)
        context.getIntegrator().step(2000)
    for number in range(STRUCTURES):
        if number < setup.melted:
            context.getIntegrator().step(150)
        else:
            context.setPositions(0.1 * at_random(setup, rng))
        state = context.getState(positions=True, energy=True, forces=True)
        energy, forces = state.getPotentialEnergy()._value, state.getForces(True)._value
        found.append((10 * state.getPositions(True)._value, energy / KJ_MOL, forces / KJ_MOL / 10))
    order = rng.permutation(STRUCTURES)
    places, energies, forces = (np.array(each)[order] for each in zip(*found, strict=True))
    return places, energies, forces


def train(
    setup: Setup, data: tuple[np.ndarray, np.ndarray, np.ndarray], priors: list[CoulombConfig], steps: int, seed: int
) -> tuple[np.ndarray, float]:
    """(charges [steps] e, their mean size; relative force error of the test)."""
    torch.manual_seed(seed)
    numbers = np.tile([11, 17], setup.ions // 2)
    options = dict(cell=setup.box * np.eye(3), pbc=True, dtype=torch.float32)
    systems = [System.create(places, numbers, **options) for places in data[0]]
    energies, forces = (torch.tensor(each, dtype=torch.float32) for each in data[1:])
    network = dict(num_layers=1, num_charges=1, num_channels=16, num_radial=8, cutoff=CUTOFF, max_z=18)
    potential = Potential(TensorNet2Config(**network), priors)
    optimizer = torch.optim.Adam(potential.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, 1e-4)
    charges = np.zeros(steps)
    for step in range(steps):
        chosen = torch.randperm(TRAINED)[:BATCH]
        found = evaluate(potential, Batch.from_systems([systems[k] for k in chosen]), create_graph=True)
        loss = (found.energy - energies[chosen]).square().mean() / setup.ions
        loss = loss + 10 * (found.forces - forces[chosen].flatten(0, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        charges[step] = float(found.charges.detach().abs().mean()) if priors else 0.0
    potential.requires_grad_(False)
    found, wanted = evaluate(potential, Batch.from_systems(systems[TRAINED:])), forces[TRAINED:].flatten(0, 1)
    return charges, float((found.forces - wanted).norm() / wanted.norm())


def row_of(name: str, damping: float, seed: int, steps: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    setup = SETUPS[name]
    data = structures(setup, seed)
    charges, error = train(setup, data, [prior(damping)], steps, seed)
    without = train(setup, data, [], steps, seed)[1] if damping == DAMPINGS[0] else None
    apart = data[0][:, :, None] - data[0][:, None]
    apart = np.linalg.norm(apart - setup.box * np.round(apart / setup.box), axis=-1)
    nearest = (apart + setup.box * np.eye(setup.ions)).min(-1)
    row = {"setup": name, "seed": seed, "ions": setup.ions, "box": setup.box, "damping": damping}
    row |= {"steps": steps, "nearest": float(nearest.mean()), "within_cutoff": float((nearest < CUTOFF).mean())}
    row |= {"energy_std": float(data[1].std()), "force_error": error, "force_error_without": without}
    row |= {f"charge_after_{k}": float(charges[k - SMOOTHED : k].mean()) for k in (100,) if k <= steps}
    curve = [[k, round(float(charges[max(0, k - SMOOTHED) : k].mean()), 4)] for k in range(10, steps + 1, 10)]
    return row | {"charge": float(charges[-SMOOTHED:].mean()), "true_charge": CHARGE, "curve": curve}


def draw(rows: list[dict[str, Any]]) -> None:
    import matplotlib.pyplot as plt

    colors = dict(zip(SETUPS, ("#0b7a75", "#5b8def", "#c2571a", "#7a3b9c"), strict=True))
    plt.rcParams["svg.hashsalt"] = "torchmdx"
    figure, axes = plt.subplots(figsize=(7, 3.8), facecolor="#fbfcfd")
    axes.axhline(CHARGE, color="#243040", lw=0.8, ls=":")
    for row in (row for row in rows if row["damping"] in (DAMPINGS[0], DAMPINGS[-1])):
        tight = row["damping"] == DAMPINGS[0]
        label = row["setup"] if tight and row["seed"] == 0 else None
        axes.plot(*zip(*row["curve"], strict=True), "-" if tight else "--", color=colors[row["setup"]], label=label)
    axes.set(xlabel="training step", ylabel="learned charge / e", ylim=(0.0, 1.0))
    title = "dashed: damped below 4.6 Å"
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, title=title)
    figure.savefig(PICTURE, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--names", default=";".join(SETUPS), help="of set-ups, with ; between them")
    parser.add_argument("--plot", action="store_true")
    options = parser.parse_args()
    if options.plot:
        draw(record.read("learned_charges")["rows"])
        return
    cases = [*itertools.product(options.names.split(";"), DAMPINGS, range(options.seeds), [options.steps])]
    with ProcessPoolExecutor(options.processes) as pool:
        rows = list(pool.map(row_of, *zip(*cases, strict=True)))
    for row in rows:
        print(json.dumps({key: value for key, value in row.items() if key != "curve"}), flush=True)
    record.update("learned_charges", rows, ("setup", "damping", "seed"))


if __name__ == "__main__":
    main()
