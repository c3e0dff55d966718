"""Errors against loops over frames, however the frames come; samples, worst frames, units."""

import json
import math

import numpy as np
import pytest
from ase import Atoms
from frame_sets import frames_of, molecules

from torchmdx.report.composition import compositions, formula
from torchmdx.report.errors import MOST_FORMULAS, Errors
from torchmdx.report.moments import Groups, Moments, Sample
from torchmdx.report.predictions import Predictions
from torchmdx.report.scales import KCAL, MILLI_EV

EV_IN_KCAL = 23.060548  # kcal/mol in an eV


@pytest.fixture
def predictions(crystal, slab) -> Predictions:
    """30 structures; some labels are absent, and every prediction is off at random."""
    frames = frames_of([*molecules(28), crystal, slab])
    random = np.random.default_rng(3)
    frames.energy[:] = random.normal(-20, 3, len(frames))
    frames.forces[:] = random.normal(0, 1, frames.forces.shape)
    frames.stress[28:] = random.normal(0, 0.1, (2, 3, 3))
    frames.energy[[2, 17]] = np.nan
    frames.forces[np.isin(frames.frame_index, [5, 6])] = np.nan
    frames.stress[28] = np.nan
    return Predictions(
        np.arange(1000, 1030),
        frames,
        np.nan_to_num(frames.energy) + random.normal(0.3, 0.05, len(frames)),
        np.nan_to_num(frames.forces) + random.normal(0, 0.1, frames.forces.shape),
        np.nan_to_num(frames.stress) + random.normal(0, 0.01, frames.stress.shape),
    )


def accumulated(predictions, size, **settings) -> Errors:
    errors = Errors(**settings)
    for first in range(0, 30, size):
        chosen = np.arange(first, min(30, first + size))
        frames = predictions.frames
        rows = np.isin(frames.frame_index, chosen)
        errors.add(
            Predictions(
                predictions.indices[chosen],
                frames.take(chosen),
                predictions.energy[chosen],
                predictions.forces[rows],
                predictions.stress[chosen],
            )
        )
    return errors


def listed(predictions):
    """Frame by frame: (counts, numbers, energy error, force errors [n,3], stress errors), None where unlabelled."""
    frames, found = predictions.frames, []
    for index in range(len(frames)):
        rows = slice(frames.offsets[index], frames.offsets[index + 1])
        energy = float(predictions.energy[index] - frames.energy[index])
        forces = predictions.forces[rows] - frames.forces[rows]
        stress = predictions.stress[index] - frames.stress[index]
        found.append(
            (
                int(frames.counts[index]),
                frames.atomic_numbers[rows].tolist(),
                None if math.isnan(energy) else energy,
                None if np.isnan(forces).any() else forces,
                None if np.isnan(stress).any() else stress,
            )
        )
    return found


