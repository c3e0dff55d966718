"""Batches of an epoch: their order, the share of each process, and a thread that reads ahead."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.datasets.store import Store
from torchmdx.step.padding import padded_atoms
from torchmdx.training.heads import HeadsOfFrames
from torchmdx.training.labelled import LabelledBatch, Totals, frame_weights, label, label_counts
from torchmdx.training.loss_section import TERMS

Indices = NDArray[np.int64]
CHUNK = 16384
REPLAYED = 1  # the random numbers of replayed frames differ from those of the others


@dataclass(frozen=True, eq=False)
class Replay:
    """Frames that are a fixed share of each batch. They are passed over in turn, in a new random order each time."""

    indices: Indices
    share: float

    def of(self, size: int) -> int:
        """Number of these frames in a batch of `size`, at least one, and at least one less than all."""
        return min(max(round(self.share * size), 1), size - 1)

    def added_to(self, others: int) -> int:
        """Number of these frames to add to `others` frames."""
        return max(1, round(others * self.share / (1 - self.share)))

    def drawn(self, seed: int, first: int, count: int) -> Indices:
        """Frames number `first` to `first + count` in the sequence of all passes."""
        size = len(self.indices)
        passes = range(first // size, -(-(first + count) // size))
        orders = [np.random.default_rng([seed, number, REPLAYED]).permutation(self.indices) for number in passes]
        begin = first - passes.start * size
        return np.concatenate(orders)[begin : begin + count]


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, and the number of processes."""

    rank: int = 0
    size: int = 1


class Batches:
    """Frames of a store in batches of one global size, of which each process reads its share.

    The order depends only on seed and epoch. With a seed, for training, the frames of an incomplete last batch are left
    out (different ones in every epoch); without, for validation, the last batch is smaller. batch_size counts frames of
    all processes, and replayed frames. An epoch is one pass over the frames that are not replayed.
    """

    def __init__(
        self,
        store: Store,
        indices: Indices,
        batch_size: int,
        *,
        cutoff: float,
        dtype: torch.dtype,
        device: torch.device,
        seed: int | None,
        ranks: Ranks,
        prefetch: int,
        config_type_weights: Mapping[str, float] | None = None,
        replay: Replay | None = None,
        heads: HeadsOfFrames | None = None,
    ) -> None:
        """seed: None keeps the order of the frames. config_type_weights: factors of the weights of frames.

        Args:
            replay: Other frames, which become a part of each batch; seed must be given then.
            heads: Of all frames of the store.

        Raises:
            ValueError: Without frames.
        """
        if len(indices) == 0:
            raise ValueError("batches need at least one frame, got none")
        self.store, self.indices, self.seed, self.ranks = store, indices, seed, ranks
        self.cutoff, self.dtype, self.device, self.prefetch = cutoff, dtype, device, prefetch
        self.config_type_weights = config_type_weights or {}
        self.replay, self.heads = replay, heads
        self.own = min(batch_size - (replay.of(batch_size) if replay else 0), len(indices))
        self.replayed = replay.added_to(self.own) if replay else 0
        self.size = self.own + self.replayed
        self.local = -(-self.size // ranks.size)
        self._every = indices if replay is None else np.sort(np.concatenate([indices, replay.indices]))
        counts = np.unique(store.counts[self._every])
        self.one_size = int(counts[0]) if len(counts) == 1 else None
        self._totals = _label_table(store, self._every) if ranks.size > 1 else None

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        whole, rest = divmod(len(self.indices), self.own)
        return whole + (1 if rest and self.seed is None else 0)

    def num_atoms(self) -> float:
        """Mean number of atoms in a global batch."""
        counts = self.store.counts
        more = counts[self.replay.indices].mean() * self.replayed if self.replay else 0.0
        return float(counts[self.indices].mean() * self.own + more)

    def order(self, epoch: int) -> list[Indices]:
        """Global batches of an epoch: indices of frames."""
        order = self.indices
        if self.seed is not None:
            order = np.random.default_rng([self.seed, epoch]).permutation(order)
        batches = [order[k * self.own : (k + 1) * self.own] for k in range(len(self))]
        if self.replay is None:
            return batches
        assert self.seed is not None
        replayed = self.replay.drawn(self.seed, epoch * len(self) * self.replayed, len(self) * self.replayed)
        return [
            np.concatenate([own, more])
            for own, more in zip(batches, replayed.reshape(len(self), self.replayed), strict=True)
        ]

    def mine(self, batch: Indices) -> Indices:
        """The share of this process in a global batch, with about as many atoms as those of the others."""
        if self.ranks.size == 1:
            return batch
        by_size = batch[np.argsort(self.store.counts[batch], kind="stable")]
        return by_size[self.ranks.rank :: self.ranks.size]

    def read(self, batch: Indices) -> LabelledBatch:
        """The share of this process in a global batch, in host memory."""
        mine = self.mine(batch)
        frames = self.store.gather(mine)
        number = None if self.heads is None else self.heads.of_frames[mine]
        of_heads = 1.0 if self.heads is None else self.heads.weights[number]
        num_atoms = frames.num_atoms
        num_atoms = self.local * self.one_size if self.one_size else padded_atoms(num_atoms)
        labelled = label(
            frames,
            mine,
            num_atoms=num_atoms,
            num_systems=self.local,
            cutoff=self.cutoff,
            dtype=self.dtype,
            totals=None if self._totals is None else self._total(batch),
            frame_weight=frame_weights(frames, self.config_type_weights) * of_heads,
            head=number,
        )
        return labelled.pinned() if self.device.type == "cuda" else labelled

    def epoch(self, epoch: int, start: int = 0) -> Iterator[LabelledBatch]:
        """Batches on the device, beginning with number `start`, read ahead by a thread."""
        for labelled in read_ahead(self, self.order(epoch)[start:], self.prefetch):
            yield labelled.to(self.device)

    def _total(self, batch: Indices) -> Totals:
        assert self._totals is not None
        rows = self._totals[np.searchsorted(self._every, batch)].sum(0)
        return tuple(int(number) for number in rows)


def read_ahead(batches: Batches, order: list[Indices], depth: int) -> Iterator[LabelledBatch]:
    """Yields batches, of which a thread reads up to `depth` in advance. Errors of the thread are raised here."""
    ready: queue.Queue[LabelledBatch | BaseException | None] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(item: LabelledBatch | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for batch in order:
                if stopped.is_set():
                    return
                put(batches.read(batch))
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=work, name="torchmdx-reader", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()


def _label_table(store: Store, indices: Indices) -> NDArray[np.int64]:
    """Label counts of each frame [F,terms], in the order of Totals."""
    table = np.zeros((len(indices), len(TERMS)), np.int64)
    for start in range(0, len(indices), CHUNK):
        frames = store.gather(indices[start : start + CHUNK])
        table[start : start + CHUNK] = label_counts(frames)
    return table
