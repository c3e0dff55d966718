"""How kernels/one_launch.cu divides atoms among clusters of blocks, and what shared memory that takes."""

from __future__ import annotations

from dataclasses import dataclass

# Channels of the network; blocks of a cluster, which share them; threads of a block; hidden channels of the head.
CHANNELS, SHARES, THREADS, HEAD = 128, 8, 512, 64
WIDE = CHANNELS // SHARES
# Shared memory that a block can have, less what the kernel itself declares.
MOST_SHARED_BYTES = 227 * 1024 - 64
NINE = 9 * WIDE
WARPS, ROUNDS = THREADS // 32, 2  # of a block; edges that a half of a warp reads ahead
MOST_COMPILED = 4  # atoms of a cluster
# Floats of shared memory per atom, and of what an atom keeps; of an edge. Checked by the kernel's own constants.
ROOM, KEPT, EDGE_FLOATS = 3548, 1984, 9
PARTICLE = 76
OF_AN_ATOM = PARTICLE + 3 * 4 * WIDE  # floats of each atom, of any cluster, in a whole step: also what it tells


@dataclass(frozen=True)
class AtomClusters:
    """How atoms are divided among clusters of blocks: `per` for each; `lanes` pairs of edges of an atom at a time.

    chunk: atoms whose products are in scratch memory at a time. keep: what atoms keep lies in shared memory.
    """

    per: int
    clusters: int
    lanes: int
    chunk: int
    keep: bool

    @classmethod
    def choose(cls, num_atoms: int, most_clusters: int) -> AtomClusters | None:
        """The fastest for so many atoms and clusters; None if they do not fit."""
        per = -(-num_atoms // most_clusters)
        lanes = max(1, min(8, 16 // per)) if per <= 8 else 4
        chunk = min(per, 4 if per <= 4 else 2)
        for keep in (True, False):
            plan = cls(per, -(-num_atoms // per), lanes, chunk, keep)
            if 4 * plan.floats <= MOST_SHARED_BYTES:
                return plan
        return None

    @property
    def is_compiled(self) -> bool:
        """Whether a kernel is compiled for this division: for few atoms in a cluster. Else loops would be too long."""
        return self.per <= MOST_COMPILED

    @property
    def constants(self) -> dict[str, int]:
        """What a kernel for this division is compiled with; nothing for many atoms, whose loops would be too long."""
        return {"ATOMS_PER_CLUSTER": self.per, "LANES": self.lanes} if self.is_compiled else {}

    def constants_of_steps(self, num_atoms: int) -> dict[str, int]:
        """What the kernel of steps of dynamics is compiled with: also whether all edges of an atom are read ahead."""
        ahead = self.per * self.lanes <= WARPS and num_atoms - 1 <= 2 * ROUNDS * self.lanes
        return {**self.constants, "STEPS_INSIDE": 1, **({"NEAR_ONLY": 1} if ahead else {})}

    @property
    def floats(self) -> int:
        """Shared memory without edges, beside what is the same for all atoms (2,172 floats)."""
        scratch = max(16 * self.chunk, self.lanes * self.per) * NINE
        return self.per * (ROOM + self.keep * KEPT) + scratch + 2172
