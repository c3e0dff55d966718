import ase.build
import numpy as np
import pytest
from ase import Atoms
from ase.constraints import FixAtoms
from ase.mep import NEB
from ase.optimize import FIRE, LBFGS
from double_well import barrier, curvature, double_well, ends

import torchmdx
from torchmdx import Calculator

CPU = dict(dtype="float64", device="cpu")


@pytest.fixture(scope="module")
def morse():
    return double_well()


@pytest.mark.parametrize("periodic", [False, True])
def test_the_barrier_of_a_double_well_is_the_exact_one(morse, periodic):
    first, last = ends(periodic)
    path = torchmdx.neb(first, last, morse, images=4, fmax=0.01, refine=True, **CPU)
    assert path.converged
    assert path.num_steps > 5  # no image starts at the saddle
    assert path.forward == pytest.approx(barrier(), abs=1e-5)
    assert path.backward == pytest.approx(barrier(), abs=1e-5)
    assert path.energies[path.highest] - path.energies[0] == pytest.approx(barrier(), abs=1e-4)
    assert path.curvature == pytest.approx(curvature(), rel=0.02)
    fixed = [image.positions[[0, 2]] for image in path.images]
    assert all(np.array_equal(fixed[0], other) for other in fixed)
    assert 1.0 < path.lengths[-1] < 2.0  # not around the cell
    _, curve = path.curve()
    assert curve.max() - curve[0] == pytest.approx(barrier(), abs=1e-3)


@pytest.mark.nightly
def test_the_path_is_that_of_ase_with_images_one_by_one(morse):
    path = torchmdx.neb(*ends(True), morse, images=4, fmax=0.01, start="linear", **CPU)
    calculator = Calculator(morse, **CPU)
    minima = [path.images[0].copy(), path.images[-1].copy()]
    images = [minima[0], *(minima[0].copy() for _ in range(4)), minima[1]]
    for image in images:
        image.calc = calculator
    band = NEB(images, k=0.1, climb=True, method="improvedtangent", allow_shared_calculator=True)
    band.interpolate(method="linear")
    assert FIRE(band, logfile=None).run(fmax=0.01, steps=200)
    energies = [image.get_potential_energy() for image in images]
    assert path.forward == pytest.approx(max(energies) - energies[0], abs=1e-4)
    np.testing.assert_allclose(path.energies, energies, atol=3e-3)
    assert path.images[0].info["potential"] == path.images[2].info["potential"]


def test_the_ends_are_relaxed_unless_told(morse):
    first, last = ends(False)
    kept = torchmdx.neb(first, last, morse, images=1, fmax=0.3, climb=False, relax_ends=False, start="linear", **CPU)
    assert np.array_equal(kept.images[0].positions, first.positions)
    moved = torchmdx.neb(first, last, morse, images=1, fmax=0.3, climb=False, start="linear", **CPU)
    alone = first.copy()
    alone.calc = Calculator(morse, **CPU)
    LBFGS(alone, logfile=None).run(fmax=1e-4)
    assert moved.energies[0] == pytest.approx(alone.get_potential_energy(), abs=5e-3)
    assert moved.energies[0] < kept.energies[0]


def test_a_path_that_does_not_converge_says_so(morse):
    path = torchmdx.neb(*ends(False), morse, images=4, fmax=1e-4, steps=2, **CPU)
    assert not path.converged
    assert "not converged to 0.0001 eV/Å in 2 steps" in path.reason
    assert path.num_steps == 2
    assert np.isfinite(path.energies).all()
    first, last = ends(False)
    first.positions[1, 1] += 0.3
    path = torchmdx.neb(first, last, morse, images=2, fmax=1e-4, steps=2, relax_ends=False, **CPU)
    assert "in 2 steps, before the highest image climbed: largest force" in path.reason
    assert np.isfinite(path.fmax)


