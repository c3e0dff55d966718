"""Potentials of matgl: energies, forces and stress of matgl itself, every form of file, and clear refusals."""

import os
import pickle
import shutil

import matgl_folders
import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from matgl_folders import DATA, NAMES, description, energy_of, frames, state, write
from released_files import released, upstream

import torchmdx
from torchmdx import Batch, evaluate
from torchmdx.checkpoints.save_load import read
from torchmdx.commands import cli

RELEASED = ("TensorNet-MatPES-PBE-v2025.1-PES", "TensorNet-MatPES-r2SCAN-v2025.1-PES", "TensorNet-ANI-1x-Subset-PES")


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_matgl(name):
    potential = torchmdx.load(DATA / name, dtype=torch.float64)
    for frame in frames(name):
        result = evaluate(potential, Batch.from_systems([matgl_folders.structure(frame)]), stress=True)
        energy, forces, stress = matgl_folders.errors(result, frame)
        assert energy < 2e-6, frame["name"]
        assert forces < 1e-6, frame["name"]
        assert stress < 1e-5, frame["name"]


@pytest.mark.parametrize("name", RELEASED)
def test_results_of_a_released_potential_are_those_of_matgl(name):
    potential = torchmdx.load(released(name), dtype=torch.float64)
    for frame in upstream(name):
        result = evaluate(potential, Batch.from_systems([matgl_folders.structure(frame)]), stress=True)
        energy, forces, stress = matgl_folders.errors(result, frame)
        assert (energy < 2e-6, forces < 1e-6, stress < 1e-5) == (True, True, True), frame["name"]


def test_a_file_written_from_it_gives_the_same_energies(tmp_path):
    reading = read(DATA / "bessel-2")
    torchmdx.save(reading.potential, tmp_path / "a.safetensors", report=reading.report)
    loaded = torchmdx.load(tmp_path / "a.safetensors", dtype=torch.float64)
    frame = frames("bessel-2")[0]
    assert energy_of(loaded, frame) == pytest.approx(frame["energy"], abs=1e-9)
    assert loaded.card.elements == reading.potential.card.elements


def test_messages_of_own_tensors_are_kept_in_a_file_and_shown(tmp_path, capsys):
    told = description()
    told["kwargs"]["model"] |= {"@module": "matgl.models._tensornet_dgl", "@model_version": 1}
    folder, file = write(tmp_path / "dgl", told, state()), tmp_path / "dgl.safetensors"
    assert cli.main(["convert", str(folder), str(file)]) == 0
    assert "_tensornet_dgl, version 1: messages carry the atom's own tensors" in capsys.readouterr().out
    loaded, frame = torchmdx.load(file, dtype=torch.float64), frames("gauss")[0]
    assert loaded.config.messages == "target"
    assert energy_of(loaded, frame) == energy_of(torchmdx.load(folder, dtype=torch.float64), frame)
    for source in (folder, file):
        assert cli.main(["info", str(source)]) == 0
        assert "gated head, messages of the atom's own tensors\n" in capsys.readouterr().out


def test_the_card_lists_the_elements_and_others_are_refused():
    potential = torchmdx.load(DATA / "gauss")
    assert potential.card.elements == (1, 3, 6, 8, 9, 11, 14, 15, 17, 26, 29)
    atoms = bulk("Al")
    atoms.calc = torchmdx.Calculator(potential, device="cpu")
    with pytest.raises(ValueError, match=r"gauss does not know Al \(atom 0\): it was trained on H, Li, "):
        atoms.get_potential_energy()


def test_the_calculator_takes_a_folder():
    atoms = bulk("Si", cubic=True)
    atoms.rattle(0.1, seed=1)
    atoms.calc = torchmdx.Calculator(DATA / "bessel-2", device="cpu", dtype="float64")
    e, f = atoms.get_potential_energy(), atoms.get_forces()
    atoms.positions[0, 0] += 1e-4
    up = atoms.get_potential_energy()
    atoms.positions[0, 0] -= 2e-4
    assert f[0, 0] == pytest.approx((atoms.get_potential_energy() - up) / 2e-4, abs=1e-6)
    assert np.isfinite(e)


def test_the_total_charge_has_no_effect():
    potential, water = torchmdx.load(DATA / "gauss", dtype=torch.float64), molecule("H2O")
    energies = [
        float(evaluate(potential, Batch.from_systems([torchmdx.System.from_ase(water, charge=q)])).energy)
        for q in (0, 1)
    ]
    assert energies[0] == energies[1]


class Harmful:
    def __reduce__(self):
        return (os.system, ("true",))


def test_no_code_of_a_folder_is_run(tmp_path):
    folder = write(tmp_path / "harmful", description(), state())
    torch.save({"data_mean": Harmful()}, folder / "state.pt")
    with pytest.raises(ValueError, match="more than tensors, numbers and text .*torchmdx never runs code"):
        torchmdx.load(folder)
    (folder / "model.pt").write_bytes(pickle.dumps(Harmful()))  # never opened
    shutil.copy(DATA / "gauss" / "state.pt", folder / "state.pt")
    assert torchmdx.load(folder).config.head == "gated"


def test_a_folder_without_weights_is_explained(tmp_path):
    folder = write(tmp_path / "half", description(), state())
    (folder / "state.pt").unlink()
    with pytest.raises(ValueError, match=r"has a model.json of matgl but no state.pt, which holds the weights"):
        torchmdx.load(folder)
