"""What options of `torchmdx md` may be, alone and together, with each engine."""

from __future__ import annotations

import argparse
import math
from typing import Any

BAROSTATS = ("isotropic", "anisotropic")
DEFAULT_THERMOSTAT = "langevin"
PARAMETERS = {"friction": "1/ps", "relaxation": "ps"}  # options for parameters of thermostats
LARGEST_SEED = 2**32 - 1
# Options that must be > 0 and finite if they are given, with their units.
POSITIVE = {
    "timestep": "fs", "time": "ps", "hydrogen_mass": "amu", **PARAMETERS, "coulomb_cutoff": "Å",
    "max_force_spread": "eV/Å", "max_uncertainty": "eV", "max_force_difference": "eV/Å",
}  # fmt: skip
INTERVALS = ("save_every", "log_every", "checkpoint_every")
USED_BY = dict.fromkeys(("thermostat", *PARAMETERS), ("nvt", "npt")) | dict.fromkeys(("pressure", "barostat"), ("npt",))
ONLY_OURS = (
    *("replicas", "temperatures", "exchange_every", "exchange_on_device", "restraints", "devices", "trajectory"),
    *("save_velocities", "relaxation", "max_force_difference", "small_steps"),
)
# What an engine accepts of options that only the other one has, or takes more values of.
LIMITED: dict[str, dict[str, tuple[Any, ...]]] = {
    "openmm": {"thermostat": (None, DEFAULT_THERMOSTAT), **dict.fromkeys(ONLY_OURS, (None,))},
    "torchmdx": {
        "barostat": (None, BAROSTATS[0]), "platform": (None,), "transport": ("auto",), "audit_every": (0,),
        "minimize": (False,),
    },
}  # fmt: skip


def require_consistent(options: argparse.Namespace) -> None:
    """Raises ValueError for what the engine does not have, and for options of the start of a run with --restart."""
    engine = options.engine
    for name, accepted in LIMITED[engine].items():
        if (value := getattr(options, name)) not in accepted:
            what, got = (f"{option_of(name)} {value}", "it") if len(accepted) > 1 else (option_of(name), value)
            other = next(one for one in LIMITED if one != engine)
            remedy = "; `torchmdx relax` minimizes a structure" if name == "minimize" else ""
            raise ValueError(f"{what} needs --engine {other}, got {got} with --engine {engine}{remedy}")
    for name in ("overwrite", "minimize", "velocities"):
        if options.restart and getattr(options, name):
            raise ValueError(f"--restart continues a run, got it with --{name}")


def option_of(name: str) -> str:
    """An option by its name in a Namespace."""
    return f"--{name.replace('_', '-')}"


def require_ranges(options: argparse.Namespace) -> None:
    """Raises ValueError for values out of range, and for options that the ensemble does not use."""
    zero = {"skin": "Å"} | ({"temperature": "K"} if options.ensemble == "nve" else {})
    for name, unit in ({"temperature": "K"} | POSITIVE | zero).items():
        value, least = getattr(options, name), ">=" if name in zero else ">"
        if value is not None and not (math.isfinite(value) and (value > 0 or (value == 0 and name in zero))):
            raise ValueError(f"{option_of(name)} must be finite and {least} 0 {unit}, got {value}")
    for name in ("steps", *INTERVALS):
        if (value := getattr(options, name)) is not None and value < 1:
            raise ValueError(f"{option_of(name)} must be >= 1 step, got {value}")
    if options.audit_every < 0:
        raise ValueError(f"--audit-every must be >= 0 evaluations, got {options.audit_every}")
    if options.seed is not None and not 0 <= options.seed <= LARGEST_SEED:
        raise ValueError(f"--seed must be between 0 and {LARGEST_SEED}, got {options.seed}")
    if options.pressure is not None and not math.isfinite(options.pressure):  # negative for a stretched liquid
        raise ValueError(f"--pressure must be a finite number of bar, got {options.pressure}")
    for name, ensembles in USED_BY.items():
        if (value := getattr(options, name)) is not None and options.ensemble not in ensembles:
            needs, got = " or ".join(ensembles), f"--{name} {value} with --ensemble {options.ensemble}"
            raise ValueError(f"--{name} needs --ensemble {needs}, got {got}")
