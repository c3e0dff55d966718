"""Decoupling a region from its surroundings with openmmtools, after `create_mixed_system`: energies, a free energy."""

import re

import numpy as np
import openmm
import pytest
from mixed_systems import nonbonded_of
from mm_systems import SOLUTE, mm_system, water_box
from mpi import ROOT
from openmm import app

from torchmdx.dynamics.reweighting import errors_of_differences, free_energies
from torchmdx.openmm import StateExchange, create_mixed_system, find

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]
KT = 2.494338785445972  # kJ/mol at 300 K
LAMBDAS = {"lambda_electrostatics": (1.0, 0.5, 0.0, 0.0, 0.0), "lambda_sterics": (1.0, 1.0, 1.0, 0.4, 0.0)}
STIFFNESS, PLACES = 4000.0, np.array([[0.0, 0.0, 0.0], [0.097, 0.0, 0.0], [-0.26, 0.05, 0.0]])  # kJ/mol/nm², nm
CHARGES, SIGMA, EPSILON = (-0.3, 0.3, 0.6), (0.25, 0.1, 0.25), (0.6, 0.1, 0.8)


def decoupled(system: openmm.System, atoms: list[int]) -> openmm.System:
    alchemy = pytest.importorskip("openmmtools.alchemy")
    factory = alchemy.AbsoluteAlchemicalFactory(consistent_exceptions=False, alchemical_pme_treatment="exact")
    region = alchemy.AlchemicalRegion(
        alchemical_atoms=atoms, annihilate_electrostatics=True, annihilate_sterics=False, softcore_alpha=0.5
    )
    return factory.create_alchemical_system(system, region)


def context_of(system: openmm.System, positions, **parameters: float) -> openmm.Context:
    integrator = openmm.LangevinMiddleIntegrator(300, 90.0, 0.002)
    integrator.setRandomNumberSeed(7)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(positions)
    for name, value in parameters.items():
        context.setParameter(name, value)
    return context


def energy(context: openmm.Context) -> float:
    return context.getState(energy=True).getPotentialEnergy()._value


def hydroxyl_and_ion() -> app.Topology:
    """O and H, bonded, and Na."""
    topology = app.Topology()
    chain = topology.addChain()
    for name, symbols in (("OH", "OH"), ("ION", ["Na"])):
        residue = topology.addResidue(name, chain)
        atoms = [topology.addAtom(symbol, app.Element.getBySymbol(symbol), residue) for symbol in symbols]
        if len(atoms) == 2:
            topology.addBond(*atoms)
    return topology


def ion_and_pair(potential) -> tuple[openmm.System, openmm.System]:
    """O and H of the region, and an ion, each tied to a place: the mixed system, and it with λ."""
    topology, system, force = hydroxyl_and_ion(), openmm.System(), openmm.NonbondedForce()
    tie = openmm.CustomExternalForce(f"{STIFFNESS / 2}*((x-x0)^2+(y-y0)^2+(z-z0)^2)")
    for name in ("x0", "y0", "z0"):
        tie.addPerParticleParameter(name)
    for index, place in enumerate(PLACES):
        system.addParticle(2.0)
        force.addParticle(CHARGES[index], SIGMA[index], EPSILON[index])
        tie.addParticle(index, place)
    force.addException(0, 1, 0.0, 1.0, 0.0)
    bond = openmm.HarmonicBondForce()
    bond.addBond(0, 1, 0.097, 1e5)
    for each in (force, bond, tie):
        system.addForce(each)
    mixed = create_mixed_system(system, topology, [0, 1], potential, charge=0, energy_offset="atoms")
    return mixed, decoupled(mixed, [0, 1])


def test_full_coupling_is_the_mixed_system(make_potential) -> None:
    """In water with PME; without coupling, the region may move through the water."""
    (topology, positions), region = water_box(), list(SOLUTE)
    system = mm_system(topology, nonbondedMethod=app.PME, nonbondedCutoff=0.7)
    for is_corrected, difference in ((True, 0.1), (False, 1e-6)):  # dispersion beyond the cutoff
        nonbonded_of(system).setUseDispersionCorrection(is_corrected)
        mixed = create_mixed_system(system, topology, region, make_potential(num_layers=1), energy_offset="atoms")
        alchemical = decoupled(mixed, region)
        assert [list(found.atoms) for found in find(alchemical)] == [region]
        expected = energy(context_of(mixed, positions))
        assert energy(context_of(alchemical, positions)) == pytest.approx(expected, abs=difference)
    moved = np.array(positions)
    moved[region] += 0.02
    off = dict(lambda_electrostatics=0.0, lambda_sterics=0.0)
    assert energy(context_of(alchemical, moved, **off)) == pytest.approx(
        energy(context_of(alchemical, positions, **off)), abs=0.1
    )


