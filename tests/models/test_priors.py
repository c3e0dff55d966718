"""Priors against loops over the textbook formulas, and against the field's own program for D3."""

import importlib.util
import itertools
import math
import re
import sys

import numpy as np
import oracles
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.data import covalent_radii
from model_kinds import SMALL_D3, coulomb, d2, needs_dispersion, zbl

from torchmdx import Batch, Potential, System, TensorNetConfig, evaluate
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.d2 import D2Config
from torchmdx.models.priors.d3 import D3Config
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.structures.units import BOHR, COULOMB, HARTREE

STRUCTURES = ("ethanol", "crystal", "slab", "wire")


def only(*priors, **settings) -> Potential:
    """A potential whose network gives nothing, so that only its priors are left."""
    potential = Potential(TensorNetConfig(num_channels=2, num_layers=0, num_radial=2, cutoff=2.0, max_z=60), priors)
    potential.scale.zero_()
    return potential.double().eval().requires_grad_(False)


def pairs(atoms, cutoff):
    """(i, j, distance) of every pair, in both directions."""
    cell = atoms.cell.array
    for i, j, shift in oracles.neighbours(atoms.positions, cell, atoms.pbc, cutoff):
        yield i, j, math.dist(atoms.positions[j] + np.array(shift) @ cell, atoms.positions[i])


def summed(atoms, cutoff, energy_of_pair) -> np.ndarray:
    energies = np.zeros(len(atoms))
    for i, j, r in pairs(atoms, cutoff):
        energies[i] += 0.5 * energy_of_pair(i, j, r)
    return energies


def screening(x):
    terms = ((0.1818, 3.2), (0.5099, 0.9423), (0.2802, 0.4029), (0.02817, 0.2016))
    return sum(a * math.exp(-b * x) for a, b in terms)


# -- ZBL ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRUCTURES)
def test_zbl_is_its_formula(name, request):
    atoms = request.getfixturevalue(name)
    z = atoms.numbers

    def energy(i, j, r):
        x = r * (z[i] ** 0.23 + z[j] ** 0.23) / (0.8854 * 0.529177210544)
        return COULOMB * z[i] * z[j] / r * screening(x) * oracles.cut(r, 3.5)

    result = evaluate(only(ZBLConfig(cutoff=3.5)), System.from_ase(atoms))
    wanted = summed(atoms, 3.5, energy)
    assert wanted.min() > 1e-4
    np.testing.assert_allclose(result.energies, wanted, rtol=1e-9)


@pytest.mark.parametrize("name", ["ethanol", "wire"])
def test_zbl_of_covalent_radii_is_its_formula(name, request):
    atoms = request.getfixturevalue(name)
    atoms.set_cell(atoms.cell.array * 0.8)
    atoms.positions *= 0.8
    z = atoms.numbers

    def energy(i, j, r):
        x = r * (z[i] ** 0.3 + z[j] ** 0.3) / 0.24
        u = r / (covalent_radii[z[i]] + covalent_radii[z[j]])
        end = 1 - 28 * u**6 + 48 * u**7 - 21 * u**8 if u < 1 else 0.0
        return 10.0 * z[i] * z[j] / r * screening(x) * end

    config = ZBLConfig(cutoff=3.0, radii="covalent", length=0.24, exponent=0.3, strength=10.0)
    result = evaluate(only(config), System.from_ase(atoms))
    wanted = summed(atoms, 3.0, energy)
    assert wanted.max() > 1e-2
    np.testing.assert_allclose(result.energies, wanted, rtol=1e-9, atol=1e-12)


def test_nuclei_on_top_of_each_other_repel_as_bare_charges():
    near = 1e-3
    result = evaluate(only(ZBLConfig()), System.create([[0, 0, 0], [0, 0, near]], [6, 8]))
    assert float(result.energy[0]) == pytest.approx(COULOMB * 48 / near, rel=2e-2)


# -- Coulomb -----------------------------------------------------------------------------------------------------------


def damping(r, length=4.6):
    return 1 - math.exp(1 - 1 / (1 - (r / length) ** 2)) if r < length else 1.0


def reaction_field(r, cutoff, epsilon):
    k = (epsilon - 1) / (2 * epsilon + 1) / cutoff**3
    c = 3 * epsilon / (2 * epsilon + 1) / cutoff
    return 1 / r + k * r**2 - c


