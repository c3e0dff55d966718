"""What a distillation is asked for, and what it has chosen; both are recorded, so that a run can be continued."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchmdx.models.digest import origin_of
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.damaged_file import naming, parse_json
from torchmdx.runtime.files import write_whole
from torchmdx.structures.system import System

RECORD = "distillation.json"
FORMAT = "torchmdx distillation 1"
# Shares of the time: trajectories, training, and the rest for measurements and tests.
SAMPLING, TRAINING, TESTING = 0.25, 0.55, 0.15
MOST_TESTED, MOST_TESTED_ATOMS = 4, {"cpu": 400, "cuda": 50_000}  # structures of measurements and tests


@dataclass(frozen=True, kw_only=True)
class DistillSettings:
    """Settings of a distillation. None: chosen by measurements; see `torchmdx distill --help`.

    Attributes:
        temperature: K, of the dynamics that the fast model is for.
        minutes: Wall time that choices aim at.
        timestep: fs, of the trajectories.
        inner: fs, the inner step of the tests of multiple time steps; None: 1 with hydrogens, else 2.
        frames, trajectories: All frames, and trajectories of each structure that are trained on.
        start: File or name of a fast model whose network and weights are trained further; None: random weights.
        layers, channels, cutoff: The network; cutoff in Å.
        epochs, batch_size, learning_rate: The training.
        name: Of the fast model, on its card; None: that of the potential with "-fast".
    """

    temperature: float = 300.0
    minutes: float = 5.0
    seed: int = 0
    timestep: float = 0.5
    inner: float | None = None
    frames: int | None = None
    trajectories: int | None = None
    start: str | None = None
    layers: int | None = None
    channels: int | None = None
    cutoff: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        for key in ("temperature", "minutes", "timestep", "inner", "cutoff", "learning_rate"):
            value = getattr(self, key)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{key} must be > 0 and finite, got {value}")
        least = dict(frames=3, trajectories=1, layers=0, channels=2, epochs=1, batch_size=1, seed=0)
        for key, lowest in least.items():
            value = getattr(self, key)
            if value is not None and value < lowest:
                raise ValueError(f"{key.replace('_', ' ')} must be >= {lowest}, got {value}")
        own = {key: getattr(self, key) for key in ("layers", "channels", "cutoff")}
        sizes = [f"{key} {value}" for key, value in own.items() if value is not None]
        if self.start is not None and sizes:
            raise ValueError(f"a fast model to start from has its own network, got {self.start} and {sizes[0]}")

    def seconds(self, share: float) -> float:
        """That share of the time."""
        return 60 * self.minutes * share


@dataclass(frozen=True, eq=False)
class Structures:
    """Structures, their names in messages, and the whole potential on its device."""

    potential: Potential | Ensemble
    systems: Sequence[System]
    names: Sequence[str]

    def __post_init__(self) -> None:
        for system, name in zip(self.systems, self.names, strict=True):
            try:
                self.potential.require_elements(system.atomic_numbers)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error

    def tested(self, held: Sequence[int] = ()) -> list[int]:
        """Structures of measurements and tests: held-out ones first, with as many atoms as are affordable."""
        order = list(dict.fromkeys([*held, *range(len(self.systems))]))
        kind = bool(self.systems[order[0]].pbc.any())
        most, atoms = MOST_TESTED_ATOMS[self.potential.device.type], 0
        found: list[int] = []
        for k in order:
            system = self.systems[k]
            if found and (atoms + system.num_atoms > most or bool(system.pbc.any()) != kind):
                continue
            found.append(k)
            atoms += system.num_atoms
            if len(found) == MOST_TESTED:
                break
        return found

    def asked(self, request: DistillSettings) -> dict[str, Any]:
        """What the result depends on."""
        content = [
            [getattr(system, name).tolist() for name in ("atomic_numbers", "positions", "cell", "pbc")]
            + [float(system.charge)]
            for system in self.systems
        ]
        digest = hashlib.sha256(repr(content).encode()).hexdigest()
        origin = origin_of(self.potential)
        return {
            "request": asdict(request),
            "potential": {"name": origin.name, "sha256": origin.sha256, "device": self.potential.device.type},
            "structures": {"number": len(self.systems), "sha256": digest},
        }


class DistillRecord:
    """A folder of a distillation, and the file in it with its request and its choices.

    Args:
        folder: Made if it does not exist.
        asked: What the result depends on, by name, as JSON values: request, potential, structures.

    Raises:
        FileExistsError: If the folder holds a distillation of something else; names what differs.
    """

    def __init__(self, folder: Path, asked: dict[str, Any]) -> None:
        self.folder, self.path = folder, folder / RECORD
        self.asked: dict[str, Any] = json.loads(json.dumps(asked))
        self.chosen: dict[str, Any] = {}
        self.continued = self.path.exists()
        if self.continued:
            self.chosen = self._read()
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self._write()

    def __contains__(self, name: str) -> bool:
        return name in self.chosen

    def __getitem__(self, name: str) -> Any:
        return self.chosen[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Records a choice, or a result, as JSON has it."""
        self.chosen[name] = json.loads(json.dumps(value))
        self._write()

    def _write(self) -> None:
        content = {"format": FORMAT, "asked": self.asked, "chosen": self.chosen}
        write_whole(self.path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())

    def _read(self) -> dict[str, Any]:
        with naming(self.path):
            found = parse_json(self.path.read_text())
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError(f"{str(self.path)!r} must be the record of a distillation, got other content")
        before = found["asked"]
        for name in sorted(before.keys() | self.asked.keys()):
            if before.get(name) != self.asked.get(name):
                then, now = _different(before.get(name), self.asked.get(name))
                raise FileExistsError(
                    f"{str(self.folder)!r} holds a distillation with another {name}: {then}, got {now}; "
                    "--overwrite starts again"
                )
        chosen: dict[str, Any] = found["chosen"]
        return chosen


def _different(then: Any, now: Any) -> tuple[Any, Any]:
    """Two values, of dictionaries only what differs."""
    if not (isinstance(then, dict) and isinstance(now, dict)):
        return then, now
    keys = [key for key in then.keys() | now.keys() if then.get(key) != now.get(key)]
    return {key: then.get(key) for key in keys}, {key: now.get(key) for key in keys}
