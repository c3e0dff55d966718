"""`torchmdx bench --all`: many structures, each in a process of its own, and a test of kernels whose blocks wait."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.runtime.card_records import ON_TRIAL, clusters_of, keep_clusters
from torchmdx.runtime.files import write_whole

if TYPE_CHECKING:
    import torch
    from ase import Atoms

MOLECULES = ("H2O", "CH3CH2OH", "C6H6", "C60")
WATER = (64, 216, 1000, 8000)  # molecules in a periodic box
MOST_ON_CPU = 216
MOST_ERROR = 1e-5  # of forces in float32, relative, for a card to pass its test
OPTIONS = ("charge", "dtype", "device", "skin", "coulomb", "coulomb_cutoff", "coulomb_accuracy")
REPETITIONS = 3  # of that test


def run(options: argparse.Namespace) -> int:
    """Prints a line for each structure; the exit status is 1 if one of them failed."""
    device = _device(options)
    facts = environment(device)
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    with tempfile.TemporaryDirectory() as folder:
        trial = _trial(options, device, Path(folder))
        print(f"{'structure':<14}{'atoms':>8}{'mode':>8}{'ms':>12}{'MiB':>10}{'error':>10}  engine")
        rows = []
        for name, atoms in structures(on_gpu=device.type == "cuda"):
            found = measured(name, atoms, options, Path(folder))
            rows += found
            for row in found:
                print(line(row), flush=True)
    if options.json is not None:
        record = {"environment": facts, "waiting_blocks": trial, "rows": rows}
        write_whole(options.json, (json.dumps(record, indent=1) + "\n").encode())
        print(f"written: {options.json}")
    return int(any("failed" in row for row in rows))


def structures(*, on_gpu: bool) -> Iterator[tuple[str, Atoms]]:
    """What is measured, by name: the largest boxes on GPUs only."""
    from ase.build import molecule

    from torchmdx.lammps.example import water

    for name in MOLECULES:
        yield name, molecule(name)
    for molecules in WATER:
        if on_gpu or molecules <= MOST_ON_CPU:
            yield f"water {molecules}", water(molecules)


def measured(
    name: str, atoms: Atoms, options: argparse.Namespace, folder: Path, variables: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The rows of one structure, by `torchmdx bench FILE` in another process: one that never ends is killed."""
    from ase.io import write

    path, result = folder / "structure.extxyz", folder / "rows.json"
    write(path, atoms)
    command = [sys.executable, "-m", "torchmdx.commands.cli", "bench", str(path), "--json", str(result), "--overwrite"]
    command += [word for model in options.model or () for word in ("--model", model)]
    for option in OPTIONS:
        value = getattr(options, option, None)
        command += [] if value is None else [f"--{option.replace('_', '-')}", str(value)]
    result.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=options.seconds, env=os.environ | (variables or {})
        )
        failed = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1] if done.returncode else ""
    except subprocess.TimeoutExpired:
        failed = f"not finished after {options.seconds:g} s"
    if failed:
        return [{"structure": name, "atoms": len(atoms), "failed": failed}]
    return [{"structure": name, **row} for row in json.loads(result.read_text())]


def line(row: Mapping[str, Any]) -> str:
    start = f"{row['structure']:<14}{row['atoms']:>8,}"
    if "failed" in row:
        return f"{start}  failed: {row['failed']}"
    memory = f"{row['memory_bytes'] / 2**20:.1f}" if row["memory_bytes"] else "-"
    error = "-" if row["force_error"] is None else f"{row['force_error']:.1e}"
    return f"{start}{row['mode']:>8}{row['ms']:>12.4f}{memory:>10}{error:>10}  {row['engine']}"


def environment(device: torch.device) -> dict[str, Any]:
    """The device and the versions of what runs on it."""
    import torch

    from torchmdx import __version__

    found: dict[str, Any] = {"torchmdx": __version__, "python": platform.python_version(), "torch": torch.__version__}
    if device.type != "cuda":
        return {"device": f"CPU {platform.machine()}, {torch.get_num_threads()} threads"} | found
    facts = torch.cuda.get_device_properties(device)
    shown = {"device": facts.name, "capability": f"{facts.major}.{facts.minor}"}
    shown["multiprocessors"] = str(facts.multi_processor_count)
    with contextlib.suppress(PackageNotFoundError):
        found["triton"] = version("triton")
    return shown | found | {"cuda": torch.version.cuda}


def _device(options: argparse.Namespace) -> torch.device:
    from torchmdx.runtime.devices import choose_device

    return choose_device(options.device)


def _trial(options: argparse.Namespace, device: torch.device, folder: Path) -> str | None:
    """Tests whether blocks that wait for each other run on this card; says how that ended. None: nothing to test.

    The test is the usual potential with few atoms: its results are right, and no process has to be killed.
    """
    if device.type != "cuda":
        return None
    from ase.build import molecule

    from torchmdx.engines.plan.machine import Machine

    machine = Machine.of(device)
    recorded = clusters_of(machine.name, machine.multiprocessors)
    if not machine.is_hopper or (machine.clusters and not recorded):
        return None
    clusters = _clusters_that_fit(device)
    failed = "the card has no room for one cluster" if clusters < 1 else None
    usual = argparse.Namespace(model=None, device=str(device), seconds=options.seconds)
    for name in ("CH3CH2OH", "C6H6") * REPETITIONS:
        rows = [] if failed else measured(name, molecule(name), usual, folder, {ON_TRIAL: str(clusters)})
        failed = failed or _why_not(rows)
    ending = f"not used: {failed}" if failed else f"{clusters} clusters of 8 blocks, noted in "
    ending += "" if failed else keep_clusters(machine.name, machine.multiprocessors, clusters)
    print(f"kernels whose blocks wait for each other: {ending}")
    return ending


def _why_not(rows: list[dict[str, Any]]) -> str | None:
    """Why a card does not pass; None if all rows are right and come from one launch."""
    for row in rows:
        if "failed" in row:
            return f"{row['structure']}: {row['failed']}"
        if not str(row["engine"]).endswith("one launch"):
            return f"{row['structure']} took {row['engine']}"
        if row["force_error"] is None or not row["force_error"] <= MOST_ERROR:
            return f"{row['structure']}: the force error must be at most {MOST_ERROR:g}, got {row['force_error']}"
    return None


def _clusters_that_fit(device: torch.device) -> int:
    """What the driver says of the kernel for the usual network."""
    from torchmdx.engines.gpu.one_launch import launcher
    from torchmdx.engines.plan.clusters import MOST_SHARED_BYTES

    return launcher(device, ()).most_clusters(MOST_SHARED_BYTES)
