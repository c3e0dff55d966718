"""How gpu/sm90/one_launch.cu divides atoms among clusters of blocks, and what shared memory that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchmdx.engines.plan.settings import ACTIVATIONS, activation_of

if TYPE_CHECKING:
    from torchmdx.models.tensornet import TensorNetConfig

# Channels of the network; blocks of a cluster, which share them; threads of a block; hidden channels of the head.
CHANNELS, SHARES, THREADS, HEAD = 128, 8, 512, 64
WIDE = CHANNELS // SHARES
# Shared memory that a block can have, less what the kernel itself declares.
MOST_SHARED_BYTES = 227 * 1024 - 64
NINE = 9 * WIDE
WARPS, ROUNDS = THREADS // 32, 2  # of a block; edges that a half of a warp reads ahead
# Atoms of a cluster for which a kernel is compiled, and atoms of a product.
COMPILED = {1: 1, 2: 2, 3: 3, 4: 4, 6: 3, 8: 4}
MOST_COMPILED = max(COMPILED)
EDGE_FLOATS = 9
# Edges of an atom beyond which a cluster with a single atom takes more of them at a time.
MANY_EDGES = 32
PARTICLE = 76
MOST_IN_STEP = 64  # atoms of a whole step, as in one_launch_step.cuh, where 64 bits tell the neighbours of an atom
OF_AN_ATOM = PARTICLE + 3 * 4 * WIDE  # floats of each atom, of any cluster, in a whole step: also what it tells


@dataclass(frozen=True)
class ClusterNetwork:
    """The network that a kernel is compiled for; the usual one, unless told otherwise.

    Attributes:
        channels: Of the network; the kernel has CHANNELS, of which the others are zero.
        hidden: Hidden layers of the head.
        gathers: Messages carry the tensors of neighbours, not those of the atom that receives them.
    """

    layers: int = 2
    channels: int = CHANNELS
    hidden: int = 1
    gated: bool = False
    activation: int = 0
    reflections: bool = True
    readout_activation: bool = True
    gathers: bool = True

    @classmethod
    def of(cls, config: TensorNetConfig) -> ClusterNetwork:
        return cls(
            layers=config.num_layers,
            channels=config.num_channels,
            hidden=1 + config.num_head_layers,
            gated=config.head == "gated",
            activation=ACTIVATIONS.index(activation_of(config)),
            reflections=config.group == "O(3)",
            readout_activation=config.readout_activation,
            gathers=config.messages == "source",
        )

    @property
    def constants(self) -> dict[str, int]:
        """Macros of one_launch_network.cuh, of what is not as usual."""
        names = {
            "layers": "NETWORK_LAYERS",
            "channels": "NETWORK_CHANNELS",
            "hidden": "HIDDEN_LAYERS",
            "gated": "GATED_HEAD",
            "activation": "ACTIVATION",
            "reflections": "REFLECTIONS",
            "readout_activation": "READOUT_ACTIVATION",
            "gathers": "GATHERS",
        }
        values = {macro: (getattr(self, name), getattr(USUAL, name)) for name, macro in names.items()}
        return {macro: int(value) for macro, (value, usual) in values.items() if value != usual}

    @property
    def room(self) -> int:
        """Floats of shared memory of an atom."""
        head = (self.hidden - 1) * (2 * WIDE if self.gated else HEAD)
        return 24 * CHANNELS + 3 * NINE + 2 * WIDE + 12 + head

    @property
    def kept(self) -> int:
        """Floats that an atom keeps for the backward pass."""
        return (3 + 5 * self.layers) * NINE + (3 + 2 * self.layers) * WIDE

    @property
    def vectors(self) -> int:
        """Floats of vectors of a block."""
        head = 2 * CHANNELS + 2 * WIDE * self.hidden if self.gated else HEAD * (1 + self.hidden)
        return 14 * CHANNELS + head + (6 + 3 * (1 + self.layers)) * WIDE


USUAL = ClusterNetwork()


@dataclass(frozen=True)
class AtomClusters:
    """How atoms are divided among clusters of blocks: `per` for each; `lanes` pairs of edges of an atom at a time.

    Attributes:
        chunk: Atoms whose products are in scratch memory at a time.
        keep: What atoms keep lies in shared memory.
    """

    per: int
    clusters: int
    lanes: int
    chunk: int
    keep: bool
    network: ClusterNetwork = USUAL

    @classmethod
    def choose(
        cls, num_atoms: int, most_clusters: int, network: ClusterNetwork = USUAL, edges: int = 0
    ) -> AtomClusters | None:
        """The fastest for these numbers of atoms, edges and clusters; None if they do not fit."""
        per = -(-num_atoms // most_clusters)
        per = next((each for each in COMPILED if each >= per), per)
        most_lanes = 16 if edges > MANY_EDGES * num_atoms else 8
        lanes = max(1, min(most_lanes, 16 // per)) if per <= MOST_COMPILED else 4
        chunk = COMPILED.get(per, 2)
        for keep in (True, False):
            plan = cls(per, -(-num_atoms // per), lanes, chunk, keep, network)
            if 4 * plan.floats <= MOST_SHARED_BYTES:
                return plan
        return None

    @property
    def is_compiled(self) -> bool:
        """Whether a kernel is compiled for this division: for few atoms in a cluster. Else loops would be too long."""
        return COMPILED.get(self.per) == self.chunk

    @property
    def constants(self) -> dict[str, int]:
        """Macros of a kernel for this division, for many atoms of the network alone: their loops would be too long."""
        division = {"ATOMS_PER_CLUSTER": self.per, "LANES": self.lanes} if self.is_compiled else {}
        chunk = {"CHUNK": self.chunk} if self.is_compiled and self.chunk < self.per else {}
        return {**division, **chunk, **self.network.constants}

    def constants_of_steps(self, num_atoms: int) -> dict[str, int]:
        """What the kernel of steps of dynamics is compiled with: also whether all edges of an atom are read ahead."""
        ahead = self.per * self.lanes <= WARPS and num_atoms - 1 <= 2 * ROUNDS * self.lanes
        return {**self.constants, "STEPS_INSIDE": 1, **({"NEAR_ONLY": 1} if ahead else {})}

    def serves_steps(self, num_atoms: int) -> bool:
        """Whether a launch can do a whole step, for which a block has a warp for each of its atoms, and others."""
        shared = 4 * (self.floats + OF_AN_ATOM * num_atoms + EDGE_FLOATS * (self.per * num_atoms + 3))
        room = 16 * num_atoms + 4 <= self.per * 3 * CHANNELS and shared <= MOST_SHARED_BYTES
        return num_atoms <= MOST_IN_STEP and self.per < WARPS and room

    @property
    def floats(self) -> int:
        """Shared memory without edges and without 12 floats that are the same for all atoms."""
        scratch = max(16 * self.chunk, self.lanes * self.per) * NINE
        return self.per * (self.network.room + self.keep * self.network.kept) + scratch + self.network.vectors + 12
