"""Restraints of a pose: energies by OpenMM's own functions, and the free energy against an average over poses."""

import math

import numpy as np
import openmm
import pytest
from mixed_systems import mix
from mm_systems import SOLUTE, cluster, energy_and_forces, mm_system
from openmm import unit

from torchmdx.openmm import BoreschRestraint

KT = 2.494338785445972  # kJ/mol at 300 K
HOST, GUEST = (0, 1, 2), (3, 4, 5)
POSE = np.array(
    [[0, 0, 0], [-0.1, 0.12, 0], [-0.22, 0.1, 0.08], [0.3, 0.25, 0.1], [0.2, 0.37, 0.12], [0.3, 0.47, 0.22]]
)  # nm
STANDARD = 1e24 / 6.02214076e23  # nm³


def restrained(host=HOST, guest=GUEST, **options):
    restraint = BoreschRestraint(host=host, guest=guest, positions=POSE, temperature=300, **options)
    system = openmm.System()
    for _ in range(6):
        system.addParticle(12.0)
    restraint.add_to(system)
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference"))
    return restraint, context


def energy(context, positions) -> float:
    context.setPositions(positions)
    return context.getState(energy=True).getPotentialEnergy()._value


def test_the_pose_is_the_minimum_and_the_parameter_scales_the_energy():
    _, context = restrained(distance_constant=2000.0)
    assert energy(context, POSE) == pytest.approx(0, abs=1e-20)
    moved = POSE.copy()
    away = (POSE[3] - POSE[0]) / np.linalg.norm(POSE[3] - POSE[0])
    moved[3:] += 0.02 * away  # changes the distance, and the torsions and angles not at all
    assert energy(context, moved) == pytest.approx(0.5 * 2000 * 0.02**2, rel=1e-9)
    context.setParameter("lambda_restraint", 0.25)
    assert energy(context, moved) == pytest.approx(0.125 * 2000 * 0.02**2, rel=1e-9)
    turned = 2 * POSE[0] - POSE  # the mirror image: torsions change sign
    assert energy(context, turned) > 10


@pytest.mark.nightly_for("3+3", "3+1")
@pytest.mark.parametrize(
    ("host", "guest"),
    [((0,), (3,)), ((0, 1, 2), (3,)), ((0, 1), (3, 4)), (HOST, GUEST)],
    ids=["1+1", "3+1", "2+2", "3+3"],
)
def test_the_free_energy_is_that_of_an_average_over_poses(host, guest):
    """Rigid guests in all orientations and at all places in a ball, with the energy of OpenMM."""
    soft = dict(distance_constant=60.0, angle_constant=13.0)
    restraint, context = restrained(host, guest, **soft)
    radius, random, samples = 1.2, np.random.default_rng(5), 12_000
    rotations = np.linalg.qr(random.normal(size=(samples, 3, 3)))
    rotations = rotations[0] * np.sign(np.diagonal(rotations[1], axis1=1, axis2=2))[:, None]
    rotations *= np.linalg.det(rotations)[:, None, None]
    places = random.normal(size=(samples, 3))
    places *= (radius * random.uniform(size=samples) ** (1 / 3) / np.linalg.norm(places, axis=1))[:, None]
    weights = []
    for rotation, place in zip(rotations, places, strict=True):
        guests = (POSE[3:] - POSE[3]) @ rotation.T + place
        weights.append(math.exp(-energy(context, np.concatenate([POSE[:3], guests])) / KT))
    volume = 4 / 3 * math.pi * radius**3 * np.mean(weights)
    error = np.std(weights) / np.mean(weights) / math.sqrt(samples)
    assert error < 0.2
    expected = -KT * math.log(volume / STANDARD)
    assert restraint.standard_free_energy == pytest.approx(expected, abs=3 * KT * error)


def test_stiff_restraints_have_the_formula_of_boresch():
    restraint, _ = restrained(distance_constant=1e6, angle_constant=1e5)
    values = restraint.values
    sines = math.sin(values["angle_host"]) * math.sin(values["angle_guest"])
    root = math.sqrt(1e6 * 1e5**5)
    formula = 8 * math.pi**2 * STANDARD * root / (values["distance"] ** 2 * sines * (2 * math.pi * KT) ** 3)
    assert restraint.standard_free_energy == pytest.approx(KT * math.log(formula), abs=0.01)


@pytest.mark.parametrize("is_before", [True, False])
def test_a_mixed_system_keeps_it(potential, is_before):
    topology, positions = cluster(1)
    system = mm_system(topology)
    pose = positions + np.random.default_rng(1).normal(scale=0.01, size=positions.shape)
    restraint = BoreschRestraint(
        host=(22,), guest=(4, 6, 8), positions=pose * unit.nanometer, temperature=300 * unit.kelvin
    )
    alone = mix(system, topology, SOLUTE, potential)
    if is_before:
        restraint.add_to(system, "held")
        mixed = mix(system, topology, SOLUTE, potential)
    else:
        mixed = mix(system, topology, SOLUTE, potential)
        restraint.add_to(mixed, "held")
    without = energy_and_forces(alone, positions)[0]
    assert energy_and_forces(mixed, positions, held=0.0)[0] == pytest.approx(without, rel=1e-12)
    assert energy_and_forces(mixed, positions)[0] > without + 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(host=()), "host must have one to three anchors, got 0"),
        (dict(guest=(2, 4, 5)), "anchors must be distinct"),
        (dict(guest=(3, 4, 6)), "indices of the 6 positions"),
        (dict(temperature=0), "temperature must be > 0"),
        (dict(angle_constant=-1.0), "angle_constant must be > 0 and finite, got -1"),
        (dict(angle_constant=2.0), r"so far from 0 and 180 degrees that they cost 5 kT, got .* degrees, .* kT"),
        (dict(positions=np.outer(np.arange(6), [0.1, 0.1, 0])), "the host must not be on a line, got an angle of 180"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BoreschRestraint(**(dict(host=HOST, guest=GUEST, positions=POSE, temperature=300) | options))
