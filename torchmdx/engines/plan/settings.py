"""Settings of the networks that engines know. A new setting, or a new value of one, is left to the exact model.

Whoever adds a setting to a configuration adds it here once engines compute it; until then no engine ignores it.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

# The activations that kernels compute, by their numbers in tensornet.h and one_launch_network.cuh.
ACTIVATIONS = ("silu", "ssp", "tanh", "sigmoid", "mish")
ANY = ()  # every value: sizes, lengths, and what engines take from the network itself
KNOWN: dict[str, tuple[Any, ...]] = {
    "num_channels": ANY,
    "num_layers": ANY,
    "num_radial": ANY,
    "radial_basis": ANY,
    "trainable_basis": ANY,
    "activation": ("swish", *ACTIVATIONS),
    "cutoff": ANY,
    "max_z": ANY,
    "group": ("O(3)", "SO(3)"),
    "num_head_layers": ANY,
    "head": ("scalar", "gated"),
    "messages": ("source", "target"),
    "self_message": (True, False),
    "readout_activation": (True, False),
    "charge_factor": (True, False),
    "num_charges": ANY,
    "charge_slack": ANY,
    "hardness": ("environment", "element"),
    "coulomb": ANY,
}


def activation_of(config: Any) -> str:
    """The name of a configuration's activation in kernels, where swish is silu."""
    return "silu" if config.activation == "swish" else config.activation


def unknown_setting(config: Any) -> str | None:
    """Why engines do not know a setting of a network of the package; None if they know all."""
    for field in fields(config):
        value, known = getattr(config, field.name), KNOWN.get(field.name)
        if known is None and (field.default is MISSING or value != field.default):
            return f"it has the setting {field.name}, which only the exact model knows, got {value!r}"
        if known and value not in known:
            return f"{field.name} must be {' or '.join(map(repr, known))}, got {value!r}"
    return None