def test_the_free_energy_of_decoupling(make_potential) -> None:
    """By windows and MBAR, against an average over exact samples of the tied, uncoupled atoms."""
    potential = make_potential(num_layers=0)
    potential.scale *= 0.2  # one minimum, so that few samples suffice
    mixed, system = ion_and_pair(potential)
    windows = [dict(zip(LAMBDAS, values, strict=True)) for values in zip(*LAMBDAS.values(), strict=True)]
    context, reduced, samples = context_of(system, PLACES), [], 120
    for window in windows:
        set_all(context, window)
        context.getIntegrator().step(200)
        for _ in range(samples):
            set_all(context, window)
            context.getIntegrator().step(20)
            found = []
            for other in windows:
                set_all(context, other)
                found.append(energy(context))
            reduced.append(found)
    energies, counts = np.array(reduced).T / KT, np.full(len(windows), samples)
    estimate = KT * free_energies(energies, counts)[-1]
    error = KT * errors_of_differences(energies, counts)[0, -1]
    exact = exact_difference(mixed)
    assert abs(exact) > 3
    assert error < 0.5
    assert abs(estimate - exact) < 4 * error, (estimate, exact)


def test_the_free_energy_of_decoupling_by_exchange(make_potential) -> None:
    """The same with replicas that swap windows."""
    potential = make_potential(num_layers=0)
    potential.scale *= 0.2
    mixed, system = ion_and_pair(potential)
    windows = [dict(zip(LAMBDAS, values, strict=True)) for values in zip(*LAMBDAS.values(), strict=True)]
    exchange = StateExchange(context_of(system, PLACES), windows, temperature=300, steps=20, seed=11)
    exchange.run(120, equilibration=10)
    estimate = KT * free_energies(exchange.reduced_energies, exchange.counts)[-1]
    error = KT * errors_of_differences(exchange.reduced_energies, exchange.counts)[0, -1]
    assert error < 0.5
    assert abs(estimate - exact_difference(mixed)) < 4 * error, estimate
    assert all(len(set(exchange.visited[:, replica])) == len(windows) for replica in range(len(windows)))


def set_all(context: openmm.Context, parameters: dict[str, float]) -> None:
    for name, value in parameters.items():
        context.setParameter(name, value)


def exact_difference(mixed: openmm.System, samples: int = 200_000) -> float:
    """F(decoupled) - F(coupled), from independent samples of the ties, weighted with the region's own energy."""
    generator = np.random.default_rng(3)
    x = PLACES + generator.normal(size=(samples, 3, 3)) * np.sqrt(KT / STIFFNESS)
    context, lengths = context_of(mixed, PLACES), np.linspace(0.02, 0.6, 400)
    own = []
    for length in lengths:
        apart = np.array([[0.0, 0.0, 0.0], [length, 0.0, 0.0], [1e4, 0.0, 0.0]])  # the ion has gone
        context.setPositions(apart)
        own.append(energy(context) - STIFFNESS / 2 * ((apart - PLACES) ** 2).sum())
    inside = np.interp(np.linalg.norm(x[:, 0] - x[:, 1], axis=1), lengths, own)
    across = np.zeros(samples)
    for i in (0, 1):
        r = np.linalg.norm(x[:, i] - x[:, 2], axis=1)
        sigma, epsilon = (SIGMA[i] + SIGMA[2]) / 2, np.sqrt(EPSILON[i] * EPSILON[2])
        across += 4 * epsilon * ((sigma / r) ** 12 - (sigma / r) ** 6) + 138.935456 * CHARGES[i] * CHARGES[2] / r
    weights = np.exp(-(inside - inside.min()) / KT)
    return KT * float(np.log((weights * np.exp(-across / KT)).sum() / weights.sum()))


def test_the_page_runs(monkeypatch, capsys) -> None:
    """With two windows that overlap, few samples and a small box."""
    pytest.importorskip("openmmtools")
    page = (ROOT / "docs" / "free_energies.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "openmmtools" in block]
    for old, new in {
        r"STERICS = .*": "STERICS = [1.0, 1.0]",
        r"CHARGES = .*": "CHARGES = [1.0, 0.97]",
        r"SAMPLES, APART = .*": "SAMPLES, APART = 4, 2",
        r"2\.6, 2\.6, 2\.6": "2.0, 2.0, 2.0",
    }.items():
        code, count = re.subn(old, new, code)
        assert count == 1
    monkeypatch.chdir(ROOT)
    exec(code, {})
    assert re.search(r"ΔG\(hydration\): -?\d+\.\d \+- \d", capsys.readouterr().out)
