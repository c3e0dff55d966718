"""Steps, pools and the ASE calculator give the exact numbers of every model and prior, and its charges."""

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.calculator import PropertyNotImplementedError
from model_kinds import coulomb, kinds

from torchmdx import Batch, Calculator, CapturedStep, System, evaluate
from torchmdx.models import potential as potential_module
from torchmdx.models.priors import open_pairs
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.step.padding import padded_size
from torchmdx.step.pool import StepPool


def exact(potential, atoms):
    return evaluate(potential, System.from_ase(atoms), stress=True)


def assert_exact(result, wanted, tolerance=1e-10):
    for name in ("energy", "energies", "forces", "stress"):
        np.testing.assert_allclose(getattr(result, name), getattr(wanted, name), rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("name", ["ethanol", "crystal", "wire"])
@pytest.mark.parametrize("kind", kinds())
def test_a_step_follows_moving_atoms(make_kind, kind, name, request):
    potential, atoms = make_kind(kind), request.getfixturevalue(name)
    step = CapturedStep(potential, System.from_ase(atoms), stress=True, energies=True, skin=0.3, audit_every=2)
    for k in range(5):
        atoms.rattle(0.06, seed=k)
        assert_exact(step(atoms.positions), exact(potential, atoms))
    assert step.error < 1e-9
    assert step.mode == "eager"


def test_a_step_in_float32_is_close(make_kind, ethanol):
    single, double = (make_kind("tensornet2", dtype) for dtype in (torch.float32, torch.float64))
    step = CapturedStep(single, System.from_ase(ethanol), audit_every=1)
    np.testing.assert_allclose(step(ethanol.positions).forces, exact(double, ethanol).forces, atol=1e-4)
    assert 0 < step.error < 1e-5


def test_a_step_searches_as_far_as_its_structure_needs(make_potential, ethanol, crystal):
    potential = make_potential(model="tensornet2", priors=[lambda: coulomb(cutoff=9.0)])
    reach = [CapturedStep(potential, System.from_ase(atoms)).search.cutoff for atoms in (ethanol, crystal)]
    assert reach == [potential.config.cutoff, 9.0] == [4.0, 9.0]


@pytest.mark.parametrize("kind", kinds("tensornet2", "coulomb", "coulomb-cut", "everything"))
def test_fixed_shapes_give_the_same_numbers(make_kind, kind, ethanol, crystal, cation, wire, monkeypatch):
    """During a capture nothing is read on the host, and all pairs of atoms are evaluated."""
    batch = Batch.from_systems([System.from_ase(atoms) for atoms in (ethanol, crystal, cation, wire)])
    wanted = evaluate(make_kind(kind), batch, stress=True)
    for module in (open_pairs, potential_module):
        monkeypatch.setattr(module, "shapes_are_fixed", lambda tensor: True)
    assert_exact(evaluate(make_kind(kind), batch, stress=True), wanted)


@pytest.fixture
def padding(monkeypatch):
    """Padded sizes as on a GPU, with a second system of padding atoms."""
    monkeypatch.setattr(StepPool, "_size", lambda self, count: padded_size(count))


@pytest.mark.nightly_for("coulomb", "d2")
@pytest.mark.usefixtures("padding")
@pytest.mark.parametrize("kind", kinds("tensornet2", "coulomb", "d2", "everything"))
def test_a_pool_of_padded_steps(make_kind, kind, ethanol, cation, chiral, crystal, slab, wire):
    potential = make_kind(kind)
    pool = StepPool(potential, stress=True)
    for atoms in (ethanol, cation, crystal, chiral, slab, wire, cation, ethanol, crystal):
        atoms.rattle(0.02, seed=1)
        assert_exact(pool(System.from_ase(atoms)), exact(potential, atoms))
    assert len(pool) == 3  # sizes 8 and 16 of molecules, 8 of cells


# -- charges that come with the structure ------------------------------------------------------------------------------


@pytest.fixture
def given(make_potential):
    """A TensorNet with the Coulomb energy of given charges."""
    return make_potential(priors=[lambda: CoulombConfig(charges="given", cutoff=6.0)])


def with_charges(atoms, seed=0) -> Atoms:
    atoms.set_initial_charges(np.random.default_rng(seed).normal(size=len(atoms)))
    atoms.info.setdefault("charge", 0)
    return atoms


@pytest.mark.usefixtures("padding")
def test_given_charges_go_through_steps_and_pools(given, ethanol, crystal, cation):
    pool = StepPool(given, stress=True)
    energies = []
    for seed, atoms in enumerate((ethanol, crystal, cation, ethanol, cation)):
        atoms = with_charges(atoms, seed)
        energies.append(float(exact(given, atoms).energy[0]))
        assert_exact(pool(System.from_ase(atoms)), exact(given, atoms))
    assert abs(energies[0] - energies[3]) > 0.1  # the same atoms, other charges


def test_given_charges_keep_to_their_atoms_in_any_order(given, crystal, monkeypatch):
    """Steps sort atoms; large ones along a curve."""
    from torchmdx.step import change

    atoms = with_charges(crystal.repeat(2))
    order = torch.from_numpy(np.random.default_rng(5).permutation(len(atoms)).astype(np.int32))
    monkeypatch.setattr(change, "choose_order", lambda *inputs: order)
    step = CapturedStep(given, System.from_ase(atoms), stress=True, energies=True)
    assert_exact(step(atoms.positions), exact(given, atoms))


def test_a_step_without_charges_takes_none(given, ethanol):
    step = CapturedStep(given, System.from_ase(with_charges(ethanol)))
    plain = ethanol.copy()
    plain.set_initial_charges(None)
    with pytest.raises(ValueError, match="a batch with given partial_charges can't take one with no partial_charges"):
        step.assign(System.from_ase(plain))


def test_systems_carry_given_charges(ethanol, cation):
    systems = [System.from_ase(with_charges(atoms)) for atoms in (ethanol, cation)]
    batch = Batch.from_systems(systems)
    np.testing.assert_array_equal(batch.partial_charges[9:], cation.get_initial_charges())
    for before, after in zip(systems, batch.clone().to(dtype=torch.float32).systems(), strict=True):
        assert torch.equal(after.partial_charges, before.partial_charges.float())
    with pytest.raises(ValueError, match="partial_charges must be given for all 2 systems of a batch, got 1"):
        Batch.from_systems([systems[0], System.create([[0, 0, 0]], [1])])
    with pytest.raises(ValueError, match=r"partial_charges must have shape \[1\], got \[2\]"):
        System.create([[0, 0, 0]], [1], partial_charges=[0.1, 0.2])
    with pytest.raises(ValueError, match="partial_charges must be finite, got nan of atom 0"):
        System.create([[0, 0, 0]], [1], partial_charges=[np.nan])


# -- the ASE calculator ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", ["tensornet2", "coulomb"])
def test_charges_and_dipole_are_properties(make_kind, kind, dtype, cation):
    potential = make_kind(kind)
    cation.calc = Calculator(potential, dtype=dtype, device="cpu")
    wanted = evaluate(potential, System.from_ase(cation))
    tolerance = 1e-12 if dtype == "float64" else 1e-4
    np.testing.assert_allclose(cation.get_charges(), wanted.charges, atol=tolerance)
    np.testing.assert_allclose(cation.get_dipole_moment(), wanted.dipoles[0], atol=tolerance)
    assert cation.get_charges().sum() == pytest.approx(1.0, abs=1e-10)
    assert cation.get_charges().dtype == np.float64
    assert wanted.dipoles.abs().max() > 1e-3
    np.testing.assert_allclose(cation.get_forces(), wanted.forces, atol=1e-3)


def test_charges_follow_the_structure_and_its_charge(make_kind, ethanol):
    ethanol.calc = Calculator(make_kind("tensornet2"), dtype="float64", device="cpu")
    before = ethanol.get_charges()
    ethanol.positions[2] += 0.1
    moved = ethanol.get_charges()
    ethanol.info["charge"] = -1
    charged = ethanol.get_charges()
    assert np.abs(moved - before).max() > 1e-4
    assert charged.sum() == pytest.approx(-1, abs=1e-10)


def test_a_crystal_has_charges_and_no_dipole(make_kind, crystal):
    crystal.calc = Calculator(make_kind("tensornet2"), dtype="float64", device="cpu")
    assert np.abs(crystal.get_charges()).max() > 1e-3
    with pytest.raises(PropertyNotImplementedError, match="dipole needs a structure that is not periodic, got pbc"):
        crystal.get_dipole_moment()


def test_a_tensornet_has_neither(potential, ethanol):
    ethanol.calc = Calculator(potential, device="cpu")
    for ask in (ethanol.get_charges, ethanol.get_dipole_moment):
        with pytest.raises(PropertyNotImplementedError):
            ask()
    assert "charges" not in Calculator.implemented_properties


def test_the_dipole_of_an_ion_is_about_its_centre(make_kind, cation):
    cation.calc = Calculator(make_kind("tensornet2"), dtype="float64", device="cpu")
    before = cation.get_dipole_moment()
    cation.positions += [5.0, -3.0, 2.0]
    np.testing.assert_allclose(cation.get_dipole_moment(), before, atol=1e-10)
