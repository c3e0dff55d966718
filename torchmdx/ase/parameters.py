"""The parameters of the ASE calculator: which can be changed, and errors for others."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

# Parameters that `Calculator.set` changes, and those for which a new calculator is needed.
CHANGEABLE = ("charge", "mode", "max_force_spread", "max_uncertainty", "spread_file")
DEFAULTS = dict(
    dtype="float32", mode="auto", engine=None, devices=None, charge=None, max_force_spread=None, spread_file=None,
    max_uncertainty=None, uncertainty=None, coulomb_cutoff=None, coulomb=None, coulomb_accuracy=None, head=None,
    max_memory=None,
)  # fmt: skip
FIXED = (
    "potential", "dtype", "engine", "device", "devices", "coulomb_cutoff", "coulomb", "coulomb_accuracy", "head",
    "uncertainty", "max_memory",
)  # fmt: skip


# The parameters by names that calculators of other packages give them.
ELSEWHERE = {
    "potential": (
        "model", "models", "model_path", "model_paths", "model_name", "checkpoint", "checkpoint_path", "path",
    ),
    "dtype": ("default_dtype", "precision", "torch_dtype"),
    "device": ("use_device", "default_device"),
    "charge": ("total_charge", "default_charge"),
}  # fmt: skip


def changeable(name: str) -> Any:
    """A property of the calculator: a parameter that is changed by `set`."""
    return property(lambda self: self.parameters[name], lambda self, value: self.set(**{name: value}))


def require_known(names: Iterable[str], known: Iterable[str] = (*CHANGEABLE, *FIXED)) -> None:
    """Raises TypeError for an argument that is none of the known ones, with the one that is probably meant."""
    known = tuple(dict.fromkeys(known))
    for name in names:
        meant = next((ours for ours, theirs in ELSEWHERE.items() if name in theirs and ours in known), None)
        near = [meant] if meant else difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}=?" if near else ""
        raise TypeError(f"argument must be one of {', '.join(known)}, got {name!r}{hint}")


def require_changeable(names: Iterable[str]) -> None:
    """Raises TypeError for a name that is no parameter, ValueError for a parameter that cannot be changed."""
    for name in names:
        if name in FIXED:
            raise ValueError(
                f"{name} can't be changed by set, which takes {', '.join(CHANGEABLE)}: make a new torchmdx.Calculator"
            )
        if name not in CHANGEABLE:
            near = difflib.get_close_matches(str(name), (*CHANGEABLE, *FIXED), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"parameter must be one of {', '.join(CHANGEABLE)}, got {name!r}{hint}")