def assert_moments(moments, values):
    values = [float(value) for value in np.concatenate([np.ravel(value) for value in values])]
    assert moments.count == len(values)
    assert moments.mae == pytest.approx(sum(abs(v) for v in values) / len(values), rel=1e-12)
    assert moments.rmse == pytest.approx(math.sqrt(sum(v * v for v in values) / len(values)), rel=1e-12)
    assert moments.max == pytest.approx(max(abs(v) for v in values), rel=1e-12)
    assert moments.mean == pytest.approx(sum(values) / len(values), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("size", [1, 7, 30])
def test_errors_are_those_of_a_loop(predictions, size):
    errors, frames = accumulated(predictions, size), listed(predictions)
    assert (errors.num_frames, errors.num_atoms) == (30, sum(f[0] for f in frames))
    energies = [(count, error) for count, _, error, _, _ in frames if error is not None]
    forces = [(count, numbers, error) for count, numbers, _, error, _ in frames if error is not None]
    assert len(energies) == 28
    assert_moments(errors.energy, [error / count for count, error in energies])
    assert_moments(errors.total, [error for _, error in energies])
    assert_moments(errors.forces, [error for *_, error in forces])
    assert_moments(errors.stress, [stress for *_, stress in frames if stress is not None])
    assert errors.stress.count == 9
    for element in (1, 6, 7, 8):
        own = [error[k] for _, numbers, error in forces for k, z in enumerate(numbers) if z == element]
        assert_moments(errors.forces_by_element.of[element], own)
    assert sorted(errors.forces_by_element.of) == [1, 6, 7, 8]
    for size in {count for count, *_ in frames}:
        assert_moments(errors.energy_by_size.of[size], [e / c for c, e in energies if c == size])
        assert_moments(errors.forces_by_size.of[size], [e for c, _, e in forces if c == size])
    names = ["C2H6O", "H2O", "CH4", "H3N"]
    for place, name in enumerate(names):
        own = [f[2] / f[0] for f in frames[place:28:4] if f[2] is not None]
        assert_moments(errors.energy_by_formula[name], own)
        assert_moments(errors.forces_by_formula[name], [f[3] for f in frames[place:28:4] if f[3] is not None])


def test_the_mean_shift_is_removed_beside_the_errors(predictions):
    errors = accumulated(predictions, 7)
    per_atom = np.array([f[2] / f[0] for f in listed(predictions) if f[2] is not None])
    total = np.array([f[2] for f in listed(predictions) if f[2] is not None])
    assert_moments(errors.shifted(), [per_atom - per_atom.mean()])
    assert_moments(errors.shifted(total=True), [total - total.mean()])
    assert errors.shifted(total=True).mae < 0.2 * errors.total.mae
    assert errors.total.mae == pytest.approx(np.abs(total).mean())


@pytest.mark.parametrize("size", [1, 30])
def test_the_worst_frames_are_found(predictions, size):
    errors, frames = accumulated(predictions, size, num_worst=4), listed(predictions)
    ranked = sorted((i for i in range(30) if frames[i][2] is not None), key=lambda i: -abs(frames[i][2]) / frames[i][0])
    assert [worst.index for worst in errors.worst_energy] == [1000 + i for i in ranked[:4]]
    first = errors.worst_energy[0]
    assert (first.label, first.predicted) == (predictions.frames.energy[ranked[0]], predictions.energy[ranked[0]])
    ranked = sorted((i for i in range(30) if frames[i][3] is not None), key=lambda i: -np.abs(frames[i][3]).max())
    assert [worst.index for worst in errors.worst_forces] == [1000 + i for i in ranked[:4]]
    for worst, index in zip(errors.worst_forces, ranked, strict=False):
        largest = np.abs(frames[index][3])
        assert worst.error == pytest.approx(largest.max())
        assert worst.atom == np.unravel_index(largest.argmax(), largest.shape)[0]
        assert worst.formula == Atoms(frames[index][1]).get_chemical_formula("hill")
        assert worst.num_atoms == frames[index][0]


def test_parity_pairs_are_without_references(predictions):
    references = np.zeros(10)
    references[[1, 6, 7, 8]] = [-0.5, -38.0, -54.0, -75.0]
    errors = accumulated(predictions, 7, reference_energies=references)
    wanted = []
    for index, (count, numbers, error, *_) in enumerate(listed(predictions)):
        if error is not None:
            base = sum(references[z] for z in numbers)
            pair = ((predictions.frames.energy[index] - base) / count, (predictions.energy[index] - base) / count)
            wanted.append(pair)
    np.testing.assert_allclose(np.sort(errors.energy_pairs.pairs, 0), np.sort(wanted, 0), rtol=1e-12)
    short = accumulated(predictions, 30, reference_energies=references[:2])
    assert short.energy_pairs.num_seen == 28


def test_predictions_of_another_shape_are_refused(predictions):
    wrong = Predictions(predictions.indices, predictions.frames, predictions.energy[:4], predictions.forces, None)
    with pytest.raises(ValueError, match=r"predicted energy must have shape \(30,\), got \(4,\)"):
        Errors().add(wrong)


def test_without_labels_there_are_no_errors(predictions):
    predictions.frames.energy[:] = np.nan
    predictions.frames.forces[:] = np.nan
    predictions.frames.stress[:] = np.nan
    errors = accumulated(predictions, 30)
    assert (errors.energy.count, errors.forces.count, errors.stress.count) == (0, 0, 0)
    assert math.isnan(errors.forces.mae)
    assert math.isnan(errors.force_ratio[0])
    assert errors.worst_energy == errors.worst_forces == []
    summary = json.loads(json.dumps(errors.summary(), allow_nan=False))
    nothing = dict.fromkeys(("mae", "rmse", "max", "mean", "median", "label_std", "rmse_over_label_std"))
    assert summary["energy"] == {"unit": "meV/atom", **nothing, "count": 0}


def test_units(predictions):
    errors = accumulated(predictions, 30)
    plain, kcal = errors.summary(MILLI_EV), errors.summary(KCAL)
    assert [plain[name]["unit"] for name in ("energy", "energy_total", "forces", "stress", "stress_GPa")] == [
        "meV/atom",
        "meV",
        "meV/Å",
        "meV/Å³",
        "GPa",
    ]
    assert plain["forces"]["mae"] == pytest.approx(1000 * errors.forces.mae)
    assert plain["stress_GPa"]["mae"] == pytest.approx(160.21766 * errors.stress.mae)
    assert [kcal[name]["unit"] for name in ("energy", "energy_total", "forces")] == [
        "kcal/mol/atom",
        "kcal/mol",
        "kcal/mol/Å",
    ]
    for name, moments in (("energy_total", errors.total), ("forces", errors.forces)):
        assert kcal[name]["rmse"] == pytest.approx(EV_IN_KCAL * moments.rmse)
    assert plain["forces_by_element"].keys() == {"H", "C", "N", "O"}
    assert plain["energy_by_size"]["9"]["count"] == 7
    assert plain["forces_by_formula"]["CH4"]["mae"] > 0


def test_forces_in_other_units_show(predictions):
    predictions.forces[:] = np.nan_to_num(predictions.frames.forces) * 51.42
    ratio, correlation = accumulated(predictions, 7).force_ratio
    assert ratio == pytest.approx(1 / 51.42)
    assert correlation == pytest.approx(1)


def test_too_many_formulas_are_not_listed():
    errors = Errors()
    for size in range(1, MOST_FORMULAS + 2):
        atoms = molecules(2)[1][[1] * size]
        frames = frames_of([atoms])
        assert (errors.energy_by_formula is None) == (size > MOST_FORMULAS + 1)
        errors.add(Predictions(np.array([size]), frames, frames.energy, frames.forces.astype(float), None))
    assert errors.energy_by_formula is None
    assert "energy_by_formula" not in errors.summary()


def test_formulas_are_hills(ethanol, cation, chiral):
    structures = [ethanol, cation, chiral, ethanol[2:3]]
    found = compositions(frames_of(structures))
    assert [formula(row) for row in found] == [atoms.get_chemical_formula("hill") for atoms in structures]


def test_a_sample_is_everything_until_it_is_full():
    sample = Sample(size=100, num_extreme=3)
    values = np.arange(100.0)
    for first in range(0, 100, 9):
        sample.add(values[first : first + 9], values[first : first + 9] + 1)
    np.testing.assert_array_equal(np.sort(sample.pairs[:, 0]), values)
    np.testing.assert_array_equal(sample.pairs[:, 1], sample.pairs[:, 0] + 1)
    assert sample.extreme.shape == (0, 2)


def test_a_full_sample_has_no_preference_and_keeps_what_is_far_off():
    sample, random = Sample(size=1000, num_extreme=3), np.random.default_rng(0)
    places = random.choice(50_000, 3, replace=False)
    values = np.arange(50_000.0)
    predicted = values + random.normal(0, 1, 50_000)
    predicted[places] += 100
    for first in range(0, 50_000, 501):
        sample.add(values[first : first + 501], predicted[first : first + 501])
    assert sample.pairs.shape == (1000, 2)
    assert len(np.unique(sample.pairs[:, 0])) == 1000
    np.testing.assert_array_equal(np.sort(sample.extreme[:, 0]), np.sort(places))
    # Ten equal parts of the stream: 100 each, with a standard deviation of 9.5.
    counts = np.histogram(sample.pairs[:, 0], bins=10, range=(0, 50_000))[0]
    assert counts.min() > 60
    assert counts.max() < 140


def test_what_a_sample_holds_stays_small():
    sample = Sample(size=1000, num_extreme=10)
    for _ in range(300):
        sample.add(np.zeros(500), np.ones(500))
    assert sum(rows.nbytes for rows in sample._sample._rows) <= 3 * 8 * 2500
    assert sample.num_seen == 150_000


def test_groups_and_moments_of_nothing():
    groups = Groups()
    groups.add(np.zeros(0, dtype=np.int64), np.zeros((0, 3)))
    assert groups.of == {}
    assert math.isnan(Moments().rmse)
    assert math.isnan(Moments().max)
