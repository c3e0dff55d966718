"""The verdict of a report: words by the RMSE relative to the standard deviation of the labels."""

import math

import numpy as np
import pytest
from frame_sets import frames_of, molecules

from torchmdx.report.errors import Errors
from torchmdx.report.predictions import Predictions
from torchmdx.report.scales import KCAL, MILLI_EV
from torchmdx.report.verdict import percent, verdict
from torchmdx.structures.units import GPA


def errors_of(force_error, *, count=20, energy_error=0.01, stress_error=None):
    """Errors of labels with a standard deviation near 1 eV/Å, 1 eV/atom and 1 eV/Å³; all errors have one size."""
    frames, random = frames_of(molecules(count)), np.random.default_rng(0)
    frames.forces[:] = random.normal(size=frames.forces.shape)
    frames.energy[:] = frames.counts * random.normal(size=count)
    stress = None
    if stress_error is not None:
        frames.stress[:] = random.normal(size=frames.stress.shape)
        stress = frames.stress.astype(float) + stress_error
    errors = Errors()
    energy = frames.energy + frames.counts * energy_error
    errors.add(Predictions(np.arange(count), frames, energy, frames.forces.astype(float) + force_error, stress))
    return errors


@pytest.mark.parametrize(
    ("relative", "words"),
    [
        (0.03, "forces very well ("),
        (0.1, "forces well ("),
        (0.3, "forces roughly ("),
        (0.7, "forces poorly ("),
        (1.4, "forces no better than by their mean ("),
    ],
)
def test_words_by_the_size_of_errors(relative, words):
    found = errors_of(0.0)
    deviation = found.labels["forces"].std
    errors = errors_of(relative * deviation)
    assert errors.relative("forces") == pytest.approx(relative, rel=1e-6)
    assert words in verdict(errors, MILLI_EV)
    assert f", {percent(relative)})" in verdict(errors, MILLI_EV)
    assert verdict(errors, MILLI_EV).endswith(": RMSE, and its share of the standard deviation of the labels.")


def test_the_sentence_has_all_kinds_in_their_units():
    errors = errors_of(0.05, stress_error=0.2)
    sentence = verdict(errors, KCAL)
    assert sentence.startswith("Predicts forces ")
    assert f"({0.05 * 23.060548:.2f} kcal/mol/Å, " in sentence
    assert "energies very well (0.231 kcal/mol/atom, " in sentence
    assert f"stress roughly ({0.2 / GPA:.1f} GPa, " in sentence
    assert sentence.count("\n") == 0


def test_few_or_equal_labels_have_no_grade():
    errors = errors_of(0.05, count=4)
    assert math.isnan(errors.relative("energy"))
    assert "energies with an RMSE of 10.0 meV/atom" in verdict(errors, MILLI_EV)
    frames = frames_of(molecules(12))
    frames.forces[:] = 0.0
    errors = Errors()
    errors.add(Predictions(np.arange(12), frames, frames.energy, frames.forces.astype(float) + 0.1, None))
    assert "forces with an RMSE of 100 meV/Å" in verdict(errors, MILLI_EV)
    assert verdict(Errors(), MILLI_EV) == "There are no labels to compare with."


def test_percentages():
    assert [percent(x) for x in (0.00341, 0.0512, 0.34, 14.0, math.nan)] == [
        "0.34 %",
        "5.1 %",
        "34 %",
        "1,400 %",
        "–",
    ]


def test_a_wreck_is_graded_by_the_labels_and_not_by_its_own_references():
    """Reference energies that are far off made the deviation of the labels large and the grade good."""
    structures = molecules(40)
    frames, random = frames_of(structures), np.random.default_rng(0)
    symbols = {1: -13.6, 6: -1030.0, 7: -1480.0, 8: -2042.0}
    of_atoms = np.array([symbols[int(z)] for z in frames.atomic_numbers])
    frames.energy[:] = np.add.reduceat(of_atoms, frames.offsets[:-1]) + frames.counts * random.normal(0, 0.1, 40)
    predicted = frames.energy + frames.counts * random.normal(0, 0.2, 40)
    found = []
    for shift in (0.0, 5.0):
        references = np.zeros(9)
        for number, energy in symbols.items():
            references[number] = energy * (1 + shift / 100)
        errors = Errors(references)
        errors.add(Predictions(np.arange(40), frames, predicted, frames.forces.astype(float), None))
        found.append(errors.relative("energy"))
        assert "energies no better than by their mean" in verdict(errors, MILLI_EV)
    assert found[0] == found[1] > 1.0
