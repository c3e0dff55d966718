"""Clusters and pairs of molecules: their members and positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from deform import VDW, Shaper
from start_file import Entry, subset_of

WATER = "O"
SEPARATIONS = (0.58, 0.66, 0.74, 0.84, 0.96, 1.15, 1.45, 1.9)  # of contact: nearest pair over van der Waals radii
ACCEPTORS = (7, 8, 9, 16, 17)
# "more": of the molecules and ions of make_more.py, which train.
DIMERS = {"train": 750, "val": 35, "test": 55, "more": 400}
ION_PAIRS = {"train": 300, "val": 20, "test": 30, "more": 2000}
ION_RATIOS = ((0.66, 0.9), (0.9, 1.5))  # of contact, one frame in each range
ION_PAIR_ATOMS = 20  # of the ion
APART = {"charged": 1060, "two ions": 60, "neutral": 380, "three": 310}  # compositions of a file of training frames
APART_RATIOS = (0.62, 2.6)  # of contact, evenly in the logarithm
APART_FRAMES = 3  # of a composition
MIXED = {"train": 2600, "val": 110, "test": 170, "more": 1500}
WATERS = range(2, 13)
MORE_WATER = 10  # how often it is in the draw among the others
OWN = 0.5  # share of draws that take a molecule of the subset, not one that all share


@dataclass(frozen=True, eq=False)
class Frame:
    """A structure. numbers [N], positions [N,3] Å, charge e, name; parts: atoms and charge of each of its molecules."""

    numbers: np.ndarray
    positions: np.ndarray
    charge: int
    name: str
    parts: tuple[tuple[int, int], ...] = ()


class Assembler:
    """Draws from molecules of one subset, and from those that all subsets share. part: whose numbers count."""

    def __init__(
        self, entries: list[Entry], common: set[str], subset: str, rng: np.random.Generator, part: str | None = None
    ) -> None:
        self._subset, self._part = subset, part or subset
        self._rng = rng
        shared = {e.name: e for e in entries if e.name in common and len(e.numbers) <= 12}
        self._water = shared[WATER]
        self._common = [*shared.values(), *[self._water] * MORE_WATER]
        self._own = [e for e in entries if e.subset == subset and e.name not in common and len(e.numbers) <= 20]
        self._shapers: dict[str, Shaper] = {}

    def dimers(self) -> list[Frame]:
        """Pairs at all separations, in two orientations: random ones, and hydrogen bonds where there can be any."""
        frames: list[Frame] = []
        small = [e for e in self._own if len(e.numbers) <= 16]
        for _ in range(DIMERS[self._part]):
            first, second = self._choose([self._pool(small), self._pool(small)])
            for pointed in (False, True):
                a, b = self._shape(first), self._shape(second)
                direction, b = (_pointed if pointed else _random)(first, a, second, b, self._rng)
                for ratio in SEPARATIONS:
                    moved = b + direction * _travel(
                        first, a, second, b, direction, ratio * self._rng.uniform(0.97, 1.03)
                    )
                    frames.append(_join([first, second], [a, moved]))
        return frames

    def clusters(self, least: float = 0.68) -> list[Frame]:
        """Water clusters, and molecules among water or others; three frames of each composition."""
        frames: list[Frame] = []
        for number in WATERS:
            if subset_of(f"{number} water") == self._subset:
                frames += [self._heap([self._water] * number, least) for _ in range(60)]
        for _ in range(MIXED[self._part]):
            if self._rng.random() < 0.6:
                waters = [self._water] * int(self._rng.integers(1, 7))
                members = [*self._choose([self._pool(self._own)]), *waters]
            else:
                others = [self._common] * int(self._rng.integers(1, 4))
                members = self._choose([self._pool(self._own), *others])
            if sum(len(e.numbers) for e in members) <= 36:
                frames += [self._heap(members, least) for _ in range(3)]
        return frames

    def ion_pairs(self, ions: list[Entry]) -> list[Frame]:
        """Ions of the subset next to water or another small molecule, most in hydrogen bonds; two frames each."""
        frames: list[Frame] = []
        own = [e for e in ions if e.subset == self._subset and len(e.numbers) <= ION_PAIR_ATOMS]
        neutral = [e for e in self._common if e.charge == 0 and e is not self._water]
        for number in self._rng.permutation(len(own))[: ION_PAIRS[self._part]]:
            ion = own[number]
            other = self._water if self._rng.random() < 0.5 else neutral[self._rng.integers(len(neutral))]
            first, second = (ion, other) if ion.charge > 0 else (other, ion)  # the first donates hydrogen
            for low, high in ION_RATIOS:
                place = _pointed if self._rng.random() < 0.7 else _random
                a, b = self._shape(first), self._shape(second)
                direction, b = place(first, a, second, b, self._rng)
                ratio = self._rng.uniform(low, high)
                frames.append(
                    _join([first, second], [a, b + direction * _travel(first, a, second, b, direction, ratio)])
                )
        return frames

    def apart(self, ions: list[Entry]) -> list[Frame]:
        """Two or three molecules at all distances, large ones too, most with one ion; new geometries in each frame."""
        own = [e for e in ions if len(e.numbers) <= ION_PAIR_ATOMS]
        small = [e for e in self._own if not e.charge and len(e.numbers) <= 16]
        common, bare = [e for e in self._common if not e.charge], [e for e in self._common if e.charge]
        if len(signs := {e.charge for e in [*bare, *own]}) < 2:
            raise ValueError(f"pairs of ions need ions of both signs, got charges {sorted(signs)}")
        kinds = {"charged": "+n", "two ions": "++", "neutral": "nn", "three": "+nn"}
        frames: list[Frame] = []
        for kind, count in APART.items():
            made = 0
            while made < count:
                half = self._rng.random(len(kinds[kind])) < OWN
                pools = {"+": (bare, own), "n": (common, small)}
                members = self._choose([pools[k][int(mine)] for k, mine in zip(kinds[kind], half, strict=True)])
                neutral_pair = kind != "two ions" or not sum(e.charge for e in members)
                if neutral_pair and sum(len(e.numbers) for e in members) <= 36:
                    frames += [self._loose(members) for _ in range(APART_FRAMES)]
                    made += 1
        return frames

    def _loose(self, members: list[Entry]) -> Frame:
        placed = [self._shape(members[0])]
        for count, entry in enumerate(members[1:], start=1):
            there, points = _merged(members[:count]), np.concatenate(placed)
            place = _pointed if self._rng.random() < 0.5 else _random
            direction, shape = place(there, points, entry, self._shape(entry), self._rng)
            ratio = np.exp(self._rng.uniform(*np.log(APART_RATIOS)))
            placed.append(shape + direction * _travel(there, points, entry, shape, direction, float(ratio)))
        return _join(members, placed)

    def _pool(self, own: list[Entry]) -> list[Entry]:
        return own if own and self._rng.random() < OWN else self._common

    def _choose(self, pools: list[list[Entry]]) -> list[Entry]:
        """One of each pool, of total charge -1 to 1; compositions of shared molecules alone keep to their subset."""
        while True:
            members = [pool[self._rng.integers(len(pool))] for pool in pools if pool]
            names = " + ".join(sorted(e.name for e in members))
            own = any(e.subset == self._subset and e not in self._common for e in members)
            if abs(sum(e.charge for e in members)) <= 1 and (own or subset_of(names) == self._subset):
                return members

    def _shape(self, entry: Entry) -> np.ndarray:
        if len(entry.numbers) == 1:
            return np.zeros((1, 3))
        if entry.name not in self._shapers:
            self._shapers[entry.name] = Shaper(entry, self._rng)
        positions = self._shapers[entry.name].draw("thermal")
        return positions - positions.mean(0)

    def _heap(self, members: list[Entry], least: float) -> Frame:
        """Places members one by one in contact with the previous ones."""
        placed = [self._shape(members[0])]
        for count, entry in enumerate(members[1:], start=1):
            there = _merged(members[:count])
            points = np.concatenate(placed)
            pointed = self._rng.random() < 0.6
            direction, shape = (_pointed if pointed else _random)(there, points, entry, self._shape(entry), self._rng)
            ratio = self._rng.uniform(least, 0.98)
            placed.append(shape + direction * _travel(there, points, entry, shape, direction, ratio))
        return _join(members, placed)


def _join(members: list[Entry], placed: list[np.ndarray]) -> Frame:
    return Frame(
        numbers=np.concatenate([e.numbers for e in members]),
        positions=np.concatenate(placed),
        charge=sum(e.charge for e in members),
        name=" + ".join(sorted(e.name for e in members)),
        parts=tuple((len(e.numbers), e.charge) for e in members),
    )


def _merged(members: list[Entry]) -> Entry:
    """Molecules as one, for placing the next."""
    shifts = np.cumsum([0, *(len(e.numbers) for e in members)])
    bonds = np.concatenate([e.bonds + shift for e, shift in zip(members, shifts, strict=False)])
    numbers = np.concatenate([e.numbers for e in members])
    return Entry("", "", "", 0, numbers, bonds, np.zeros(len(bonds), bool), np.zeros((1, len(numbers), 3)))


def _random(
    first: Entry, a: np.ndarray, second: Entry, b: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A direction, and the second turned at random and put on an atom of the first."""
    turned = b @ _rotation(rng).T
    return _unit(rng.standard_normal(3)), turned - turned.mean(0) + a[rng.integers(len(a))]


