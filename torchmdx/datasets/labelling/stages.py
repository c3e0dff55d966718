"""The two stages of a run: sampling molecules, and labelling frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.ledger import Failure, Key, Ledger
from torchmdx.datasets.labelling.sampling import Molecule
from torchmdx.datasets.labelling.sources import StructureFiles
from torchmdx.datasets.labelling.work import FrameToLabel
from torchmdx.datasets.labelling.workers import Outcome, Task

Frames = Callable[
    [], Iterator[tuple[Key, str, UnlabelledStructure]]
]  # keys, origins and structures of frames without a result


class LabellingStage(Protocol):
    """Tasks for workers, and the use of their outcomes. things: their name; done, total: their numbers."""

    things: str
    total: int

    @property
    def done(self) -> int: ...

    def tasks(self) -> Iterator[Task]:
        """Tasks without a result, in order."""

    def take(self, outcome: Outcome) -> None:
        """Writes an outcome to the ledger."""


class SampleStage:
    """Makes geometries from structures and SMILES. A molecule is done when all its geometries are."""

    things = "molecules sampled"

    def __init__(self, ledger: Ledger, files: StructureFiles, counts: Sequence[int], smiles: Sequence[str]) -> None:
        self._ledger, self._files, self._counts, self._smiles = ledger, files, counts, smiles
        self.total = sum(counts) + len(smiles)

    @property
    def done(self) -> int:
        return sum(self._is_done(source) for source in range(self.total))

    def tasks(self) -> Iterator[Task]:
        for origin, molecule in self._molecules():
            if not self._is_done(molecule.source):
                yield Task((molecule.source, origin), molecule)

    def take(self, outcome: Outcome) -> None:
        source, origin = outcome.name
        if outcome.error is None:
            self._ledger.add_sampled(source, origin, outcome.value)
        else:
            self._ledger.add_failure(Failure((source, -1), origin, outcome.error))

    def frames(self) -> Iterator[tuple[Key, str, UnlabelledStructure]]:
        """Sampled frames without labels."""
        for source in range(self.total):
            numbers = range(self._ledger.num_sampled(source))
            if all(self._ledger.has((source, number)) for number in numbers):
                continue
            origin, geometries = self._ledger.sampled(source)
            for number, geometry in enumerate(geometries):
                yield (source, number), f"{origin}:{number}", geometry

    @property
    def num_frames(self) -> int:
        return sum(self._ledger.num_sampled(source) for source in range(self.total))

    def _is_done(self, source: int) -> bool:
        return self._ledger.num_sampled(source) > 0 or self._ledger.has((source, -1))

    def _molecules(self) -> Iterator[tuple[str, Molecule]]:
        source = 0
        for number in range(len(self._counts)):
            for _, origin, geometry in self._files.frames(number):
                yield origin, Molecule(source, None, geometry)
                source += 1
        for smiles in self._smiles:
            yield smiles, Molecule(source, smiles, None, self._files.multiplicity)
            source += 1


class LabelStage:
    """Labels frames, one at a time."""

    things = "frames labelled"

    def __init__(self, ledger: Ledger, frames: Frames, total: int) -> None:
        self._ledger, self._frames = ledger, frames
        self.total = total

    @property
    def done(self) -> int:
        failed = sum(number >= 0 for _, number in self._ledger.failures)
        return self._ledger.num_labelled + failed

    def tasks(self) -> Iterator[Task]:
        for key, origin, geometry in self._frames():
            if not self._ledger.has(key):
                yield Task((key, origin), FrameToLabel(key, geometry))

    def take(self, outcome: Outcome) -> None:
        key, origin = outcome.name
        if outcome.error is None:
            self._ledger.add_labels(key, origin, outcome.payload.structure, outcome.value)
        else:
            self._ledger.add_failure(Failure(key, origin, outcome.error))


def frames_of_files(ledger: Ledger, files: StructureFiles, counts: Sequence[int]) -> Frames:
    """Frames of files; a file whose frames are all done is not read."""

    def frames() -> Iterator[tuple[Key, str, UnlabelledStructure]]:
        done = ledger.num_done()
        for source, count in enumerate(counts):
            if done[source] < count:
                for number, origin, geometry in files.frames(source):
                    yield (source, number), origin, geometry

    return frames
