"""Results and scratch memory of the fused kernels: every buffer that the launches of an evaluation write to.

Shapes: N atoms, E edge slots (at least 1), S systems, C channels, H = 2C, L layers; C and H are padded (weights.py).
Buffers are float32 unless the comment says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from torchmdx.engines.plan.kernels import BLOCKS, LEAN, ROWS, SLABS
from torchmdx.engines.plan.launch_sizes import Tiles

if TYPE_CHECKING:
    from torchmdx.engines.gpu.charge_buffers import ChargeScratch
    from torchmdx.engines.gpu.element_functions import PresentElements


@dataclass(frozen=True)
class BufferSizes:
    """What the shapes of buffers depend on. chain: of `KernelPlan`."""

    num_atoms: int
    num_systems: int
    capacity: int
    channels: int
    hidden: int
    layers: int
    head_layers: int  # hidden layers of the head
    head_width: int  # channels of each: 2C of a gated head
    head_gated: bool
    tiles: Tiles
    chain: str
    with_forces: bool
    device: torch.device
    sums: int = 0  # elements times functions of element_sums.py; 0: not used

    @property
    def slots(self) -> int:
        return max(self.capacity, 1)

    @property
    def one_program_per_atom(self) -> bool:
        """Whether the launches are those of few_atoms.py."""
        return self.chain == ROWS

    @property
    def head_shape(self) -> tuple[int, ...]:
        """Of the hidden layers of a head, where they are in memory; a plain head of one layer needs none."""
        if self.one_program_per_atom or (self.head_layers == 1 and not self.head_gated):
            return (0,)
        count, width = self.head_layers, self.head_width
        return (count, self.piece, width) if self.head_gated else (self.piece, count, width)

    @property
    def lean(self) -> bool:
        """Whether the launches are those of recompute.py."""
        return self.chain == LEAN

    @property
    def in_slabs(self) -> bool:
        """Whether tensors of atoms are in windows (slab_windows.py)."""
        return self.chain == SLABS

    @property
    def in_place(self) -> bool:
        """Whether products of nine components may write to the tensors that they read."""
        return self.tiles.product.options(self.channels, self.channels)["COLUMNS"] == self.channels

    @property
    def piece(self) -> int:
        """Atoms whose networks are evaluated together."""
        return min(self.tiles.piece or self.num_atoms, self.num_atoms) if self.lean else self.num_atoms

    @property
    def room_for_sums(self) -> int:
        """Floats of an atom's component in the tensors that `Scratch.sums_of` can use."""
        return (self.layers + 1) * self.channels if self.lean else self.channels

    @property
    def kept_layers(self) -> int:
        """Layers with tensors of their own. Without a gradient, layers take turns in the first one or two."""
        return self.layers if self.with_forces else min(self.layers, 2 if self.one_program_per_atom else 1)

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)


@dataclass(eq=False)
class GradientScratch:
    """What the backward pass needs beyond `Scratch`."""

    mixed: Tensor  # [N,9,C] the embedding after its linear maps, before the gate
    x: Tensor  # [N,9,C] ∂E/∂x of the tensors x of the current layer
    features: Tensor  # [N,C] gradient of the atoms' features
    norms: Tensor  # [N,3,C] standardised norms of a readout, then their gradient
    m: list[Tensor]  # L x [N,9,C] sums of messages, then their gradient
    sent: Tensor | None  # [L+1,N,9,C] m of all layers and Y of the last one, where tensors are computed again
    d: list[Tensor]  # L x [N,9,C] updates of the tensors
    half: Tensor  # [E,3] h_e of triton/forces.py
    pull: Tensor  # [slices,E] gradient in the table's variable; one slice of channels per program
    virials: Tensor  # [N,9] virial by atom

    @classmethod
    def allocate(cls, sizes: BufferSizes) -> GradientScratch:
        n, c, new, piece = sizes.num_atoms, sizes.channels, sizes.new, sizes.piece
        if sizes.in_slabs:
            return cls._of_edges(sizes)
        own = 0 if sizes.lean else n
        slices = 1 if sizes.one_program_per_atom else c // min(sizes.tiles.messages_gradient.slice, c)
        return cls(
            mixed=new(own, 9, c),
            x=new(own, 9, c),
            features=new(piece, c),
            norms=new(piece, 3, c),
            m=[] if sizes.lean else [new(n, 9, c) for _ in range(sizes.layers)],
            sent=new(sizes.layers + 1, n, 9, c) if sizes.lean else None,
            d=[new(n, 9, c) for _ in range(sizes.layers)],
            half=new(sizes.slots, 3),
            pull=new(slices, sizes.slots),
            virials=new(n, 9),
        )

    @classmethod
    def _of_edges(cls, sizes: BufferSizes) -> GradientScratch:
        """What all atoms have where tensors are in windows."""
        none = cls.allocate(replace(sizes, num_atoms=0, capacity=0, chain=BLOCKS))
        slots, slices = sizes.slots, len(none.pull)
        virials = sizes.new(sizes.num_atoms, 9)
        return replace(none, half=sizes.new(slots, 3), pull=sizes.new(slices, slots), virials=virials)


