"""What is plain from the numbers is said: units, signs, another zero of energy, unknown elements; and where it ran."""

import subprocess

import numpy as np
import pytest
import torch
from frame_sets import frames_of, molecules

from torchmdx.report import environment as module
from torchmdx.report.environment import commit, environment
from torchmdx.report.errors import Errors
from torchmdx.report.hints import hints
from torchmdx.report.predictions import Predictions


def errors_of(potential, change_labels=lambda frames: None) -> Errors:
    """Good predictions, against labels that were changed."""
    frames = frames_of(molecules(16), potential)
    random = np.random.default_rng(1)
    energy = frames.energy + random.normal(0, 0.005, len(frames))
    forces = frames.forces + random.normal(0, 0.01, frames.forces.shape)
    change_labels(frames)
    errors = Errors()
    errors.add(Predictions(np.arange(len(frames)), frames, energy, forces.astype(float), None))
    return errors


def scaled(factor):
    def change(frames):
        frames.forces[:] *= factor

    return change


def test_good_predictions_need_no_hint(potential):
    assert hints(errors_of(potential), potential.reference_energies.tolist()) == []


@pytest.mark.parametrize(
    ("factor", "text"),
    [
        (1 / 51.42, "as if they were in hartree/bohr but read as eV/Å."),
        (51.42, "as if they were in eV/Å but read as hartree/bohr."),
        (23.06, "as if they were in kcal/mol/Å but read as eV/Å."),
        (96.485, "as if they were in kJ/mol/Å but read as eV/Å."),
        (1000, "as if they were in meV/Å but read as eV/Å."),
        (0.529, "as if they were in eV/bohr but read as eV/Å."),
        (-1.0, "gradients of the energy, which have the opposite sign."),
    ],
)
def test_forces_in_other_units_are_seen(potential, factor, text):
    (hint,) = hints(errors_of(potential, scaled(factor)), [])
    assert hint.endswith(text)


def test_bad_forces_are_no_matter_of_units(potential):
    def noise(frames):
        frames.forces[:] = np.random.default_rng(0).normal(0, 20, frames.forces.shape)

    assert hints(errors_of(potential, noise), []) == []
    assert hints(errors_of(potential, scaled(1.3)), []) == []


def test_another_zero_of_energy_is_seen(potential):
    def shift(frames):
        frames.energy[:] -= 0.25 * frames.counts

    (hint,) = hints(errors_of(potential, shift), [])
    assert "All energies are off by about the same, 250" in hint
    assert "labels of another method" in hint


def test_elements_without_a_reference_energy_are_named(potential):
    references = np.zeros(36)
    references[[1, 6]] = -1.0
    (hint,) = hints(errors_of(potential), references.tolist())
    assert "none for N, O: it may never have been trained on N, O" in hint


def test_missing_labels_are_named(potential):
    def nothing(frames):
        frames.energy[:] = np.nan
        frames.forces[:] = np.nan

    assert hints(errors_of(potential, nothing), []) == [
        "There are no labels of forces.",
        "There are no labels of energies.",
    ]


def test_the_environment_says_what_ran(monkeypatch):
    monkeypatch.setattr(module.sys, "argv", ["/usr/bin/torchmdx", "evaluate", "my model.ckpt"])
    found = environment("cpu")
    assert found["command"] == "torchmdx evaluate 'my model.ckpt'"
    threads = torch.get_num_threads()
    assert found["device"] == ("CPU, 1 thread" if threads == 1 else f"CPU, {threads} threads")
    assert {"torchmdx", "Python", "numpy", "processor", "platform"} <= found.keys()
    assert found["date"].endswith(" UTC")


def git(folder, *arguments):
    settings = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *settings, "-C", str(folder), *arguments], check=True, capture_output=True)


def test_the_commit_is_that_of_a_checkout_only(tmp_path, monkeypatch):
    package = tmp_path / "checkout" / "torchmdx"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(module.torchmdx, "__file__", str(package / "__init__.py"))
    assert commit() is None
    git(package.parent, "init", "-q")
    assert commit() is None  # the package only lies in a repository
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-q", "-m", "m")
    clean = commit()
    assert len(clean) == 40
    (package / "__init__.py").write_text("changed")
    assert commit() == f"{clean}-dirty"
    monkeypatch.setenv("PATH", "")
    assert commit() is None


def contradicting(sign_of_energies, sign_of_forces):
    """Predictions that follow, or run against, labels of energies and forces."""
    frames, random = frames_of(molecules(40)), np.random.default_rng(0)
    frames.energy[:] = frames.counts * random.normal(0, 0.1, 40)
    frames.forces[:] = random.normal(0, 1.0, frames.forces.shape)
    errors = Errors()
    forces = sign_of_forces * frames.forces.astype(float) * 0.9
    errors.add(Predictions(np.arange(40), frames, sign_of_energies * frames.energy * 0.8, forces, None))
    return errors


def test_labels_that_contradict_each_other_are_seen():
    """A potential that has learned gradients instead of forces predicts energies upside down."""
    for signs in ((-1, 1), (1, -1)):
        (hint,) = hints(contradicting(*signs), [])
        assert "energies and forces of the labels contradict each other" in hint
        assert "may be gradients" in hint
    assert hints(contradicting(1, 1), []) == []
    (hint,) = hints(contradicting(-1, -1), [])
    assert "opposite sign of the predictions" in hint
