"""Several regions in one call, against regions one after the other."""

import pytest
from mixed_systems import mix
from mm_systems import SOLUTE, assert_same, cluster, energy_and_forces, mm_system
from openmm import unit

from torchmdx.openmm import MixedRegion, create_mixed_regions, find

OPTIONS = dict(precision="float64", transport="python", device="cpu")


@pytest.fixture
def models(make_potential):
    return make_potential(seed=1), make_potential(seed=2)


def test_two_regions_with_two_parameters(models):
    topology, positions = cluster(1)
    system, water = mm_system(topology), (22, 23, 24)
    regions = [
        MixedRegion(SOLUTE, models[0], interpolate="one", name="solute"),
        MixedRegion(water, models[1], 0 * unit.elementary_charge, "two", energy_offset=40.0, name="water"),
    ]
    mixed = create_mixed_regions(system, topology, regions, **OPTIONS)
    assert [found.force.getName() for found in find(mixed)] == ["solute", "water"]
    whole = energy_and_forces(system, positions)
    alone = [
        energy_and_forces(mix(system, topology, region.atoms, region.potential), positions)[0] - whole[0]
        for region in regions
    ]
    for one, two in ((0.0, 0.0), (1.0, 0.0), (0.4, 0.7)):
        expected = whole[0] + one * alone[0] + two * (alone[1] - 40.0)
        assert energy_and_forces(mixed, positions, one=one, two=two)[0] == pytest.approx(expected, rel=1e-8)


@pytest.mark.nightly
def test_regions_that_share_a_parameter_and_one_without(models):
    topology, positions = cluster(3)
    system = mm_system(topology)
    pieces = [range(22, 25), range(25, 28), range(28, 31)]
    names = ["lam", "lam", None]
    regions = [MixedRegion(atoms, models[0], interpolate=name) for atoms, name in zip(pieces, names, strict=True)]
    mixed = create_mixed_regions(system, topology, iter(regions), **OPTIONS)
    last = mix(system, topology, pieces[2], models[0])
    assert_same(energy_and_forces(mixed, positions, lam=0.0), energy_and_forces(last, positions), 1e-8)
    both = mix(mix(last, topology, pieces[0], models[0]), topology, pieces[1], models[0])
    assert_same(energy_and_forces(mixed, positions), energy_and_forces(both, positions), 1e-8)


def test_regions_are_checked_before_anything_is_done(models):
    topology, _ = cluster(1)
    system = mm_system(topology)
    for regions, error, message in [
        ([], ValueError, "at least one MixedRegion, got none"),
        ([SOLUTE], TypeError, "regions must be MixedRegions, got tuple"),
        (
            [MixedRegion("HOH", models[0]), MixedRegion([23, 5], models[0])],
            ValueError,
            "got atom 23 in regions 0 and 1",
        ),
    ]:
        with pytest.raises(error, match=message):
            create_mixed_regions(system, topology, regions, **OPTIONS)
