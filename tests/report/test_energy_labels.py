"""Deviations and correlations of energies beyond composition, of numbers made here."""

import math

import numpy as np
import pytest

from torchmdx.report.energy_labels import EnergyLabels

ATOMS = np.array([-13.6, -1030.0, -2042.0])


def made(count, seed=0, shift=0.0, slope=1.0, batches=3, wrong=()):
    """Energies with a deviation of 0.1 eV/atom, and predictions from other references and a slope."""
    generator = np.random.default_rng(seed)
    composition = np.zeros((count, 9), np.int64)
    composition[:, [1, 6, 8]] = generator.integers(1, 6, (count, 3))
    share = composition[:, [1, 6, 8]] / composition.sum(1, keepdims=True)
    rest = generator.normal(0, 0.1, count)
    labels, predicted = share @ ATOMS + rest, share @ (ATOMS + shift) + slope * rest
    labels[list(wrong)] = 0.0
    found = EnergyLabels()
    for part in np.array_split(np.arange(count), batches):
        found.add(composition[part], labels[part], predicted[part])
    return found


def test_the_deviation_is_that_of_the_labels_whatever_is_predicted():
    assert made(200).deviation == pytest.approx(0.1, rel=0.1)
    assert made(200, shift=7.0, slope=-3.0).deviation == made(200).deviation
    assert made(200, wrong=(5, 90)).deviation == pytest.approx(made(200).deviation, rel=0.05)
    assert made(14, batches=1).deviation == pytest.approx(0.1, rel=0.6)


def test_the_correlation_is_that_of_what_composition_does_not_explain():
    assert made(100, slope=0.5, shift=3.0).correlation == pytest.approx(1.0, abs=1e-3)
    assert made(100, slope=-0.2).correlation == pytest.approx(-1.0, abs=1e-3)
    found = made(50)
    assert found.correlation > 0.99
    composition = np.zeros((400, 9), np.int64)
    composition[:, 1] = 2
    random = np.random.default_rng(1)
    found.add(composition, random.normal(0, 0.1, 400), random.normal(0, 0.1, 400))
    assert abs(found.correlation) < 0.5  # what was computed before is not kept


def test_few_or_equal_energies_have_none():
    assert math.isnan(made(7, batches=1).deviation)
    assert math.isnan(made(7, batches=1).correlation)
    assert math.isnan(EnergyLabels().deviation)
    found = EnergyLabels()
    found.add(np.full((30, 2), 1), np.full(30, -5.0), np.arange(30.0))
    assert math.isnan(found.deviation)
