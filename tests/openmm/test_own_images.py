"""A region that interacts with its own periodic image: found, told once, with the distance."""

import warnings

import numpy as np
import openmm
import pytest
from mixed_systems import mix
from mm_systems import SOLUTE, energy_and_forces, mm_system, selected, water_box
from openmm import app

from torchmdx import System
from torchmdx.openmm.own_images import nearest_own_image, warn_of_own_image


def row(places, box, pbc=(True, True, True)) -> System:
    """Hydrogens on a line, Å, in a cell that is long in the other directions."""
    positions = np.array([[x, 0.0, 0.0] for x in places])
    return System.create(positions, np.ones(len(positions), dtype=int), cell=np.diag([box, 40.0, 40.0]), pbc=pbc)


@pytest.mark.parametrize("wrap", [0, 1])
def test_a_chain_that_nearly_reaches_its_image(wrap) -> None:
    places = np.array([0.0, 1.0, 2.0, 3.0, 4.0]) + 3.5
    for box, expected in ((6.5, 2.5), (7.9, 3.9), (8.1, None)):
        moved = places - box * wrap * (places > box)
        found = nearest_own_image(row(moved, box), 4.0)
        assert (None if found is None else found.distance) == (None if expected is None else pytest.approx(expected))
        if found is not None:
            assert {found.first, found.second} == {0, 4}


def test_molecules_across_the_border_are_near_each_other_not_images() -> None:
    assert nearest_own_image(row([0.2, 1.0, 19.2, 20.0], 20.5), 4.0) is None
    assert nearest_own_image(row([0.2, 19.2, 10.2], 20.5), 4.0) is None
    found = nearest_own_image(row([0.0, 4.0, 8.0], 12.0), 4.5)  # a chain of three through the box
    assert found is not None
    assert found.distance == pytest.approx(4.0)


def test_an_atom_and_its_own_image() -> None:
    found = nearest_own_image(row([1.0], 3.0), 4.0)
    assert found is not None
    assert found[:2] == (0, 0)
    assert found.distance == pytest.approx(3.0)
    assert nearest_own_image(row([1.0], 5.0), 4.0) is None


def test_directions_without_images() -> None:
    assert nearest_own_image(row([1.0], 3.0, pbc=(False, True, True)), 4.0) is None
    assert nearest_own_image(row([1.0], 3.0, pbc=(False, False, False)), 4.0) is None


def test_the_text() -> None:
    text = (
        r"within its cutoff of its own periodic image: atom 4 is 2.50 Å from the image of atom 0, and the cutoff is "
        r"4.00 Å.* larger by 1.50 Å"
    )
    with pytest.warns(UserWarning, match=text.replace("atom 4", "atom [04]").replace("of atom 0", "of atom [04]")):
        warn_of_own_image(row(range(5), 6.5), 4.0, lambda k: f"atom {k}")


def small_box() -> tuple[openmm.System, app.Topology, np.ndarray]:
    topology, positions = selected(SOLUTE)
    topology.setUnitCellDimensions(openmm.Vec3(0.78, 0.78, 0.78))
    return mm_system(topology, nonbondedMethod=app.PME, nonbondedCutoff=0.38), topology, positions


@pytest.mark.parametrize("links", [False, True])
def test_a_mixed_system_in_a_small_box(potential, links) -> None:
    system, topology, positions = small_box()
    atoms, options = (range(6, 22), dict(link_atoms=True)) if links else (SOLUTE, {})
    mixed = mix(system, topology, atoms, potential, **options)
    with pytest.warns(UserWarning, match=r"within its cutoff of its own periodic image: .*particle") as told:
        energy_and_forces(mixed, positions)
    assert len(told) == 1
    with warnings.catch_warnings():  # once for a potential
        warnings.simplefilter("error")
        energy_and_forces(mixed, positions)
        energy_and_forces(mix(system, topology, atoms, potential, periodic=False, **options), positions)


def test_a_large_box_and_a_whole_system_are_quiet(potential) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        topology, positions = water_box()
        system = mm_system(topology, nonbondedMethod=app.PME, nonbondedCutoff=0.75)
        energy_and_forces(mix(system, topology, SOLUTE, potential), positions)
