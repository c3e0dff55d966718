"""A setting that engines do not know is left to the exact model, which is asked by every engine's `why_not`."""

from dataclasses import dataclass, fields, replace

import pytest
import torch

from torchmdx import TensorNet2Config, TensorNetConfig
from torchmdx.engines.plan import Network, Workload, machine_named, plan
from torchmdx.engines.plan.settings import KNOWN, unknown_setting
from torchmdx.models import activations as models
from torchmdx.models.energy_head import HEADS
from torchmdx.models.qet import HARDNESSES, QETConfig


@dataclass(frozen=True, kw_only=True)
class Longer(TensorNetConfig):
    residual: bool = True
    names: tuple[str, ...] = ()


def test_every_setting_of_today_is_known():
    names = {field.name for config in (TensorNetConfig, TensorNet2Config, QETConfig) for field in fields(config)}
    assert names == set(KNOWN)
    assert set(KNOWN["activation"]) <= set(models.ACTIVATIONS)
    assert set(KNOWN["head"]) == set(HEADS)
    assert set(KNOWN["hardness"]) == set(HARDNESSES)
    for config in (
        TensorNetConfig(),
        TensorNetConfig(messages="target", head="gated"),
        TensorNet2Config(),
        QETConfig(hardness="element"),
    ):
        assert unknown_setting(config) is None


def test_a_new_setting_is_known_only_with_its_default():
    assert unknown_setting(Longer()) is None
    reason = "it has the setting residual, which only the exact model knows, got False"
    assert unknown_setting(Longer(residual=False)) == reason


def test_a_new_value_of_a_choice_is_not_known():
    config = TensorNetConfig()
    object.__setattr__(config, "messages", "both")  # as if the model knew it
    assert unknown_setting(config) == "messages must be 'source' or 'target', got 'both'"


def test_an_activation_of_the_model_alone_is_left_to_the_exact_model(monkeypatch):
    monkeypatch.setitem(models.ACTIVATIONS, "gelu", torch.nn.GELU)
    config, machine = TensorNetConfig(activation="gelu"), machine_named("CPU")
    found = plan(config, (), Workload.usual(9), "float32", machine)
    assert found.why.startswith("exact model: activation must be 'swish' or 'silu'")


@pytest.mark.parametrize("card", ["H100", "CPU"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_no_engine_but_the_exact_model_takes_it(card, precision):
    config, work, machine = TensorNetConfig(), Workload.usual(9), machine_named(card)
    network = replace(Network.of_config(config), unknown="it has the setting residual")
    found = plan(config, (), work, precision, machine, network)
    assert found.engine == "exact"
    assert precision == "float64" or found.why == "exact model: it has the setting residual"
    assert not network.has_pairs
    for name in ("fused", "C", "pairs"):
        with pytest.raises(ValueError, match=f"engine '{name}' can't evaluate this potential here"):
            plan(config, (), work, precision, machine, network, engine=name)
