"""Which networks and machines each group of kernels serves: the reason why not, or None.

Every function takes the configuration of a TensorNet or TensorNet2, and says what the kernels need and what they got.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchmdx.engines.plan.clusters import CHANNELS, AtomClusters
from torchmdx.engines.plan.machine import Machine
from torchmdx.engines.plan.padding import padded_charges, power_of_two
from torchmdx.engines.plan.settings import activation_of

if TYPE_CHECKING:
    from torchmdx.models.tensornet import TensorNetConfig
    from torchmdx.models.tensornet2 import TensorNet2Config

MOST_CHANNELS = 256  # of Triton's kernels
MOST_SLOTS = 0xFFFF  # of edges: their numbers have 16 bits in kernels of clusters, and one number that means none
CLUSTER_CHARGES, CLUSTER_HEAD_LAYERS = 16, 7  # that charged_cluster.cu has room for
ONE_LAUNCH_LAYERS = 3  # that one_launch.cu and charged_launch.cu have room for
# Clusters of 8 blocks that run at the same time on an H200; with more, some would wait.
MOST_CHARGED_CLUSTERS = 15
MOST_CHARGED_ATOMS = 4  # of each
ROW_HEAD_CHANNELS = 8  # of all hidden layers of a head for which a program of one atom has memory, in units of C


def fused_kernels(config: TensorNetConfig) -> str | None:
    """The fused kernels in Triton."""
    if config.num_channels > MOST_CHANNELS:
        return f"num_channels must be at most {MOST_CHANNELS}, got {config.num_channels}"
    return None


def one_launch(config: TensorNetConfig) -> str | None:
    """sm90/one_launch.cu."""
    if config.num_channels > CHANNELS or config.num_layers > ONE_LAUNCH_LAYERS:
        wanted = f"it needs at most {ONE_LAUNCH_LAYERS} layers of at most {CHANNELS} channels"
        return f"{wanted}, got {config.num_layers} of {config.num_channels}"
    if 1 + config.num_head_layers > CLUSTER_HEAD_LAYERS:
        return f"it needs at most {CLUSTER_HEAD_LAYERS} hidden layers of the head, got {1 + config.num_head_layers}"
    return None


def atom_tiles(config: TensorNetConfig) -> str | None:
    """sm90/atom_tiles.cu."""
    if config.num_channels != CHANNELS or not config.num_layers:
        return f"it needs layers of {CHANNELS} channels, got {config.num_layers} of {config.num_channels}"
    if activation_of(config) != "silu":
        return f"it needs the activation silu, got {config.activation}"
    if config.group != "O(3)":
        return f"it needs the group O(3), got {config.group}"
    return None


def row_head(config: TensorNetConfig) -> str | None:
    """The head by one program per atom (triton/one_atom.py)."""
    channels, layers = power_of_two(config.num_channels), 1 + config.num_head_layers
    width = 2 * channels if config.head == "gated" else power_of_two(config.num_channels // 2)
    if layers * width > ROW_HEAD_CHANNELS * channels:
        return f"a head may have {ROW_HEAD_CHANNELS * channels} hidden channels in all, got {layers * width}"
    return None


def edge_maps(config: TensorNetConfig, machine: Machine) -> str | None:
    """sm90/edge_maps.cu."""
    if not machine.is_hopper:
        return f"they need a GPU of the architecture sm_90a, got {machine.name}"
    channels = power_of_two(config.num_channels)
    if channels != CHANNELS:
        return f"they need {CHANNELS} channels, got {channels}"
    if activation_of(config) != "silu":
        return f"they need the activation silu, got {config.activation}"
    return None


def charged_clusters(config: TensorNet2Config, machine: Machine) -> str | None:
    """sm90/charged_cluster.cu."""
    if not machine.is_hopper:
        return f"they need a GPU of the architecture sm_90, got {machine.name}"
    if config.num_channels != CHANNELS or not config.num_layers:
        return f"they need layers of {CHANNELS} channels, got {config.num_layers} of {config.num_channels}"
    if 1 + config.num_head_layers > CLUSTER_HEAD_LAYERS:
        return f"they need at most {CLUSTER_HEAD_LAYERS} hidden layers of the head, got {1 + config.num_head_layers}"
    if padded_charges(config.num_charges) != CLUSTER_CHARGES:
        return f"they need {CLUSTER_CHARGES} charges, got {config.num_charges}"
    if activation_of(config) != "silu" or config.group != "O(3)":
        return f"they need the activation silu and the group O(3), got {config.activation} and {config.group}"
    return None


def charged_launch(config: TensorNet2Config, machine: Machine) -> str | None:
    """sm90/charged_launch.cu."""
    if config.num_layers > ONE_LAUNCH_LAYERS:
        return f"it needs at most {ONE_LAUNCH_LAYERS} layers, got {config.num_layers}"
    return charged_clusters(config, machine)


def atom_clusters(atoms: int) -> AtomClusters | None:
    """How many atoms a cluster of charged_cluster.cu has; None where these are too many."""
    found = AtomClusters.choose(atoms, MOST_CHARGED_CLUSTERS) if atoms else None
    return found if found is not None and found.keep and found.per <= MOST_CHARGED_ATOMS else None