@pytest.fixture
def charged(make_potential):
    """A TensorNet2 of one layer with 3 charges a layer, its Coulomb prior alone left of its energy."""

    def make(**settings):
        potential = make_potential(model="tensornet2", num_layers=1, priors=[lambda: CoulombConfig(**settings)])
        for constant in (potential.scale, potential.shift, potential.reference_energies):
            constant.zero_()
        return potential

    return make


def products(potential, atoms, weights) -> np.ndarray:
    """Σ w q_i q_j / Σ w [N,N] of the charges that the oracle predicts."""
    reference = oracles.TensorNet2(potential)
    reference.energies(atoms.positions, atoms.numbers, atoms.cell.array, atoms.pbc, atoms.info.get("charge", 0))
    embedded, layer = reference.charges
    weights = np.repeat(weights, 3) if len(weights) == 2 else np.array(weights)
    charges = np.concatenate([embedded, layer], axis=1)
    return (charges * weights / weights.sum()) @ charges.T


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.0, 2.0), (1.0, 0.5, 0.0, 2.0, 1.0, 0.25)], ids=str)
@pytest.mark.parametrize("name", ["ethanol", "cation"])
def test_coulomb_in_vacuum_is_the_sum_over_all_pairs(charged, weights, name, request):
    atoms = request.getfixturevalue(name)
    atoms.positions *= 3  # pairs beyond every cutoff
    potential = charged(weights=weights, cutoff=3.0)
    q = products(potential, atoms, weights)
    wanted = np.zeros(len(atoms))
    for i, j in itertools.permutations(range(len(atoms)), 2):
        r = math.dist(atoms.positions[i], atoms.positions[j])
        wanted[i] += 0.5 * COULOMB * damping(r) * q[i, j] / r
    result = evaluate(potential, System.from_ase(atoms))
    assert np.abs(wanted).max() > 1e-3
    np.testing.assert_allclose(result.energies, wanted, atol=1e-11)


@pytest.mark.parametrize("name", ["crystal", "slab", "wire"])
@pytest.mark.parametrize("cut_in_vacuum", [True, False])
@pytest.mark.parametrize("epsilon", [78.3, 2.0])
def test_coulomb_under_periodic_boundaries_has_a_reaction_field(charged, name, cut_in_vacuum, epsilon, request):
    atoms = request.getfixturevalue(name)
    potential = charged(cutoff=5.5, cut_in_vacuum=cut_in_vacuum, dielectric=epsilon, damping=3.0)
    q = products(potential, atoms, (1.0, 1.0))

    def energy(i, j, r):
        return COULOMB * damping(r, 3.0) * q[i, j] * reaction_field(r, 5.5, epsilon)

    result = evaluate(potential, System.from_ase(atoms))
    np.testing.assert_allclose(result.energies, summed(atoms, 5.5, energy), atol=1e-10)


def test_coulomb_is_cut_in_vacuum_where_that_is_asked(charged, ethanol):
    ethanol.positions *= 3
    potential = charged(cutoff=6.0, cut_in_vacuum=True)
    q = products(potential, ethanol, (1.0, 1.0))

    def energy(i, j, r):
        return COULOMB * damping(r) * q[i, j] * reaction_field(r, 6.0, 78.3)

    result = evaluate(potential, System.from_ase(ethanol))
    wanted = summed(ethanol, 6.0, energy)
    assert np.abs(wanted).max() > 1e-5
    np.testing.assert_allclose(result.energies, wanted, atol=1e-11)


def test_coulomb_of_a_mixed_batch_is_that_of_each_system(charged, ethanol, cation, crystal, wire):
    ethanol.positions *= 3
    potential = charged(cutoff=5.0)
    systems = [System.from_ase(atoms) for atoms in (ethanol, crystal, cation, ethanol[:1], wire, cation)]
    together = evaluate(potential, Batch.from_systems(systems), stress=True)
    alone = [evaluate(potential, system, stress=True) for system in systems]
    for name in ("energies", "forces", "stress", "charges"):
        joined = torch.cat([getattr(result, name) for result in alone])
        np.testing.assert_allclose(getattr(together, name), joined, rtol=0, atol=1e-11)


