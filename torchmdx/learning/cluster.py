"""The batches of an exploration on the workers of a dask.distributed cluster, one at a time in each process there."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import torchmdx
from torchmdx.checkpoints.save_load import load
from torchmdx.datasets.labelling.dask_workers import DaskWorkers, require_dask
from torchmdx.datasets.labelling.workers import Task
from torchmdx.learning.explore import BatchRun, remove_states
from torchmdx.learning.replicas import Replica, dynamics_of
from torchmdx.learning.run_folder import RunFolder, StoppedBySignal
from torchmdx.learning.sections import ExploreSection
from torchmdx.runtime.devices import choose_device
from torchmdx.runtime.files import write_whole
from torchmdx.structures.system import System

BATCH, POTENTIAL = "batch.npz", "potential.safetensors"


@dataclass(frozen=True)
class ExploreWork:
    """Turns a batch of replicas into the content of its file.

    Attributes:
        potential: Content of the file, or the name of a potential that each machine finds by itself.
        asked: Device of the settings, "auto" for that of the machine.
        place: Working directory, where a machine has it.
        version: Of torchmdx, which all processes must share.
    """

    explore: ExploreSection
    threshold: float
    systems: Sequence[System]
    potential: bytes | str
    asked: str
    precision: str
    version: str
    place: Path | None = None

    def prepare(self, number: int) -> Callable[[Sequence[Replica], Callable[[], None]], bytes]:
        """Loads the potential. Raises ValueError for another version of torchmdx."""
        if self.place is not None:
            os.chdir(self.place)
        if torchmdx.__version__ != self.version:
            raise ValueError(
                f"all processes must explore with torchmdx {self.version}, got a worker with {torchmdx.__version__}"
            )
        device = choose_device(None if self.asked == "auto" else self.asked, "train.training.device")
        dtype = torch.float64 if self.precision == "float64" else torch.float32
        with tempfile.TemporaryDirectory() as name:
            file: Path | str = self.potential if isinstance(self.potential, str) else Path(name) / POTENTIAL
            if isinstance(self.potential, bytes):
                Path(file).write_bytes(self.potential)
            potential = load(file, dtype=dtype, device=device).eval().requires_grad_(False)

        def do(batch: Sequence[Replica], pulse: Callable[[], None]) -> bytes:
            with tempfile.TemporaryDirectory() as name:
                path = Path(name) / BATCH
                one = BatchRun(
                    self.explore,
                    self.threshold,
                    batch,
                    path,
                    lambda: dynamics_of(self.explore, potential, self.systems, batch),
                )
                one.run(lambda: False, lambda step: pulse(), lambda: None)
                return path.read_bytes()

        return do


def explore_there(
    run: RunFolder,
    potential: Path | str,
    systems: Sequence[System],
    batches: Mapping[Path, Sequence[Replica]],
    note: Callable[[float], None],
) -> None:
    """Writes the files of batches that are not there yet, in the order in which workers finish them.

    Args:
        note: Called with the number of files that are there.

    Raises:
        StoppedBySignal: After a signal; running batches begin again.
        ConnectionError: Without a scheduler.
        ValueError: If workers cannot explore, or failed a batch twice.
    """
    config = run.config
    address = config.explore.dask
    assert address is not None
    require_dask()
    content = potential.read_bytes() if isinstance(potential, Path) else potential
    work = ExploreWork(
        config.explore,
        config.threshold,
        [system.to("cpu") for system in systems],
        content,
        config.train.training.device,
        config.train.training.precision,
        torchmdx.__version__,
        Path.cwd(),
    )
    left = {path: batch for path, batch in batches.items() if not path.exists()}
    log = next(iter(batches)).with_name("workers.log")
    with DaskWorkers(
        work, address, timeout=None, log=log, stopped=run.interrupted, stream=sys.stderr, purpose="explore"
    ) as workers:
        for outcome in workers.run([Task(path, batch) for path, batch in left.items()]):
            if outcome is None:
                continue
            if outcome.error is not None:
                raise ValueError(f"workers of {address} must explore {outcome.name.stem}, got {outcome.error}")
            write_whole(outcome.name, outcome.value)
            remove_states(outcome.name)
            note(sum(path.exists() for path in batches))
    if run.interrupted() and not all(path.exists() for path in batches):
        raise StoppedBySignal
