"""What a potential says of itself: name, elements, charges; and what is said of structures outside of that."""

import json
import warnings

import pytest
import torch
from ase import Atoms
from safetensors import safe_open

import torchmdx
from torchmdx.models.model_card import Card

ORGANIC = Card(
    name="small-1",
    description="for tests",
    licence="MIT",
    elements=(8, 1, 6),
    charges=(1, 0, -1),
    closed_shell=True,
)


def test_a_card_survives_text_and_says_its_facts_in_order():
    again = Card.from_text(ORGANIC.to_text())
    assert again == ORGANIC
    assert (again.elements, again.charges) == ((1, 6, 8), (-1.0, 0.0, 1.0))
    assert ORGANIC
    assert not Card()
    assert Card.from_text("{}") == Card()


def test_facts_of_a_later_version_are_left_out():
    later = json.dumps(json.loads(ORGANIC.to_text()) | {"citation": "someone"})
    assert Card.from_text(later) == ORGANIC


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"elements": [0]}, "elements of a potential must be atomic numbers from 1 to 118"),
        ({"elements": [119]}, "must be atomic numbers from 1 to 118"),
        ({"elements": []}, "must be atomic numbers"),
        ({"elements": [True]}, "must be atomic numbers"),
        ({"elements": ["C"]}, "must be atomic numbers"),
        ({"charges": [float("inf")]}, "charges of a potential must be finite numbers"),
        ({"charges": ["+"]}, "charges of a potential must be finite numbers"),
        ({"name": 3}, "name of a potential must be text, got 3"),
        ({"closed_shell": 1}, "closed_shell of a potential must be True or False, got 1"),
        ({"periodic": 0}, "periodic of a potential must be True, False or None, got 0"),
    ],
)
def test_wrong_facts_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Card.from_text(json.dumps(values))


@pytest.mark.parametrize("text", ["", "[]", "3", "{"])
def test_what_is_no_card_is_refused(text):
    with pytest.raises(ValueError, match="must be a JSON object"):
        Card.from_text(text)


def test_elements_that_were_not_trained_are_all_named():
    ORGANIC.require_elements([1, 6, 8, 1])
    message = r"small-1 does not know Si \(atom 1\), Fe \(atom 3\): it was trained on H, C, O"
    with pytest.raises(ValueError, match=message):
        ORGANIC.require_elements([1, 14, 14, 26])
    Card().require_elements([14, 92])


@pytest.mark.parametrize(
    ("numbers", "charge", "words"),
    [
        ([8, 1, 1], 0.0, []),
        ([8, 1, 1, 1], 1.0, []),
        ([8, 1], -1.0, []),
        ([8, 1, 1, 1], 0.0, ["11 electrons at a total charge of +0 e"]),
        ([8, 1, 1], 2.0, ["total charges of -1, 0, +1 e, got +2 e"]),
        ([8, 1, 1, 1], 3.0, ["got +3 e"]),
        ([8, 1, 1], 3.0, ["got +3 e", "7 electrons"]),
        ([8, 1, 1], 0.5, ["got +0.5 e", "9.5 electrons"]),
    ],
)
def test_charges_and_electrons_that_were_not_trained_are_doubted(numbers, charge, words):
    found = ORGANIC.doubts(numbers, charge)
    assert len(found) == len(words)
    for doubt, word in zip(found, words, strict=True):
        assert word in doubt
    assert Card().doubts(numbers, charge) == []


def test_electrons_of_a_unit_cell_are_no_shell():
    crystals, molecules = (Card(closed_shell=True, periodic=periodic) for periodic in (True, False))
    assert crystals.doubts([29], 0.0, periodic=True) == []
    assert len(crystals.doubts([29], 0.0)) == 1
    assert len(molecules.doubts([29], 0.0, periodic=True)) == 2


@pytest.mark.parametrize("trained", [True, False, None])
def test_periodic_structures_are_doubted_after_training_on_molecules(make_potential, ethanol, tmp_path, trained):
    potential = make_potential()
    potential.card = Card(name="small-1", periodic=trained)
    torchmdx.save(potential, tmp_path / "m.safetensors")
    ethanol.calc = torchmdx.Calculator(tmp_path / "m.safetensors", device="cpu")
    ethanol.get_potential_energy()  # a molecule raises no warning, which would be an error
    ethanol.center(vacuum=5)
    ethanol.pbc = (True, False, False)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        ethanol.get_potential_energy()
        ethanol.rattle()
        ethanol.get_potential_energy()
    words = "small-1 was trained on molecules in vacuum, without any periodic structure, got a periodic one"
    assert [str(warning.message).startswith(words) for warning in seen] == [True] * (trained is False)


