"""Options of `torchmdx md --engine torchmdx`: what they become, and what is refused."""

import argparse
import json

import numpy as np
import pytest
import torch

from torchmdx.dynamics.barostat import CellRescaling
from torchmdx.dynamics.restraints import Torsion
from torchmdx.dynamics.run.device_options import features_of, temperatures_of


def options(**given) -> argparse.Namespace:
    names = dict.fromkeys(
        (
            *("replicas", "temperature", "temperatures", "exchange_every", "exchange_on_device"),
            *("restraints", "devices", "device"),
        )
    )
    return argparse.Namespace(**{**names, **given})


def test_temperatures_are_one_or_a_geometric_series():
    np.testing.assert_allclose(temperatures_of(options(replicas=2), 310.0), [310, 310])
    found = temperatures_of(options(replicas=3, temperatures="200:800"), 300.0)
    np.testing.assert_allclose(found, [200, 400, 800])


def test_restraints_come_from_a_file(tmp_path):
    table = {"kind": "torsion", "atoms": [0, 1, 2, 3], "reference": 60, "stiffness": 2}
    (tmp_path / "a.json").write_text(json.dumps([table]))
    found = features_of(options(restraints=str(tmp_path / "a.json")), None)
    assert found["restraints"] == [Torsion((0, 1, 2, 3), 60, 2)]
    assert features_of(options(), None)["restraints"] == ()


@pytest.mark.parametrize("content", ["{}", "[]", "[1", "[{}]", '[{"kind": "torsion"}]'])
def test_files_without_restraints_are_refused_by_name(tmp_path, content):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(ValueError, match=r"bad\.json"):
        features_of(options(restraints=str(tmp_path / "bad.json")), None)


def test_an_exchange_needs_temperatures():
    with pytest.raises(ValueError, match="--exchange-every needs --temperatures, got 2 without it"):
        features_of(options(exchange_every=2), None)


def test_a_pressure_makes_a_barostat():
    assert features_of(options(), 20.0)["barostat"] == CellRescaling(pressure=20.0)
    assert features_of(options(), None)["barostat"] is None


def test_exchanges_on_a_device_need_one_gpu(monkeypatch):
    monkeypatch.setattr("torchmdx.dynamics.run.device_options.choose_device", lambda *given: torch.device("cuda"))
    wanted = dict(exchange_on_device=True, exchange_every=5, temperatures="300:310")
    assert features_of(options(**wanted), None)["exchange_on_device"] is True
    assert features_of(options(), None)["exchange_on_device"] is False
    with pytest.raises(ValueError, match="--exchange-on-device needs one GPU, got --devices 2"):
        features_of(options(**wanted, devices=2), None)
    with pytest.raises(ValueError, match="--exchange-on-device needs --exchange-every, got it without"):
        features_of(options(exchange_on_device=True), None)


def test_devices_are_the_first_gpus():
    assert features_of(options(), None)["devices"] == 1
    assert features_of(options(devices=3, device="cuda"), None)["devices"] == 3
    with pytest.raises(ValueError, match="--devices 2 takes the first GPUs, got --device cuda:1"):
        features_of(options(devices=2, device="cuda:1"), None)