def given_charges(atoms, charges) -> System:
    atoms.set_initial_charges(charges)
    atoms.info["charge"] = 0
    return System.from_ase(atoms)


def test_coulomb_of_given_charges_switched_on_along_a_cosine(ethanol):
    q = np.linspace(-0.7, 0.5, 9)
    potential = only(CoulombConfig(charges="given", switch=(1.5, 2.5), strength=3.0))
    wanted = np.zeros(9)
    for i, j in itertools.permutations(range(9), 2):
        r = math.dist(ethanol.positions[i], ethanol.positions[j])
        phase = min(max(r - 1.5, 0.0), 1.0)
        wanted[i] += 0.5 * 3.0 * (0.5 - 0.5 * math.cos(math.pi * phase)) * q[i] * q[j] / r
    result = evaluate(potential, given_charges(ethanol, q))
    np.testing.assert_allclose(result.energies, wanted, atol=1e-12)
    assert result.charges is None


def test_given_charges_must_be_given(ethanol):
    potential = only(CoulombConfig(charges="given"))
    with pytest.raises(ValueError, match="structures need partial_charges, which ASE calls initial charges"):
        evaluate(potential, System.from_ase(ethanol))


def test_two_opposite_charges_far_apart_attract_by_coulombs_law():
    atoms = Atoms("NaCl", [[0, 0, 0], [0, 0, 20.0]])
    result = evaluate(only(CoulombConfig(charges="given")), given_charges(atoms, [1.0, -1.0]))
    assert float(result.energy[0]) == pytest.approx(-14.3996454784 / 20, rel=1e-9)
    assert float(result.forces[0, 2]) == pytest.approx(14.3996454784 / 400, rel=1e-9)


def test_pairs_that_no_list_holds_need_positions(charged, ethanol):
    potential = charged()
    batch = Batch.of(System.from_ase(ethanol))
    edges = brute_force(batch, potential.cutoff)
    vectors = edges.vectors(batch.positions, batch.cell, batch.system_index)
    with pytest.raises(ValueError, match="coulomb sums over all pairs of atoms and needs positions, got None"):
        potential(batch, edges, vectors)
    energy, _ = potential(batch, edges, vectors, batch.positions)
    assert torch.equal(energy, evaluate(potential, batch, edges).energy)


def test_a_coulomb_energy_needs_charges():
    with pytest.raises(ValueError, match="the prior coulomb needs a model that predicts charges: tensornet2"):
        Potential(TensorNetConfig(num_channels=2), [CoulombConfig()])
    config = TensorNet2Config(num_channels=2, num_layers=1, num_charges=2)
    with pytest.raises(ValueError, match=r"weights of the prior coulomb must be 2 .* or 4 .*, got 3"):
        Potential(config, [CoulombConfig(weights=(1, 2, 3))])


# -- dispersion --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRUCTURES)
def test_d2_is_its_formula(name, request):
    atoms, config = request.getfixturevalue(name), d2(cutoff=5.0)

    def energy(i, j, r):
        (a, b), (p, q) = ([table[z] for z in atoms.numbers[[i, j]]] for table in (config.c6, config.radii))
        return -math.sqrt(a * b) / r**6 / (1 + math.exp(-20 * (r / (p + q) - 1)))

    wanted = summed(atoms, 5.0, energy)
    assert wanted.max() < -1e-3
    np.testing.assert_allclose(evaluate(only(config), System.from_ase(atoms)).energies, wanted, rtol=1e-9)


def test_d2_knows_the_elements_of_its_table(ethanol):
    potential = only(d2(c6=(0.0, 1.0, 1, 1, 1, 1, 1), radii=(0, 1, 1, 1, 1, 1, 1)))
    with pytest.raises(ValueError, match="the prior d2 knows atomic numbers up to 6, got 8 for atom 2"):
        evaluate(potential, System.from_ase(ethanol))


DFTD3 = importlib.util.find_spec("dftd3") is not None


