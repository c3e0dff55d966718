"""Which networks and machines each group of kernels serves, and the reason why not."""

import pytest

from torchmdx import TensorNet2Config, TensorNetConfig
from torchmdx.engines.plan import machine_named, serves

H100, A100 = machine_named("H100"), machine_named("A100")


def test_the_usual_networks_are_served_everywhere():
    config, charged = TensorNetConfig(), TensorNet2Config()
    assert serves.fused_kernels(config) is serves.one_launch(config) is serves.row_head(config) is None
    assert serves.atom_tiles(config) is serves.edge_maps(charged, H100) is None
    assert serves.charged_clusters(charged, H100) is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(num_channels=256), None),
        (dict(num_channels=257), "num_channels must be at most 256, got 257"),
        (dict(messages="target"), None),
    ],
)
def test_fused_kernels(settings, reason):
    assert serves.fused_kernels(TensorNetConfig(**settings)) == reason


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(num_layers=3), None),
        (dict(num_layers=4), "it needs at most 3 layers of at most 128 channels, got 4 of 128"),
        (dict(num_channels=129), "it needs at most 3 layers of at most 128 channels, got 2 of 129"),
        (dict(num_head_layers=6), None),
        (dict(num_head_layers=7), "it needs at most 7 hidden layers of the head, got 8"),
        (dict(num_layers=0, head="gated", readout_activation=False, group="SO(3)", activation="mish"), None),
    ],
)
def test_one_launch(settings, reason):
    assert serves.one_launch(TensorNetConfig(**settings)) == reason


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(num_channels=64), "it needs layers of 128 channels, got 2 of 64"),
        (dict(activation="tanh"), "it needs the activation silu, got tanh"),
        (dict(group="SO(3)"), "it needs the group O(3), got SO(3)"),
        (dict(head="gated"), None),
    ],
)
def test_atom_tiles(settings, reason):
    assert serves.atom_tiles(TensorNetConfig(**settings)) == reason


def test_a_program_of_one_atom_has_memory_for_some_heads():
    assert serves.row_head(TensorNetConfig(num_head_layers=15)) is None
    reason = "a head may have 1024 hidden channels in all, got 1088"
    assert serves.row_head(TensorNetConfig(num_head_layers=16)) == reason
    assert serves.row_head(TensorNetConfig(head="gated", num_head_layers=3)) is None
    assert serves.row_head(TensorNetConfig(head="gated", num_head_layers=4)) is not None


def test_maps_of_edges():
    assert serves.edge_maps(TensorNet2Config(num_channels=100), H100) is None  # padded to 128
    wanted = "they need a GPU of the architecture sm_90a, got A100"
    assert serves.edge_maps(TensorNet2Config(), A100) == wanted


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(num_layers=0), "they need layers of 128 channels, got 0 of 128"),
        (dict(num_head_layers=6), None),
        (dict(num_head_layers=7), "they need at most 7 hidden layers of the head, got 8"),
        (dict(num_charges=9), None),  # padded to 16
        (dict(num_charges=8), "they need 16 charges, got 8"),
        (dict(group="SO(3)"), "they need the activation silu and the group O(3), got silu and SO(3)"),
    ],
)
def test_clusters_of_a_tensornet2(settings, reason):
    assert serves.charged_clusters(TensorNet2Config(**settings), H100) == reason
    assert serves.charged_clusters(TensorNet2Config(), A100) == "they need a GPU of the architecture sm_90, got A100"


def test_few_atoms_fit_into_clusters():
    assert serves.atom_clusters(0) is None
    assert [serves.atom_clusters(n).per for n in (1, 15, 16, 60)] == [1, 1, 2, 4]
    assert serves.atom_clusters(61) is None