def test_a_path_whose_highest_image_is_an_end_has_no_barrier(morse):
    first, last = ends(False)
    middle = first.copy()
    middle.positions[1] = (first.positions[1] + last.positions[1]) / 2  # the saddle, which is no minimum
    path = torchmdx.neb(middle, last, morse, images=2, fmax=0.3, climb=False, relax_ends=False, **CPU)
    assert not path.converged
    assert path.reason == "no barrier was found: the highest image is an end of the path"


def charged() -> Atoms:
    atoms = ends(False)[1]
    atoms.info["charge"] = 1
    return atoms


def otherwise_fixed() -> Atoms:
    atoms = ends(False)[1]
    atoms.set_constraint(FixAtoms([0]))
    return atoms


def other_cell() -> Atoms:
    atoms = ends(True)[1]
    atoms.set_cell([13, 9, 9])
    return atoms


def other_place() -> Atoms:
    atoms = ends(False)[1]
    atoms.set_constraint()
    atoms.positions[2, 0] += 0.3
    return atoms


@pytest.mark.parametrize(
    ("first", "last", "options", "said"),
    [
        (ends(False)[0], ends(False)[0][:2], {}, "both ends must have the same atoms, got 3 and 2 atoms"),
        (ends(False)[0], ends(False)[1][[1, 0, 2]], {}, "in the same order, got C and H for atom 0"),
        (ends(False)[0], charged(), {}, r"both ends must have the same charge, got \+0 and \+1; --charge, or charge="),
        (ends(False)[0], otherwise_fixed(), {}, "both ends must have the same fixed atoms, or the last end none"),
        (ends(True)[0], other_cell(), {}, "both ends must have the same cell and periodic directions"),
        (ends(False)[0], other_place(), {"relax_ends": False}, "fixed atoms must be at the same place in both ends"),
        (ends(False)[0], ends(False)[0], {}, "the ends of a path must be different minima"),
        (ends(False)[0], ends(False)[1], {"images": 0}, "images must be >= 1, got 0"),
        (ends(False)[0], ends(False)[1], {"spring": -1.0}, "spring must be > 0 eV/Å², got -1.0"),
        (ends(False)[0], ends(False)[1], {"start": "straight"}, "start must be one of idpp, linear, got 'straight'"),
        (ends(False)[0], ends(False)[1], {"fmax": 0.0}, "fmax must be > 0 eV/Å, got 0.0"),
        (ends(False)[0], ends(False)[1], {"steps": 0}, "steps must be >= 1, got 0"),
    ],
)
def test_what_no_path_connects(morse, first, last, options, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        torchmdx.neb(first, last, morse, **{**CPU, **options})


def test_a_refinement_that_fails_leaves_the_path(morse, monkeypatch):
    monkeypatch.setattr("torchmdx.dynamics.paths.saddle.MOST_TRAVEL", -1.0)
    path = torchmdx.neb(*ends(False), morse, images=1, fmax=0.05, refine=True, **CPU)
    assert path.reason.startswith("the path converged, but its refinement failed: the refinement must stay within")
    assert not path.converged
    assert path.saddle is None
    assert path.forward == pytest.approx(barrier(), abs=1e-2)


def test_an_end_that_does_not_relax(morse):
    first, last = ends(False)
    first.numbers[1] = 7
    last.numbers[1] = 7
    with pytest.raises(ValueError, match="the first end must relax to a minimum"):
        torchmdx.neb(first, last, morse, **CPU)


def test_free_molecules_are_superimposed():
    from torchmdx.dynamics.paths.ends import fitted

    first = ase.build.molecule("CH3CH2OH")
    last = first.copy()
    last.rattle(0.1, seed=1)
    near = np.linalg.norm(last.positions - first.positions)
    last.rotate(70, (1, 2, 3))
    last.translate([5, 0, 1])
    assert np.linalg.norm(fitted(first, last).positions - first.positions) <= near + 1e-6
    first.set_constraint(FixAtoms([0]))  # nothing is turned around a fixed atom
    with pytest.raises(ValueError, match="fixed atoms must be at the same place"):
        fitted(first, last)
