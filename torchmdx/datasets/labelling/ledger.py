"""The results of a run so far: the meaning of the records in its journal."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchmdx.datasets.labelling.geometry import Labels, UnlabelledStructure
from torchmdx.datasets.labelling.journal import Journal
from torchmdx.runtime.damaged_file import naming

# (source, number in it): a file and a frame of it, or a molecule and a geometry sampled from it
Key = tuple[int, int]


@dataclass(frozen=True)
class Failure:
    """A frame without labels, or, where number is -1, a molecule that gave no geometries."""

    key: Key
    origin: str
    reason: str


@dataclass(frozen=True, eq=False)
class Sampled:
    """Geometries made from one source. note: why there are fewer than requested, or other remarks; may be empty."""

    geometries: list[UnlabelledStructure]
    note: str = ""


class Ledger:
    """Labels, failures and sampled geometries by key. Of several records with one key the last one counts."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._labelled: dict[Key, int] = {}
        self._sampled: dict[int, tuple[int, int, str]] = {}  # offset in the journal, count, note
        self.failures: dict[Key, Failure] = {}
        with naming(journal.path):
            for offset, header in journal.records():
                self._enter(offset, header)

    @property
    def num_labelled(self) -> int:
        return len(self._labelled)

    @property
    def is_empty(self) -> bool:
        return not (self._labelled or self._sampled or self.failures)

    def num_done(self) -> Counter[int]:
        """How many frames of each source are labelled or failed."""
        return Counter(source for source, number in itertools.chain(self._labelled, self.failures) if number >= 0)

    def has(self, key: Key) -> bool:
        """Whether the frame is labelled or has failed."""
        return key in self._labelled or key in self.failures

    def forget_failures(self) -> None:
        """Makes failed frames and molecules be tried again."""
        self.failures.clear()

    def add_labels(self, key: Key, origin: str, geometry: UnlabelledStructure, labels: Labels) -> None:
        """Writes a labelled frame to the journal."""
        header = {"labels": list(key), "origin": origin, "energy": labels.energy, **_state(geometry)}
        arrays = {
            "numbers": geometry.numbers,
            "positions": geometry.positions,
            "cell": geometry.cell,
            "pbc": geometry.pbc,
            "forces": labels.forces,
        }
        if labels.stress is not None:
            arrays["stress"] = labels.stress
        self._add(header, arrays)

    def add_failure(self, failure: Failure) -> None:
        """Writes a failure of a frame or a molecule to the journal."""
        self._add({"failure": list(failure.key), "origin": failure.origin, "reason": failure.reason}, {})

    def add_sampled(self, source: int, origin: str, sampled: Sampled) -> None:
        """Writes all geometries of a source in one record."""
        first = sampled.geometries[0]
        arrays = {"numbers": first.numbers, "cell": first.cell, "pbc": first.pbc}
        arrays["positions"] = np.array([geometry.positions for geometry in sampled.geometries])
        count = len(sampled.geometries)
        header = {"sampled": source, "origin": origin, "count": count, "note": sampled.note, **_state(first)}
        self._add(header, arrays)

    def labelled(self) -> Iterator[tuple[str, UnlabelledStructure, Labels]]:
        """Origin, structure and labels of every labelled frame, in order of sources and numbers."""
        for key in sorted(self._labelled):
            header, arrays = self._journal.read(self._labelled[key])
            with naming(self._journal.path):
                geometry = _geometry(header, arrays, arrays["positions"])
                labels = _labels(header, arrays)
            yield header["origin"], geometry, labels

    def num_sampled(self, source: int) -> int:
        """Number of geometries that were made from a source."""
        return self._sampled[source][1] if source in self._sampled else 0

    def sampled(self, source: int) -> tuple[str, list[UnlabelledStructure]]:
        """Origin and geometries of a source that was sampled."""
        header, arrays = self._journal.read(self._sampled[source][0])
        with naming(self._journal.path):
            return header["origin"], [_geometry(header, arrays, positions) for positions in arrays["positions"]]

    def notes(self) -> list[str]:
        """Remarks on sampling, one text for each source that has any."""
        return [note for _, (_, _, note) in sorted(self._sampled.items()) if note]

    def _add(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self._enter(self._journal.append(header, arrays), header)

    def _enter(self, offset: int, header: dict[str, Any]) -> None:
        if "labels" in header:
            key = _key(header["labels"])
            _text(header, "origin")
            self._labelled[key] = offset
            self.failures.pop(key, None)
        elif "failure" in header:
            key = _key(header["failure"])
            self.failures[key] = Failure(key, _text(header, "origin"), _text(header, "reason"))
        elif "sampled" in header:
            source, count = _key([header["sampled"], header["count"]])
            self._sampled[source] = (offset, count, _note(header))
            self.failures.pop((source, -1), None)


def _note(header: dict[str, Any]) -> str:
    origin, note = _text(header, "origin"), _text(header, "note")
    return f"{origin}: {note}" if note else ""


def _text(header: dict[str, Any], name: str) -> str:
    value = header[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} of a record must be text, got {value!r:.80}")
    return value


def _key(pair: list[int]) -> Key:
    source, number = pair
    if type(source) is not int or type(number) is not int:
        raise ValueError(f"numbers of records must be integers, got {pair!r:.80}")
    return source, number


def _number(header: dict[str, Any], name: str) -> float:
    value = header[name]
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{name} of a record must be a finite number, got {value!r:.80}")
    return float(value) if name == "energy" else value


def _labels(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Labels:
    count = len(arrays["numbers"])
    shapes = {"forces": (count, 3)} | ({"stress": (3, 3)} if "stress" in arrays else {})
    _require_arrays(arrays, shapes)
    return Labels(_number(header, "energy"), arrays["forces"], arrays.get("stress"))


def _require_arrays(arrays: dict[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ValueError unless arrays are finite numbers of these shapes."""
    for name, shape in shapes.items():
        if arrays[name].shape != shape or not np.isfinite(arrays[name]).all():
            got = list(arrays[name].shape)
            raise ValueError(f"{name} of a record must be finite numbers of shape {list(shape)}, got shape {got}")


def _state(geometry: UnlabelledStructure) -> dict[str, Any]:
    return {"charge": geometry.charge, "multiplicity": geometry.multiplicity}


def _geometry(header: dict[str, Any], arrays: dict[str, np.ndarray], positions: np.ndarray) -> UnlabelledStructure:
    """Raises ValueError, and KeyError where the record lacks an entry."""
    from torchmdx.structures.system_fields import LAST_ELEMENT  # imports torch, which workers don't need

    numbers = arrays["numbers"]
    count = len(numbers)
    held = {**arrays, "positions": positions}
    _require_arrays(held, {"numbers": (count,), "positions": (count, 3), "cell": (3, 3), "pbc": (3,)})
    if numbers.dtype.kind != "i" or not ((numbers >= 1) & (numbers <= LAST_ELEMENT)).all():
        raise ValueError(f"numbers of a record must be atomic numbers from 1 to {LAST_ELEMENT}")
    multiplicity = header["multiplicity"]
    if multiplicity is not None and (type(multiplicity) is not int or multiplicity < 1):
        raise ValueError(f"multiplicity of a record must be an integer >= 1, got {multiplicity!r:.80}")
    return UnlabelledStructure(
        numbers, positions, arrays["cell"], arrays["pbc"], _number(header, "charge"), multiplicity
    )
