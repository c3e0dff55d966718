"""Covariance and calibration: synthetic frames whose answer is known, and formulas written out with NumPy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from frame_sets import frames_of, write_store
from uncertain import features_by_autograd

from torchmdx import Batch, System, evaluate
from torchmdx.evaluation.properties import force_uncertainties
from torchmdx.report import rigidity
from torchmdx.report.predictor import Predictor
from torchmdx.report.rigidity import Inputs, NoCalibration, add_uncertainty, calibrated, conformal_quantiles
from torchmdx.report.uncertainty import SpreadAndError

SIZE = 5


def made_up(count, seed, noise=0.04):
    """Frames of a linear model, whose labels have Gaussian errors for which the formula holds."""
    random = np.random.default_rng(seed)
    sums = random.normal(size=(count, SIZE)) * [1.0, 0.5, 0.2, 0.1, 0.05] + [3.0, 0, 0, 0, 1.0]
    counts = random.integers(3, 9, count)
    sums = sums * counts[:, None]
    shape = np.linalg.inv(np.diag([9.0, 0.25, 0.04, 0.01, 0.1]) + 1e-4 * np.eye(SIZE))
    deviation = noise * np.sqrt(np.einsum("fi,ij,fj->f", sums, shape, sums))
    composition = np.stack([counts, counts // 2], 1)
    return Inputs(sums, counts, deviation * random.normal(size=count), composition)


def test_the_factor_of_gaussian_errors_is_found():
    train, held_out = made_up(4000, 0), made_up(4000, 1)
    matrix = np.diag([9.0, 0.25, 0.04, 0.01, 0.1])
    found = calibrated(matrix, len(train), held_out)
    assert found.regulariser < 0.01  # the smallest eigenvalue; that of the model is 1e-4
    assert found.factor == pytest.approx(0.04, rel=0.05)
    rows = torch.from_numpy(held_out.sums)
    sigma = found.of(rows, torch.arange(len(rows)), len(rows))[0].numpy()
    errors = np.abs(held_out.errors)
    assert (errors**2 / sigma**2).mean() == pytest.approx(1, rel=1e-6)  # as the likelihood says
    both = SpreadAndError()
    both.add(sigma, errors)
    assert both.miscalibration < 0.02
    for coverage, gaussian in ((0.5, 0.674), (0.9, 1.645), (0.95, 1.960)):
        assert found.quantile(coverage) == pytest.approx(gaussian, rel=0.06)
    fresh = made_up(4000, 2)
    sigma = found.of(torch.from_numpy(fresh.sums), torch.arange(4000), 4000)[0].numpy()
    for coverage in (0.5, 0.9, 0.95):
        inside = np.abs(fresh.errors) <= found.quantile(coverage) * sigma
        assert inside.mean() == pytest.approx(coverage, abs=4 * math.sqrt(coverage * (1 - coverage) / 2000))


def test_the_regulariser_is_the_likeliest():
    held_out = made_up(60, 3)
    matrix = rigidity.covariance_of(made_up(80, 4))
    found = calibrated(matrix, 80, held_out)

    def unlikelihood(r):
        u = np.array([f @ np.linalg.inv(matrix + r * np.eye(SIZE)) @ f for f in held_out.sums])
        factor = np.sqrt((held_out.errors**2 / u).mean())
        density = np.exp(-(held_out.errors**2) / (2 * factor**2 * u)) / np.sqrt(2 * np.pi * factor**2 * u)
        return -np.log(density).mean(), factor

    tried = np.linalg.eigvalsh(matrix).max() * np.array(rigidity.REGULARISERS)
    values = [unlikelihood(r)[0] for r in tried]
    assert found.regulariser == pytest.approx(tried[np.argmin(values)])
    assert found.factor == pytest.approx(unlikelihood(found.regulariser)[1])


def test_covariance_is_the_mean_over_frames_per_atom():
    frames = made_up(7, 5)
    expected = np.zeros((SIZE, SIZE))
    for total, count in zip(frames.sums, frames.counts, strict=True):
        expected += np.outer(total / count, total / count) / 7
    np.testing.assert_allclose(rigidity.covariance_of(frames), expected)


def test_conformal_quantiles_are_order_statistics():
    scores = np.random.default_rng(0).permutation(np.arange(1.0, 20.0))  # 1 to 19
    # The smallest t so that at least (n + 1) p = 20 p of 19 scores are at most t; 0.99 would need 99 frames.
    assert conformal_quantiles(scores) == {0.5: 10.0, 0.683: 14.0, 0.8: 16.0, 0.9: 18.0, 0.95: 19.0}
    assert conformal_quantiles(scores[:9]).keys() == {0.5, 0.683, 0.8, 0.9}


def test_other_references_are_seen_and_left_out():
    frames = made_up(40, 6)
    moved = frames.errors + frames.composition @ [13.0, -4.0]
    shifted = Inputs(frames.sums, frames.counts, moved, frames.composition)
    assert shifted.have_other_references
    assert not frames.have_other_references
    used = frames.composition.astype(float)
    expected = frames.errors - used @ np.linalg.solve(used.T @ used, used.T @ frames.errors)
    np.testing.assert_allclose(shifted.without_references().errors, expected, atol=1e-9)


def test_too_few_frames_and_no_errors_are_refused():
    with pytest.raises(NoCalibration, match="needs at least 10 frames with an energy, got 9"):
        calibrated(np.eye(SIZE), 5, made_up(9, 0))
    with pytest.raises(NoCalibration, match="needs frames with an energy, got none"):
        rigidity.covariance_of(made_up(0, 0))
    with pytest.raises(NoCalibration, match="needs errors, got 12 frames that are exactly predicted"):
        calibrated(np.eye(SIZE), 5, made_up(12, 0, noise=0.0))


def store_of(structures, energies, path):
    frames = replace(frames_of(structures), energy=np.array(energies, dtype=float))
    return write_store(path, replace(frames, forces=np.zeros_like(frames.forces)))


# -- with a potential ------------------------------------------------------------------------------------------------


@pytest.fixture
def labelled(potential, ethanol, cation, tmp_path):
    """A store of 24 moved molecules, one without an energy, and their structures."""
    random, frames = np.random.default_rng(0), []
    for number in range(24):
        atoms = (ethanol, cation)[number % 2].copy()
        atoms.positions += 0.1 * random.normal(size=(len(atoms), 3))
        frames.append(atoms)
    energies = [float(evaluate(potential, System.from_ase(atoms)).energy) + random.normal() for atoms in frames]
    energies[3] = None
    energies = np.array([math.nan if energy is None else energy for energy in energies])
    return store_of(frames, energies, tmp_path / "store"), frames, energies


def test_frames_of_a_store_have_the_inputs_of_the_formula(potential, labelled):
    store, frames, energies = labelled
    found = rigidity.inputs_of(potential, store, np.arange(24), dtype=torch.float64)
    known = [number for number in range(24) if number != 3]
    assert len(found) == 23
    for row, number in enumerate(known):
        batch = Batch.of(System.from_ase(frames[number]))
        np.testing.assert_allclose(found.sums[row], features_by_autograd(potential, batch).sum(0), rtol=1e-5)
        error = float(evaluate(potential, batch).energy) - energies[number]
        assert found.errors[row] == pytest.approx(error, abs=1e-5)
        assert found.composition[row, 6] == (frames[number].numbers == 6).sum()


def test_a_potential_gets_it_and_predictions_have_it(potential, labelled):
    store, frames, _ = labelled
    train, held_out = (store, np.arange(12)), (store, np.arange(12, 24))
    known = add_uncertainty(potential, train, held_out, dtype=torch.float64)
    assert potential.uncertainty is None
    assert (known.uncertainty.num_frames, known.uncertainty.num_calibration) == (11, 12)
    assert set(known.uncertainty.quantiles) == {0.5, 0.683, 0.8, 0.9}
    (part,) = Predictor(known, device="cpu", dtype=torch.float64).parts(store, np.array([5, 4]))
    alone = [evaluate(known, System.from_ase(frames[number])) for number in (5, 4)]
    np.testing.assert_allclose(part.energy_uncertainty, [float(one.energy_uncertainty) for one in alone], rtol=1e-5)
    of_atoms = torch.cat([one.energies_uncertainty for one in alone])
    np.testing.assert_allclose(part.energies_uncertainty, of_atoms, rtol=1e-5)
    # The reference energies of labels are a matter of their own.
    warned = []
    others = [1000.0 * len(atoms) + number % 7 for number, atoms in enumerate(frames)]
    shift = store_of(frames, others, store.path.parent / "others")
    add_uncertainty(potential, train, (shift, np.arange(24)), warn=warned.append)
    assert "--fit-references" in warned[0]


@pytest.mark.nightly
def test_the_factor_of_forces_makes_their_errors_as_large(potential, labelled):
    store, frames, _ = labelled
    train, held_out = (store, np.arange(12)), (store, np.arange(12, 24))
    known = add_uncertainty(potential, train, held_out, dtype=torch.float64, force_atoms=20)
    drawn = np.random.default_rng(0).permutation(np.arange(12, 24))
    ratios, atoms = [], 0
    for index in drawn:  # labels of forces are zero
        if ratios and atoms + len(frames[index]) > 20:
            break
        atoms += len(frames[index])
        system = System.from_ase(frames[index])
        squares = (evaluate(known, system).forces ** 2).sum(-1) / force_uncertainties(known, system) ** 2
        ratios.append(float(squares.mean()))
    assert len(ratios) >= 2
    assert np.mean(ratios) == pytest.approx(1, rel=1e-6)
    assert add_uncertainty(potential, train, held_out, dtype=torch.float64).uncertainty.force_factor is None
