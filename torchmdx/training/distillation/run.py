"""A distillation from structures to the fast model and its page, in steps that an interruption separates."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from torchmdx.checkpoints.save_load import load_one, save
from torchmdx.datasets.splits import Split, read_split
from torchmdx.datasets.store import Store
from torchmdx.models.digest import origin_of
from torchmdx.models.ensemble import members_of
from torchmdx.models.potential import Potential
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.runtime.progress_line import ProgressLine, bar, duration
from torchmdx.runtime.wording import counted
from torchmdx.structures.system import System
from torchmdx.training.config import ModelSection
from torchmdx.training.distillation import fit, frames, network, outer_steps, page
from torchmdx.training.distillation.settings import TESTING, DistillRecord, DistillSettings, Structures

ENDING = ".distillation"
ENDING_OF_FILE = r"\.[a-z]+$"  # not the number of a version
Runs = Sequence[tuple[Path, Sequence[frames.ShortRun]]]


def folder_of(output: Path) -> Path:
    """The folder of everything but the fast model itself."""
    return output.with_name(output.stem + ENDING)


def distill(
    structures: Structures,
    output: Path,
    request: DistillSettings,
    interrupts: Interrupts,
    *,
    overwrite: bool = False,
    say: Callable[[str], None] = print,
) -> dict[str, Any] | None:
    """Makes `output`, a checkpoint of a fast model; returns its numbers, None if a signal stopped it.

    After an interruption the same call continues.

    Raises:
        FileExistsError: For an output that exists, and a folder of another distillation, without overwrite.
        ValueError: For structures that the potential does not know, and if no frame can be used.
    """
    folder = folder_of(output)
    if overwrite:
        shutil.rmtree(folder, ignore_errors=True)
    elif output.exists():
        raise FileExistsError(f"output files must not exist, got {output}; --overwrite replaces them")
    record = DistillRecord(folder, structures.asked(request))
    if record.continued:
        say(f"continuing in {folder}")
    run = _Run(structures, folder, request, record, interrupts, say)
    data = run.labelled()
    fast = None if data is None else run.trained(data)
    return None if data is None or fast is None else run.tested(output, data, fast)


@dataclass(frozen=True, eq=False)
class _Run:
    """The steps of a distillation; each returns None if a signal stopped it."""

    structures: Structures
    folder: Path
    request: DistillSettings
    record: DistillRecord
    interrupts: Interrupts
    say: Callable[[str], None]

    @cached_property
    def planned(self) -> list[frames.ShortRun]:
        return frames.trajectories(self.structures.systems, self.request)

    def interrupted(self) -> bool:
        return self.interrupts.received is not None

    def _tested_structures(self) -> list[int]:
        return self.structures.tested([one.structure for one in self.planned if one.part == "test"])

    # Frames

    def labelled(self) -> tuple[Store, Split] | None:
        """The store of labelled frames and its split."""
        if "frames" in self.record:
            store = Store.open(self.folder / frames.STORE)
            return store, read_split(self.folder / frames.SPLIT, store)
        potential, systems = self.structures.potential, self.structures.systems
        batches = frames.batches(systems, self.planned, frames.BATCH_ATOMS[potential.device.type])
        if "schedule" not in self.record:
            self.record["schedule"] = asdict(self._schedule(batches))
        plan = frames.FramePlan(**self.record["schedule"])
        low, high = (f"{factor * self.request.temperature:.0f}" for factor in (frames.COLDEST, frames.HOTTEST))
        self.say(
            f"frames: {counted(len(self.planned), 'trajectory', 'trajectories')} of "
            f"{counted(len(systems), 'structure')}, {low} to {high} K, {plan.num_steps:,} steps of "
            f"{self.request.timestep:g} fs, a frame every {plan.spacing}"
        )
        runs = [(self.folder / f"frames-{k:04d}.npz", batch) for k, batch in enumerate(batches)]
        if not self._sample(plan, runs):
            return None
        store, parts, left_out = frames.write_store(self.folder, systems, self.structures.names, runs)
        self.record["frames"] = {name: len(part) for name, part in parts.items()} | {"left out": left_out}
        for path, _ in runs:
            path.unlink(missing_ok=True)
        left = f"; {left_out} left out, with forces above {frames.LARGEST_FORCE:g} eV/Å" * bool(left_out)
        self.say(f"frames: {', '.join(f'{len(part):,} {name}' for name, part in parts.items())}{left}")
        return store, parts

    def _schedule(self, batches: Sequence[Sequence[frames.ShortRun]]) -> frames.FramePlan:
        systems = self.structures.systems
        counts = [sum(systems[one.structure].num_atoms for one in batch) for batch in batches]
        seconds = 0.0
        if self.request.frames is None:
            largest = int(np.argmax(counts))
            measured = self._dynamics(batches[largest])
            seconds = frames.seconds_of_a_step(measured) * sum(counts) / counts[largest]
        return frames.schedule(self.request, seconds, self.planned, sum(counts))

    def _dynamics(self, batch: Sequence[frames.ShortRun]) -> Any:
        structures = self.structures
        return frames.dynamics_of(structures.potential, structures.systems, batch, self.request.timestep)

    def _sample(self, plan: frames.FramePlan, runs: Runs) -> bool:
        """Runs all trajectories; False if a signal stopped them, with what is done kept."""
        line, total = ProgressLine(sys.stderr), plan.frames * len(runs)
        try:
            with line.taking_messages():
                for k, (path, batch) in enumerate(runs):

                    def note(count: int, before: int = k * plan.frames) -> None:
                        done = (before + count) / total
                        if line.due():
                            line.draw("  ".join([bar(done)] * line.on_terminal + [f"{done:4.0%}", "frames"]))

                    if not frames.is_complete(path):
                        frames.sample(self._dynamics(batch), plan, path, self.interrupted, note)
                    if self.interrupted():
                        return False
        finally:
            line.finish()
        return True

    # Training

    def trained(self, data: tuple[Store, Split]) -> Potential | None:
        """The network, trained."""
        potential, record, device = self.structures.potential, self.record, self.structures.potential.device
        systems = self.structures.systems
        if "network" not in record:
            measured = [systems[k] for k in self._tested_structures()]
            model, costs = network.choose(potential, systems, measured, self.request)
            record["network"] = {"model": model.model_dump(mode="json"), "costs": [asdict(cost) for cost in costs]}
        model = ModelSection.model_validate(record["network"]["model"])
        measurements = "; ".join(str(network.Cost(**cost)) for cost in record["network"]["costs"])
        self.say(
            f"network: {model.num_layers}x{model.num_channels} (layers x channels), cutoff {model.cutoff:g} Å"
            + f", with the weights of {self.request.start}" * (self.request.start is not None)
            + f"; measured (ms of a step, relative to the potential's): {measurements}" * bool(measurements)
        )
        if self.interrupted():
            return None
        if "training" not in record:
            record["training"] = fit.choose(model, self.folder, self.request, device, *data)
        length = record["training"]
        seconds = length["seconds_of_a_step"]
        self.say(
            f"training: {counted(length['epochs'], 'epoch')} of {counted(length['steps'], 'step')} of "
            f"{counted(length['batch_size'], 'frame')}"
            + ("" if seconds is None else f", about {duration(length['epochs'] * length['steps'] * seconds)}")
        )
        if "trained" not in record:
            sizes = (length["batch_size"], length["epochs"], length["steps"])
            config = fit.config_of(model, self.folder, self.request, device, *sizes)
            if not fit.train(config, self.interrupts):
                return None
            record["trained"] = True
        return fit.trained(self.folder, device, potential.dtype)

    # Tests

    def tested(self, output: Path, data: tuple[Store, Split], fast: Potential) -> dict[str, Any] | None:
        """Tests the fast model, and writes checkpoint and page; its numbers."""
        potential, request, chosen = self.structures.potential, self.request, self._tested_structures()
        systems = [_at_test_frame(self.structures.systems[k], data) for k in chosen]
        speed = outer_steps.Speed(network.seconds_of(potential, systems), network.seconds_of(fast, systems))
        inner = request.inner or outer_steps.default_inner(systems)
        names = ", ".join(self.structures.names[k] for k in chosen)
        self.say(f"outer steps: constant energy, inner steps of {inner:g} fs, {names}")
        found = outer_steps.trials(
            potential,
            fast,
            systems,
            speed,
            temperature=request.temperature,
            seed=request.seed,
            inner=inner,
            seconds=request.seconds(TESTING),
            interrupted=self.interrupted,
            note=lambda trial: self.say(f"  {page.described(trial)}"),
        )
        if self.interrupted():
            return None
        self._save(fast, output)
        fast, origin = load_one(output, device=potential.device, dtype=potential.dtype), origin_of(potential)
        result = page.write(self.folder, fast, origin, data, found, speed, self.record)
        self.record["result"] = result
        self.say(f"page: {result['page']}")
        self.say(f"wrote {output}: {page.closing(result, found, speed)}")
        return result

    def _save(self, fast: Potential, output: Path) -> None:
        """Writes the checkpoint, whose card says where it comes from."""
        origin, record = origin_of(self.structures.potential), self.record
        fast.card = replace(
            fast.card,
            name=self.request.name or f"{re.sub(ENDING_OF_FILE, '', origin.name)}-fast",
            description=f"fast model for multiple time steps, not for use alone: distilled from {origin.name} (SHA-256 "
            f"{origin.sha256}) with {counted(record['frames']['train'], 'frame')} of "
            f"{counted(record.asked['structures']['number'], 'structure')} around {self.request.temperature:g} K"
            + f", starting from {self.request.start}"
            * (self.request.start is not None),
            licence=" ".join(dict.fromkeys(one.card.licence for one in members_of(self.structures.potential))),
        )
        save(fast, output)


def _at_test_frame(system: System, data: tuple[Store, Split]) -> System:
    """A structure at its last unseen frame; as it is if there is none."""
    store, parts = data
    numbers = system.atomic_numbers.tolist()
    for index in parts["test"][::-1]:
        if store.counts[index] == len(numbers):
            frame = store.gather([index]).system(0)
            if frame.atomic_numbers.tolist() == numbers:
                return replace(frame, charge=system.charge, partial_charges=system.partial_charges)
    return system