@dataclass(eq=False)
class Scratch:
    """Intermediate values of one evaluation, valid until the next.

    Lists have an entry for each layer with tensors of its own, and x one more: x[i] goes into layer i.
    """

    knot: Tensor  # [E] interval of the filter table, int32; see triton/edge_geometry.py for these three
    place: Tensor  # [E,4] direction, and place inside the interval
    stretch: Tensor  # [E,2]
    a: Tensor  # [N,9,C] sums over the surroundings, in the embedding
    p: Tensor  # [N,9,C] product of messages, and other values for a short time
    hidden: Tensor  # [N,H] hidden layer of the gate
    gate: Tensor  # [N,3,C]
    features: Tensor  # [N,C] standardised norms, then features
    # Hidden layers of a head before their activations, then their gradients: [D,N,2C] gated, [N,D,H] plain.
    head: Tensor
    x: list[Tensor]  # [N,9,C]
    y: list[Tensor]  # [N,9,C] x after the first linear maps; then the gradient
    inverse: list[Tensor]  # [N,C] 1 / (|x|² + 1)
    rare: Tensor  # [N] int32, marks of element_sums.py
    sums: Tensor | None  # [N,9,S K] of element_sums.py, where no other tensor has the room
    work: Tensor | None  # [N,...] memory of the programs of few_atoms.py
    gradient: GradientScratch | None
    charged: ChargeScratch | None = None

    @classmethod
    def allocate(cls, sizes: BufferSizes) -> Scratch:
        if sizes.in_slabs:
            return cls._of_edges(sizes)
        n, c, new, piece = sizes.num_atoms, sizes.channels, sizes.new, sizes.piece
        row, kept = sizes.tiles.row, 0 if sizes.lean else sizes.kept_layers
        return cls(
            knot=new(sizes.slots, dtype=torch.int32),
            place=new(sizes.slots, 4),
            stretch=new(sizes.slots, 2),
            a=new(n, 9, c),
            p=new(0 if sizes.lean and sizes.in_place else n, 9, c),
            hidden=new(piece, sizes.hidden),
            gate=new(n, 3, c),
            features=new(piece, c),
            head=new(*sizes.head_shape),
            x=[new(n, 9, c) for _ in range(kept + 1)],
            y=[new(n, 9, c) for _ in range(kept)],
            inverse=[] if sizes.lean else [new(n, c) for _ in range(max(kept, 1))],
            rare=new(n if sizes.sums else 0, dtype=torch.int32),
            sums=new(n, 9, sizes.sums) if sizes.sums > sizes.room_for_sums else None,
            work=new(n, row.work(c)) if row is not None and sizes.one_program_per_atom else None,
            gradient=GradientScratch.allocate(sizes) if sizes.with_forces else None,
        )

    @classmethod
    def _of_edges(cls, sizes: BufferSizes) -> Scratch:
        """What all atoms have where tensors are in windows."""
        none = cls.allocate(replace(sizes, num_atoms=0, chain=BLOCKS, with_forces=False))
        return replace(
            none,
            rare=sizes.new(sizes.num_atoms if sizes.sums else 0, dtype=torch.int32),
            gradient=GradientScratch.allocate(sizes),
        )

    def inverse_of(self, i: int) -> Tensor:
        """1 / (|x|² + 1) of x[i]; the first buffer where layers take turns, and after the last layer."""
        return self.inverse[i] if i < len(self.inverse) else self.inverse[0]

    def sums_of(self, *, back: bool) -> Tensor:
        """Memory of the sums by elements; a tensor that the forward or backward pass does not need at the time."""
        g = self.gradient
        if self.sums is None and g is not None and g.sent is not None:
            return g.sent.view(-1)
        free = g.x if back and g is not None else self.x[0]
        return free if self.sums is None else self.sums

    def tensors(self) -> Iterator[Tensor]:
        """All of them, those of the gradient and of charges included."""
        return _tensors(self)

    def share(self, other: Scratch) -> None:
        """Uses the other's tensors in place of its own wherever shapes agree."""
        _share(self, other)