@needs_dispersion
@pytest.mark.skipif(not DFTD3, reason="needs the program it is compared with: pip install dftd3")
@pytest.mark.parametrize("name", ["C6H6", "CH3CH2OH", "NaCl", "crystal"])
def test_d3_is_that_of_simple_dftd3(name, request):
    from dftd3.interface import DispersionModel, RationalDampingParam

    far = 32.0
    if name == "crystal":
        atoms = request.getfixturevalue(name)
    else:
        atoms = bulk("NaCl", "rocksalt", 5.6, cubic=True) if name == "NaCl" else molecule(name)
        atoms.rattle(0.05, seed=3)
    config = D3Config(functional="pbe", cutoff=far)
    periodic = dict(lattice=atoms.cell.array / BOHR, periodic=atoms.pbc) if atoms.pbc.any() else {}
    model = DispersionModel(atoms.numbers, atoms.positions / BOHR, **periodic)
    model.set_realspace_cutoff(disp2=far / BOHR, disp3=1.0, cn=far / BOHR)
    parameters = RationalDampingParam(s6=config.s6, s8=config.s8, a1=config.a1, a2=config.a2, s9=0.0)
    theirs = model.get_dispersion(parameters, grad=True)
    result = evaluate(only(config), System.from_ase(atoms), stress=bool(periodic))
    # Ours ends smoothly where theirs breaks off, which a crystal feels.
    energy, force = (2e-4, 1e-4) if periodic else (1e-8, 5e-8)
    assert float(result.energy[0]) == pytest.approx(theirs["energy"] * HARTREE, abs=energy)
    np.testing.assert_allclose(result.forces, -theirs["gradient"] * HARTREE / BOHR, atol=force)
    if periodic:
        virial = result.stress[0] * atoms.get_volume()
        np.testing.assert_allclose(virial, theirs["virial"] * HARTREE, rtol=1e-3, atol=1e-3)


@needs_dispersion
def test_d3_takes_a_functional_by_name_or_its_numbers(ethanol):
    by_name, by_number = D3Config(functional="pbe"), D3Config(s6=1.0, s8=0.7875, a1=0.4289, a2=4.4407)
    energies = [float(evaluate(only(config), System.from_ase(ethanol)).energy[0]) for config in (by_name, by_number)]
    assert energies[0] == energies[1] < -0.05
    other = D3Config(functional="b3-lyp")
    assert (other.s8, other.a1, other.a2) == (1.9889, 0.3981, 4.4211)


def test_d3_without_its_library_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_dftd", None)
    with pytest.raises(ImportError, match=r"needs torch-dftd: pip install 'torchmdx\[dispersion\]'"):
        D3Config(functional="pbe")
    with pytest.raises(ImportError, match=r"needs torch-dftd: pip install 'torchmdx\[dispersion\]'"):
        only(D3Config(**SMALL_D3))


# -- all of them -------------------------------------------------------------------------------------------------------


def two_atoms(potential, distance):
    """Energy, and the force that stretches, of two atoms with charges ±1."""
    atoms = Atoms("NaCl", [[0, 0, 0], [0, 0, distance]], cell=[40, 40, 40], pbc=True)
    result = evaluate(potential, given_charges(atoms, [1.0, -1.0]))
    return float(result.energy[0]), float(result.forces[1, 2])


CUT = [
    pytest.param(lambda: zbl(), 3.5, id="zbl"),
    pytest.param(lambda: zbl(radii=(1.0, *(1.6,) * 60), cutoff=9.0), 3.2, id="zbl-radii"),
    pytest.param(lambda: coulomb(charges="given", weights=None), 6.0, id="coulomb"),
    pytest.param(lambda: D3Config(**SMALL_D3), SMALL_D3["cutoff"], id="d3", marks=needs_dispersion),
]


@pytest.mark.parametrize(("make", "cutoff"), CUT)
def test_a_prior_ends_smoothly_at_its_cutoff(make, cutoff):
    potential = only(make())
    assert two_atoms(potential, cutoff + 1e-6) == (0.0, 0.0)
    energy, force = two_atoms(potential, cutoff - 1e-3)
    inside, _ = two_atoms(potential, cutoff - 0.3)
    assert abs(inside) > 1e-7
    assert abs(energy) < 1e-4 * abs(inside) + 1e-6
    assert abs(force) < 0.05 * abs(inside) + 1e-4


