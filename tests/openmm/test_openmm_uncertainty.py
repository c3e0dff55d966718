"""OpenMM with the uncertainty of a single potential, over each transport: values, and a limit that ends the step."""

import ase.io
import numpy as np
import openmm
import pytest
import torch
from openmm import app
from uncertain import uncertain

import torchmdx
from torchmdx import System, evaluate
from torchmdx.openmm import add_potential, find

TINY = dict(num_layers=0, num_channels=4, num_radial=4)


@pytest.fixture
def potential(make_potential):
    return uncertain(make_potential(dtype=torch.float32, seed=1, **TINY))


def made(atoms, potential, **options):
    """(force, context) of a molecule."""
    topology, system = app.Topology(), openmm.System()
    residue = topology.addResidue("MOL", topology.addChain())
    for symbol, mass in zip(atoms.symbols, atoms.get_masses(), strict=True):
        topology.addAtom(symbol, app.Element.getBySymbol(symbol), residue)
        system.addParticle(mass)
    force = add_potential(system, topology, potential, device="cpu", **options)
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(system, openmm.VerletIntegrator(0.0005), platform)
    context.setPositions(atoms.positions / 10)
    return force, context


@pytest.mark.parametrize("transport", ["python", "native"])
def test_the_force_has_it_and_a_limit_ends_the_step(transport, potential, ethanol, tmp_path):
    exact = evaluate(potential, System.from_ase(ethanol), forces=False)
    force, context = made(ethanol, potential, transport=transport, uncertainty=True)
    assert force.uncertainty is None
    context.getState(energy=True)
    assert force.uncertainty.energy == pytest.approx(float(exact.energy_uncertainty), rel=1e-4)
    np.testing.assert_allclose(force.uncertainty.energies, exact.energies_uncertainty, rtol=1e-4)
    assert force.spread is None
    limit, file = 0.9 * float(exact.energies_uncertainty.max()), tmp_path / "frames.xyz"
    force, context = made(ethanol, potential, transport=transport, max_uncertainty=limit, spread_file=file)
    text = f"the uncertainty of the energy of an atom must be at most {limit:g} eV.*its frame was appended to"
    with pytest.raises(openmm.OpenMMException, match=text):
        context.getState(forces=True)
    frame = ase.io.read(file)
    np.testing.assert_allclose(frame.arrays["energies_uncertainty"], exact.energies_uncertainty, rtol=1e-4)


def test_a_force_without_it_and_a_saved_one(potential, ethanol, tmp_path):
    force, context = made(ethanol, potential, transport="python")
    context.getState(energy=True)
    assert force.uncertainty is None
    torchmdx.save(potential, tmp_path / "model.safetensors")
    force, context = made(ethanol, tmp_path / "model.safetensors", transport="native", max_uncertainty=5.0)
    copy = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(context.getSystem()))
    (restored,) = find(copy)
    assert restored.evaluator.settings.max_uncertainty == 5.0


def test_what_cannot_be_had_is_refused(make_potential, potential, ethanol):
    plain = make_potential(dtype=torch.float32, seed=1, **TINY)
    for options, given, text in (
        (dict(uncertainty=True), plain, "uncertainty needs a potential that knows it"),
        (dict(max_uncertainty=0.1), plain, "max_uncertainty needs a potential that knows its uncertainty, got 0.1 eV"),
        (dict(max_uncertainty=0.0), potential, "max_uncertainty must be > 0 eV and finite, got 0.0"),
        (dict(spread_file="x.xyz"), potential, "spread_file needs max_uncertainty, got 'x.xyz' without it"),
    ):
        with pytest.raises(ValueError, match=text):
            made(ethanol, given, **options)
