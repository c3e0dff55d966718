"""Requests and the record of a distillation."""

import json

import pytest
import torch
from ase.build import molecule

from torchmdx import System
from torchmdx.training.distillation.settings import RECORD, DistillRecord, DistillSettings, Structures


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(minutes=0.0), "minutes must be > 0 and finite, got 0.0"),
        (dict(cutoff=float("nan")), "cutoff must be > 0 and finite, got nan"),
        (dict(batch_size=0), "batch size must be >= 1, got 0"),
        (dict(start="fast.safetensors", channels=32), "has its own network, got fast.safetensors and channels 32"),
        (dict(frames=2), "frames must be >= 3, got 2"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        DistillSettings(**settings)


def test_a_record_continues_with_its_choices_and_refuses_another_request(tmp_path):
    record = DistillRecord(tmp_path / "one", {"request": {"minutes": 5.0, "seed": 0}})
    record["schedule"] = {"frames": 3}
    again = DistillRecord(tmp_path / "one", {"request": {"minutes": 5.0, "seed": 0}})
    assert again.continued
    assert not record.continued
    assert "schedule" in again
    assert again["schedule"] == {"frames": 3}
    with pytest.raises(FileExistsError, match=r"another request: \{'seed': 0\}, got \{'seed': 1\}; --overwrite"):
        DistillRecord(tmp_path / "one", {"request": {"minutes": 5.0, "seed": 1}})
    (tmp_path / "one" / RECORD).write_text(json.dumps({"format": "else"}))
    with pytest.raises(ValueError, match="must be the record of a distillation"):
        DistillRecord(tmp_path / "one", {})


def test_structures_are_named_where_the_potential_does_not_know_an_element(organic):
    water, silane = (System.from_ase(molecule(name)) for name in ("H2O", "SiH4"))
    with pytest.raises(ValueError, match=r"silane.xyz: organic-1 does not know Si \(atom 0\)"):
        Structures(organic, [water, silane], ["water.xyz", "silane.xyz"])


def test_what_is_tested_is_held_out_alike_and_affordable(organic):
    water, methane = (System.from_ase(molecule(name)) for name in ("H2O", "CH4"))
    cell = System.create(water.positions, water.atomic_numbers, 8.0 * torch.eye(3), True)
    large = System.create(torch.rand(500, 3) * 100, torch.ones(500, dtype=torch.int64))
    structures = Structures(organic, [water, large, cell, methane], ["w", "l", "c", "m"])
    assert structures.tested([3]) == [3, 0]
    assert structures.tested([1]) == [1], "one structure is tested, however large"
    assert structures.tested([2]) == [2], "a periodic one alone"