def _pointed(
    first: Entry, a: np.ndarray, second: Entry, b: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A direction along a bond X-H, and the second put there with an acceptor in front; else `_random`."""
    donors = [
        (int(heavy), int(light))
        for pair in first.bonds
        for heavy, light in (pair, pair[::-1])
        if first.numbers[light] == 1 and first.numbers[heavy] in ACCEPTORS
    ]
    acceptors = np.flatnonzero(np.isin(second.numbers, ACCEPTORS))
    if not donors or not len(acceptors):
        return _random(first, a, second, b, rng)
    heavy, light = donors[rng.integers(len(donors))]
    acceptor = acceptors[rng.integers(len(acceptors))]
    direction = _unit(a[light] - a[heavy] + rng.normal(scale=0.12, size=3))
    front = b[acceptor] - b.mean(0)
    turned = b @ _rotation(rng).T
    if np.linalg.norm(front) > 1e-3:
        turned = b @ _onto(_unit(front), -_unit(direction + rng.normal(scale=0.25, size=3))).T
    return direction, turned - turned[acceptor] + a[light]


def _travel(first: Entry, a: np.ndarray, second: Entry, b: np.ndarray, direction: np.ndarray, ratio: float) -> float:
    """How far the second is moved until no pair is nearer than `ratio` of its van der Waals radii."""
    radii = np.add.outer([VDW[int(z)] for z in first.numbers], [VDW[int(z)] for z in second.numbers]) * ratio
    apart = b[None] - a[:, None]
    along = apart @ direction
    inside = along**2 - (apart**2).sum(-1) + radii**2
    return float(np.where(inside > 0, -along + np.sqrt(np.maximum(inside, 0)), -np.inf).max(initial=0.0))


def _unit(vector: np.ndarray) -> np.ndarray:
    return np.asarray(vector / np.linalg.norm(vector))


def _rotation(rng: np.random.Generator) -> np.ndarray:
    matrix, upper = np.linalg.qr(rng.standard_normal((3, 3)))
    matrix = matrix * np.sign(np.diag(upper))
    return np.asarray(matrix * np.sign(np.linalg.det(matrix)))


def _onto(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """A rotation that takes one unit vector to another: half a turn about the line between them."""
    middle = start + end
    if np.linalg.norm(middle) < 1e-6:
        middle = np.cross(start, [1.0, 0.3, 0.2])
    middle = _unit(middle)
    return np.asarray(2 * np.outer(middle, middle) - np.eye(3))
