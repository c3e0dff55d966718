"""Predictions for the frames of a store, with many small frames per evaluation."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.models.ensemble import Ensemble, members_of
from torchmdx.models.potential import Potential
from torchmdx.neighbors.choose import CELL_LIST_FROM
from torchmdx.report.predictions import PADDING_SYSTEM, LastInputs, Predictions, named, pack
from torchmdx.step.buffer_storage import UNCERTAINTIES
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.padding import LARGEST_PADDED, padded_size
from torchmdx.step.results import NonFiniteError, OutOfDeviceMemory, StepResult
from torchmdx.structures.system import Batch

# Atoms per evaluation: many on a GPU; the others are limited by the exact model's memory, about 6 MB/atom in float64.
ATOMS_FAST, ATOMS_EXACT, ATOMS_CPU = LARGEST_PADDED, 1024, 256
MOST_STEPS = 4
# Evaluations of one shape from which a capture, which costs about a dozen evaluations, is worth it.
WORTH_A_GRAPH = 32


Part = TypeVar("Part", Predictions, LastInputs)
# Frames whose elements are checked together.
CHECKED = 4096


class Predictor:
    """Evaluates stores with one potential or ensemble, in one precision, on one device.

    Args:
        potential: Copied, so that the caller may continue training.
        dtype: Torch.float32 uses the fastest engine, torch.float64 on a GPU the exact model.
        atoms: Per evaluation, if memory allows.
    """

    def __init__(
        self,
        potential: Potential | Ensemble,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        atoms: int | None = None,
    ) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        self.potential = copy.deepcopy(potential).to(device=device, dtype=dtype).eval().requires_grad_(False)
        self._members = members_of(self.potential)
        for member in self._members:
            # Labels show the errors for elements that the potential was not trained on, so these are not refused.
            member.card = replace(member.card, elements=None)
        self._uncertain = all(member.uncertainty is not None for member in self._members) and len(self._members) == 1
        self._on_gpu = self.potential.device.type == "cuda"
        self._fast = self._on_gpu and dtype == torch.float32 and self._has_kernels()
        self._atoms = atoms or self._affordable()
        self._coming: Counter[tuple[int, int]] = Counter()
        self._steps: OrderedDict[tuple[int, int, bool, bool], CapturedStep] = OrderedDict()

    def _has_kernels(self) -> bool:
        return all(FastTensorNet.why_not(member) is None for member in self._members)

    def _affordable(self) -> int:
        if not self._on_gpu:
            return ATOMS_CPU
        return ATOMS_FAST if self._fast else ATOMS_EXACT

    def require_elements(self, store: Store, indices: NDArray[np.int64]) -> None:
        """Raises ValueError that names file and frame for an element that the potential does not support."""
        highest = self._members[0].config.max_z
        if not any(element > highest for element in store.elements):
            return
        for start in range(0, len(indices), CHECKED):
            chunk = indices[start : start + CHECKED]
            frames = store.gather(chunk)
            beyond = np.flatnonzero(frames.atomic_numbers > highest)
            if len(beyond):
                raise ValueError(
                    f"this potential knows atomic numbers up to {highest}, got {frames.atomic_numbers[beyond[0]]} in "
                    f"{named(store, chunk[frames.frame_index[beyond[0]]])}"
                )

    def parts(
        self,
        store: Store,
        indices: NDArray[np.int64],
        *,
        stress: bool | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[Predictions]:
        """Predictions of the frames at `indices`, in their order, one part per evaluation.

        Raises ValueError that names file and frame for unsupported elements and for predictions that are not finite.

        Args:
            stress: None: if the store has such labels.
            progress: Called with frames done and their total.
        """
        stress = "stress" in store.labels if stress is None else stress
        yield from self._each(store, indices, lambda chosen, frames: self._evaluate(chosen, frames, stress), progress)

    def last_inputs(
        self, store: Store, indices: NDArray[np.int64], *, progress: Callable[[int, int], None] | None = None
    ) -> Iterator[LastInputs]:
        """Inputs of the last layer, for a potential with an uncertainty. As `parts`, without forces."""
        yield from self._each(store, indices, self._inputs_of, progress)

    def _each(
        self,
        store: Store,
        indices: NDArray[np.int64],
        evaluate: Callable[[NDArray[np.int64], Frames], Part],
        progress: Callable[[int, int], None] | None,
    ) -> Iterator[Part]:
        """What `evaluate` returns for the frames at `indices`, one part per evaluation."""
        indices = np.asarray(indices, dtype=np.int64)
        self.require_elements(store, indices)
        done, counts = 0, store.counts[indices]
        self._coming = self._shapes(counts)
        while done < len(indices):
            number = _fitting(counts[done : done + self._atoms], self._atoms)
            chosen = indices[done : done + number]
            frames = store.gather(chosen)
            try:
                part = evaluate(chosen, frames)
            except OutOfDeviceMemory:
                if number == 1:
                    raise
                self._steps.clear()
                self._atoms = max(1, int(frames.num_atoms) // 2)
                self._coming = self._shapes(counts[done:])
                continue
            except (NonFiniteError, ValueError) as error:
                self._find_fault(store, chosen, evaluate, error)
                raise
            done += number
            yield part
            if progress is not None:
                progress(done, len(indices))

    def _evaluate(self, indices: NDArray[np.int64], frames: Frames, stress: bool) -> Predictions:
        batch = self._batch(frames)
        step = self._step(batch, stress)
        result: StepResult = step(batch.positions, batch.cell)
        size, atoms = len(frames), frames.num_atoms
        stresses = None if result.stress is None else result.stress[:size]
        found = Predictions(indices, frames, result.energy[:size], result.forces[:atoms], stresses)
        if result.energy_uncertainty is not None:
            of_frames, of_atoms = result.energy_uncertainty[:size], result.energies_uncertainty[:atoms]
            return replace(found, energy_uncertainty=of_frames, energies_uncertainty=of_atoms)
        if result.energy_spread is None:
            return found
        return replace(found, energy_spread=result.energy_spread[:size], forces_spread=result.force_spread[:atoms])

    def _inputs_of(self, indices: NDArray[np.int64], frames: Frames) -> LastInputs:
        batch = self._batch(frames)
        step = self._step(batch, False)
        energy = step(batch.positions, batch.cell, forces=False).energy
        inputs = step.last_inputs.double().cpu().numpy()[: frames.num_atoms]
        sums = np.zeros((len(frames), inputs.shape[1]))
        np.add.at(sums, frames.frame_index, inputs)
        return LastInputs(indices, frames, energy[: len(frames)], sums)

    def _step(self, batch: Batch, stress: bool) -> CapturedStep:
        """A step for the batch; one of the same shape is used again."""
        key = (batch.num_atoms, batch.num_systems, bool(batch.pbc.any()), stress)
        step = self._steps.get(key)
        if step is not None:
            step.assign(batch)
        else:
            while len(self._steps) >= MOST_STEPS:
                self._steps.popitem(last=False)
            how: dict[str, Any] = dict(mode=self._mode(batch), stress=stress, uncertainty=self._uncertain)
            step = self._steps[key] = CapturedStep(self.potential, batch, **how)
        self._steps.move_to_end(key)
        self._coming[key[:2]] -= 1
        return step

    def _mode(self, batch: Batch) -> str:
        """Whether a step of this shape may capture.

        Fused kernels have few launches and large batches; the exact model has a thousand launches. With a binned
        neighbour search a new batch may need other bins, and so a new capture.
        """
        often = self._coming[batch.num_atoms, batch.num_systems] >= WORTH_A_GRAPH
        exact = self._on_gpu and not self._fast
        return "auto" if exact and often and int(batch.counts().max()) < CELL_LIST_FROM else "eager"

    def _shapes(self, counts: NDArray[np.int64]) -> Counter[tuple[int, int]]:
        """Number of evaluations of each shape for frames with these numbers of atoms."""
        found: Counter[tuple[int, int]] = Counter()
        done = 0
        while done < len(counts):
            number = _fitting(counts[done : done + self._atoms], self._atoms)
            found[self._shape(int(counts[done : done + number].sum()), number)] += 1
            done += number
        return found

    def _shape(self, num_atoms: int, num_systems: int) -> tuple[int, int]:
        """Numbers of atoms and systems of a batch; on a GPU padded to one of a few shapes."""
        if not self._on_gpu:
            return num_atoms, num_systems
        size = padded_size(num_atoms)
        needed = num_systems + -(-(size - num_atoms) // PADDING_SYSTEM)
        return size, 1 << (needed - 1).bit_length()

    def _batch(self, frames: Frames) -> Batch:
        return pack(frames, *self._shape(int(frames.num_atoms), len(frames)), self.potential.cutoff)

    def _find_fault(
        self,
        store: Store,
        indices: NDArray[np.int64],
        evaluate: Callable[[NDArray[np.int64], Frames], Any],
        error: Exception,
    ) -> None:
        """Raises ValueError for the first of some frames that cannot be evaluated by itself."""
        for index in indices:
            try:
                evaluate(np.array([index]), store.gather(index))
            except (NonFiniteError, ValueError) as alone:
                raise ValueError(f"{named(store, index)} can't be evaluated: {alone}") from error


def predict(
    potential: Potential | Ensemble,
    store: Store,
    indices: NDArray[np.int64],
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    stress: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Predictions:
    """All predictions in one result, in the order of `indices`, which must not be empty. See `Predictor`."""
    if not len(indices):
        raise ValueError("predict needs at least one frame, got none")
    predictor = Predictor(potential, device=device, dtype=dtype)
    parts = list(predictor.parts(store, indices, stress=stress, progress=progress))

    def joined(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else np.concatenate(values)

    others = ("indices", "energy", "forces", "stress", "energy_spread", "forces_spread", *UNCERTAINTIES)
    return Predictions(
        frames=Frames.concatenate([part.frames for part in parts]), **{name: joined(name) for name in others}
    )


def _fitting(counts: NDArray[np.int64], most: int) -> int:
    """How many of the next frames have at most `most` atoms in total; at least one."""
    return max(1, int(np.searchsorted(np.cumsum(counts), most, side="right")))
