"""What all priors have in common: cutoffs, scales, tables, settings."""

import math
import re

import numpy as np
import pytest
import torch
from ase import Atoms
from model_kinds import SMALL_D3, coulomb, d2, needs_dispersion, zbl
from prior_formulas import given_charges, only

from torchmdx import Batch, System, evaluate
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.d2 import D2Config
from torchmdx.models.priors.d3 import D3Config
from torchmdx.models.priors.zbl import ZBLConfig


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