@pytest.mark.parametrize("name", ["crystal", "slab", "ethanol"])
def test_each_prior_masks_the_one_list_at_its_own_cutoff(make_potential, name, request):
    """Energies of priors of different reach add up, whatever the others make the list reach."""
    atoms = request.getfixturevalue(name)
    system = System.from_ase(atoms)
    chosen = [zbl(cutoff=2.0), coulomb(cutoff=7.0), d2(cutoff=5.0), zbl(cutoff=3.0)]
    plain = make_potential(model="tensornet2")
    base = evaluate(plain, system).energy
    apart = sum(evaluate(plain.with_priors([prior]), system).energy - base for prior in chosen)
    together = plain.with_priors(chosen)
    assert plain.cutoff == 4.0
    assert together.cutoff == 7.0
    assert together.search_cutoff(Batch.of(system)) == (7.0 if atoms.pbc.any() else 5.0)
    assert float(evaluate(together, system).energy - base) == pytest.approx(float(apart), abs=1e-10)


@pytest.mark.parametrize(
    "config",
    [zbl(), zbl(radii=(1.0, *(1.6,) * 60)), coulomb(charges="given", weights=None), d2()],
    ids=lambda c: c.name,
)
def test_a_scaled_prior_has_so_much_more_energy(config, crystal):
    system = given_charges(crystal, [0.3, -0.5, 0.2])
    once, twice = (evaluate(only(c), system).energies for c in (config, config.scaled(2.5)))
    np.testing.assert_allclose(twice, 2.5 * once, rtol=1e-12)


@needs_dispersion
def test_a_scaled_dispersion_has_so_much_more_energy(crystal):
    config, system = D3Config(**SMALL_D3), System.from_ase(crystal)
    once, twice = (evaluate(only(c), system).energies for c in (config, config.scaled(2.5)))
    np.testing.assert_allclose(twice, 2.5 * once, rtol=1e-12)


def test_tables_are_never_rounded():
    potential = only(d2(c6=(0.0, 1 / 3) * 8, radii=(1.0, 1.1) * 8))
    assert potential.float().priors[0].c6.dtype == torch.float64
    assert float(potential.double().priors[0].c6[1]) == 1 / 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ZBLConfig(cutoff=0), "cutoff of the prior zbl must be > 0 Å and finite, got 0"),
        (lambda: ZBLConfig(cutoff=True), "cutoff of the prior zbl must be > 0 Å and finite, got True"),
        (lambda: ZBLConfig(strength=math.inf), "strength of the prior zbl must be a finite number, got inf"),
        (lambda: ZBLConfig(radii="ionic"), "radii of the prior zbl must be 'covalent' or numbers of Å, got 'ionic'"),
        (lambda: ZBLConfig(radii=(1.0, -2.0)), "radii of the prior zbl must be > 0 Å and < 100 Å, got -2.0"),
        (lambda: CoulombConfig(damping=-1), "damping of the prior coulomb must be > 0 Å and finite, got -1"),
        (lambda: CoulombConfig(dielectric=0.5), "dielectric of the prior coulomb must be >= 1, got 0.5"),
        (lambda: CoulombConfig(cut_in_vacuum=1), "cut_in_vacuum of the prior coulomb must be True or False, got 1"),
        (lambda: CoulombConfig(weights=(0.0, 0.0)), "must be finite and add up to more than 0, got (0.0, 0.0)"),
        (lambda: CoulombConfig(charges="mulliken"), "charges of the prior coulomb must be predicted or given"),
        (lambda: CoulombConfig(switch=(2, 1)), "switch of the prior coulomb must be two rising lengths >= 0 Å"),
        (lambda: D2Config(cutoff=5, c6=(0, 1), radii=(0, 1, 2)), "must list the same elements, got 2 and 3"),
        (lambda: D3Config(), "needs a functional, or its s6, s8, a1 and a2; got neither"),
        (lambda: D3Config(s6=1.0, s8=2.0), "needs all of s6, s8, a1 and a2, or none; got s6, s8"),
        (lambda: D3Config(**{**SMALL_D3, "cutoff": 1.0}), "cutoff of the prior d3 must be > 1.06 Å, got 1.0"),
        pytest.param(
            lambda: D3Config(functional="nonsense"),
            "functional of the prior d3 must be one that torch-dftd knows, got 'nonsense'",
            marks=needs_dispersion,
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_the_requirement_and_the_value(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