def test_checkpoints_keep_the_card(make_potential, tmp_path):
    potential = make_potential()
    torchmdx.save(potential, tmp_path / "plain.safetensors")
    assert torchmdx.load(tmp_path / "plain.safetensors").card == Card()
    assert b"card" not in (tmp_path / "plain.safetensors").read_bytes()[:2000].split(b"network")[0]
    potential.card = ORGANIC
    torchmdx.save(potential, tmp_path / "named.safetensors")
    found = torchmdx.load(tmp_path / "named.safetensors", dtype=torch.float32)
    assert found.card == ORGANIC
    assert found.with_priors([]).card == ORGANIC
    with safe_open(tmp_path / "named.safetensors", framework="pt") as file:
        assert file.metadata()["format_version"] == "2"


def test_a_damaged_card_is_named_with_its_file(make_potential, tmp_path):
    potential, path = make_potential(), tmp_path / "model.safetensors"
    potential.card = ORGANIC
    torchmdx.save(potential, path)
    content = path.read_bytes()
    assert content.count(b"[1, 6, 8]") == 1
    path.write_bytes(content.replace(b"[1, 6, 8]", b"[1, 6, 0]"))
    with pytest.raises(ValueError, match=r"model.safetensors': elements of a potential must be"):
        torchmdx.load(path)


@pytest.fixture
def organic(make_potential):
    potential = make_potential()
    potential.card = ORGANIC
    return potential


def test_every_way_to_evaluate_refuses_elements_that_were_not_trained(organic):
    silane = Atoms("SiH4", [[0, 0, 0], [0.8, 0.8, 0.8], [-0.8, -0.8, 0.8], [0.8, -0.8, -0.8], [-0.8, 0.8, -0.8]])
    system, message = torchmdx.System.from_ase(silane), r"does not know Si \(atom 0\): it was trained on H, C, O"
    with pytest.raises(ValueError, match=message):
        torchmdx.evaluate(organic, system)
    with pytest.raises(ValueError, match=message):
        torchmdx.CapturedStep(organic, system)
    silane.calc = torchmdx.Calculator(organic, device="cpu")
    with pytest.raises(ValueError, match=message):
        silane.get_potential_energy()


def test_a_step_that_takes_another_structure_looks_at_its_elements(organic):
    water = torchmdx.System.create([[0, 0, 0], [0.9, 0, 0], [0, 0.9, 0]], [8, 1, 1])
    sulfide = torchmdx.System.create([[0, 0, 0], [0.9, 0, 0], [0, 0.9, 0]], [16, 1, 1])
    step = torchmdx.CapturedStep(organic, water)
    with pytest.raises(ValueError, match=r"does not know S \(atom 0\)"):
        step.assign(sulfide)
    step.assign(water)


def test_the_calculator_warns_of_a_charge_once_a_composition(organic, recwarn):
    ammonium = Atoms("OH3", [[0, 0, 0], [0.9, 0, 0.3], [-0.5, 0.8, 0.3], [-0.5, -0.8, 0.3]])
    ammonium.calc = torchmdx.Calculator(organic, device="cpu")
    with pytest.warns(UserWarning, match=r"closed shells, got 11 electrons .* is the charge right\?"):
        ammonium.get_potential_energy()
    for _ in range(3):
        ammonium.rattle(0.01, seed=1)
        ammonium.get_forces()  # warnings are errors here
    ammonium.info["charge"] = 1
    ammonium.get_forces()
    ammonium.info["charge"] = 3
    with pytest.warns(UserWarning, match=r"got \+3 e"):
        ammonium.get_forces()


def test_padding_of_steps_is_made_of_elements_that_the_potential_knows(make_potential):
    from torchmdx.step.padding import padded

    copper = torchmdx.System.create([[0, 0, 0], [2.5, 0, 0]], [29, 29])
    potential = make_potential()
    potential.card = Card(elements=(29,))
    batch = padded(copper, 8, potential.cutoff)
    potential.require_elements(batch.atomic_numbers)
    assert batch.num_atoms == 8
    empty = padded(torchmdx.System.create([], []), 8, potential.cutoff)
    assert empty.num_atoms == 8
