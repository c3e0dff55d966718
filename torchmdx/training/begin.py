"""The beginning of a run: checks of the data, settings that the data decide, and the files of a new run."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchmdx
from torchmdx.datasets.data_checks import check_data
from torchmdx.datasets.findings import Finding, table
from torchmdx.datasets.splits import Split, remarks_on_copies, write_split
from torchmdx.datasets.store import Store
from torchmdx.models.potential import Potential
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.runtime.files import write_whole
from torchmdx.training.config import Config
from torchmdx.training.config_file import write_text
from torchmdx.training.heads import heads_of
from torchmdx.training.loop import BEST, LAST, STATE, Trainer
from torchmdx.training.open_data import require_usable, say
from torchmdx.training.prepare import describe_references
from torchmdx.training.stress_weight import with_stress_weight

CONFIG, SPLIT, ENVIRONMENT = "config.yaml", "split.json", "environment.json"


def with_data(config: Config, store: Store, parts: Split, resume: bool) -> Config:
    """The configuration with the settings that the data decide; the data of a new run are checked.

    Raises:
        ValueError: For data that do not fit, and for labels that cannot be right, unless data.checks allows them.
    """
    first = os.environ.get("RANK", "0") == "0"
    config, said = with_stress_weight(config, store, parts["train"])
    if said is not None and first:
        say(said)
    require_usable(config, store, parts)
    if not resume:
        heads = heads_of(config, store)
        for head, own in [("", parts)] if heads is None else heads.every(parts):
            if len(own["train"]):
                require_plausible(config.data.checks, store, own, first, f", head {head}" if head else "")
    return config


def require_plausible(mode: str, store: Store, parts: Split, loud: bool = True, of: str = "") -> None:
    """Prints what is wrong with the data. Raises ValueError for what is extreme, if mode is "refuse".

    Args:
        of: Which of the data, for messages.
    """
    if mode == "off":
        return
    found = check_data(store, parts)
    if found and loud:
        say(f"checks of {store.path}{of}:")
        for line in table(found, store):
            say(f"  {line}")
    extreme = [one for one in found if one.extreme]
    if extreme and mode == "refuse":
        raise ValueError(
            f"the data{of} must be plausible, got {'; '.join(map(_named, extreme))}. Correct or remove these frames "
            "(the table above names them), or train nevertheless with data.checks: warn"
        )


def _named(one: Finding) -> str:
    count = f" of {len(one.frames)} frame{'s' * (len(one.frames) != 1)}" if one.frames else ""
    return f"{one.check}{count}: {one.text}"


def begin(
    config: Config, directory: Path, store: Store, parts: Split, potential: Potential, device: torch.device
) -> None:
    """Writes the files of a new run, and says where its reference energies come from."""
    remarks = remarks_on_copies(store, parts)
    if config.data.checks != "off":  # which have warned
        remarks = [text for text in remarks if not text.startswith("warning")]
    for text in (describe_references(config, store, potential), doubt_about_damping(config), *remarks):
        if text is not None:
            say(text)
    directory.mkdir(parents=True, exist_ok=True)
    for name in (STATE, BEST, LAST):
        (directory / name).unlink(missing_ok=True)
    write_whole(directory / CONFIG, write_text(config).encode())
    write_split(directory / SPLIT, parts, store)
    write_whole(directory / ENVIRONMENT, (json.dumps(environment(device), indent=1) + "\n").encode())


def doubt_about_damping(config: Config) -> str | None:
    """A warning about a new network whose Coulomb energy is damped where the network does not reach."""
    if config.finetune.checkpoint is not None:
        return None
    reach = float(config.model.network().cutoff)
    for prior in config.model.prior_configs():
        if isinstance(prior, CoulombConfig) and prior.charges == "predicted" and prior.damped_up_to > reach:
            return (
                f"warning: the prior coulomb damps pairs up to {prior.damped_up_to:g} Å, but the cutoff of the network "
                f"is {reach:g} Å: nothing describes the pairs between, and charges come out too small. Take a damping "
                "of about the distance of neighbouring atoms, or a longer cutoff"
            )
    return None


def record_changes(config: Config, trainer: Trainer, directory: Path) -> None:
    """Prints the settings that change as a run is resumed, and writes them to config.yaml; its state keeps them all."""
    change = trainer.changes[-1] if trainer.changes else None
    if change is None or change["step"] != trainer.global_step:
        return
    shown = "; ".join(f"{key}: {then} -> {now}" for key, (then, now) in change["settings"].items())
    say(f"changed from epoch {trainer.epoch + 1} on: {shown}")
    write_whole(directory / CONFIG, write_text(config).encode())


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, hardware and command, which results may depend on."""
    return {
        "torchmdx": torchmdx.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "command": sys.argv,
    }