class Windows(Protocol):
    """Memory of slabs of atoms (slab_windows.py). far [1] int32: whether neighbours were too many slabs apart."""

    far: Tensor

    def tensors(self) -> Iterator[Tensor]: ...


@dataclass(eq=False)
class Buffers:
    """The results of an evaluation, and its scratch memory."""

    sizes: BufferSizes
    energies: Tensor  # [N] float64
    energy: Tensor  # [S] float64
    forces: Tensor  # [N,3]
    virial: Tensor  # [S,3,3] float64
    stress: Tensor  # [S,3,3] float64, the virial by volume; not a number without a volume
    scratch: Scratch
    present: PresentElements | None = None  # of element_sums.py
    last_inputs: Tensor | None = None  # [N,D] of the last layer, for a potential with an uncertainty
    uncertainties: tuple[Tensor, Tensor] | None = None  # [S], [N] float64
    windows: Windows | None = None  # of a chain of slabs, set by who allocates

    @classmethod
    def allocate(cls, sizes: BufferSizes, present: PresentElements | None = None, *, last_inputs: int = 0) -> Buffers:
        n, s = sizes.num_atoms, sizes.num_systems
        doubts = (sizes.new(s, dtype=torch.float64), sizes.new(n, dtype=torch.float64)) if last_inputs else None
        return cls(
            sizes=sizes,
            energies=sizes.new(n, dtype=torch.float64),
            energy=sizes.new(s, dtype=torch.float64),
            forces=sizes.new(n, 3),
            virial=sizes.new(s, 3, 3, dtype=torch.float64),
            stress=sizes.new(s, 3, 3, dtype=torch.float64),
            scratch=Scratch.allocate(sizes),
            present=present,
            last_inputs=sizes.new(n, last_inputs) if last_inputs else None,
            uncertainties=doubts,
        )

    @property
    def input_width(self) -> int:
        return 0 if self.last_inputs is None else self.last_inputs.shape[1]

    @property
    def num_bytes(self) -> int:
        """Device memory of all buffers."""
        doubts = () if self.last_inputs is None else (self.last_inputs, *(self.uncertainties or ()))
        results = (self.energies, self.energy, self.forces, self.virial, self.stress, *doubts)
        tensors = [*results, *self.scratch.tensors(), *(self.windows.tensors() if self.windows else ())]
        return sum(t.numel() * t.element_size() for t in {id(t): t for t in tensors}.values())


def _tensors(value: object) -> Iterator[Tensor]:
    """All tensors of a dataclass, of its lists and of the dataclasses in it."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))


def _share(own: Any, other: Any) -> None:
    """`Scratch.share`, for two of any of the dataclasses."""
    for field in fields(own):
        mine, theirs = getattr(own, field.name), getattr(other, field.name)
        if is_dataclass(mine) and is_dataclass(theirs):
            _share(mine, theirs)
        elif isinstance(mine, list):
            shared = [_either(a, b) for a, b in zip(mine, theirs, strict=False)]
            setattr(own, field.name, shared + mine[len(shared) :])
        elif isinstance(mine, Tensor) and isinstance(theirs, Tensor):
            setattr(own, field.name, _either(mine, theirs))


def _either(mine: Tensor, theirs: Tensor) -> Tensor:
    return theirs if mine.shape == theirs.shape and mine.dtype == theirs.dtype else mine
