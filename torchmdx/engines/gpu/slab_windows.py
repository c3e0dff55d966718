"""Memory of an evaluation in slabs (slabs.py): windows of tensors, in which slabs take turns.

A window has room for some slabs in a row; slab s is at place s modulo their number. How many it has follows from the
stages at which a tensor is made and used last (`Lags`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from torchmdx.engines.gpu.buffers import Buffers, BufferSizes, GradientScratch, Scratch
from torchmdx.engines.gpu.slab_layout import SlabLayout
from torchmdx.neighbors.edges import Edges


@dataclass(frozen=True)
class SlabShape:
    """`count` slabs of `rows` atoms each (the last may have fewer), whose neighbours are at most `reach` slabs away."""

    atoms: int
    rows: int
    reach: int

    @classmethod
    def of_layout(cls, atoms: int, layout: SlabLayout) -> SlabShape | None:
        """None if the order of the atoms has not chosen slabs."""
        return None if layout.rows is None else cls(atoms, layout.rows, layout.reach)

    @property
    def count(self) -> int:
        return -(-self.atoms // self.rows)

    def of(self, slab: int) -> slice:
        """The atoms of a slab."""
        return slice(slab * self.rows, min((slab + 1) * self.rows, self.atoms))


@dataclass(frozen=True)
class Lags:
    """By how many slabs the stages of a network of L layers follow the first one, the embedding."""

    layers: int
    reach: int

    def layer(self, i: int) -> int:
        """Of layer i; after the last one energies are read."""
        return (i + 1) * self.reach

    def back(self, i: int) -> int:
        """Of the gradient of layer i; that of the first ends with the gradients of edges."""
        return (2 * self.layers - i) * self.reach

    def kept(self, i: int) -> int:
        """How long what goes into layer i is kept for its gradient; also M, which is gathered after its gradient."""
        return self.back(i) - i * self.reach

    @property
    def last(self) -> int:
        return self.back(0)


@dataclass(eq=False)
class SlabWindows:
    """Windows of the tensors of `Scratch`, by the same names, and memory that a single stage uses."""

    shape: SlabShape
    lags: Lags
    a: Tensor
    gate: Tensor
    x: list[Tensor]  # of all layers but the last, before each
    inverse: list[Tensor]
    y: list[Tensor]
    m: list[Tensor]
    d: list[Tensor]
    gradient: Tensor  # in X
    p: Tensor  # of the backward pass
    mixed: Tensor  # one slab, as all below
    hidden: Tensor
    spare: Tensor
    sums: Tensor
    norms: Tensor
    features: Tensor
    gradient_features: Tensor
    head: Tensor
    far: Tensor  # [1] int32; see triton/slab_edges.py

    @classmethod
    def allocate(cls, sizes: BufferSizes, shape: SlabShape) -> SlabWindows:
        import torch

        c, new, layers = sizes.channels, sizes.new, sizes.layers
        lags, rows = Lags(layers, shape.reach), min(shape.rows, max(shape.atoms, 1))

        def window(lag: int, *of_atom: int) -> Tensor:
            """For a tensor that is used last `lag` slabs behind the stage that makes it."""
            return new(min(lag + 1, max(shape.count, 1)) * rows, *of_atom)

        tall, one_slab = lags.last, replace(sizes, num_atoms=rows)
        own = [lags.kept(i) if i else shape.reach for i in range(layers)]
        spare = new(rows, 9, c)
        return cls(
            shape=shape,
            lags=lags,
            a=window(tall, 9, c),
            gate=window(tall, 3, c),
            hidden=new(rows, sizes.hidden),
            x=[window(lag, 9, c) for lag in own],
            inverse=[window(lag, c) for lag in own],
            y=[window(lags.kept(i), 9, c) for i in range(layers)],
            m=[window(lags.kept(i), 9, c) for i in range(layers)],
            d=[window(lags.back(i + 1) - lags.layer(i), 9, c) for i in range(layers)],
            gradient=window(lags.last - lags.layer(layers - 1), 9, c),
            p=window(lags.last - lags.layer(layers - 1), 9, c),
            mixed=new(rows, 9, c),
            spare=spare,
            sums=spare if sizes.sums <= c else new(rows, 9, sizes.sums),
            norms=new(rows, 3, c),
            features=new(rows, c),
            gradient_features=new(rows, c),
            head=new(*one_slab.head_shape),
            far=new(1, dtype=torch.int32),
        )

    def tensors(self) -> Iterator[Tensor]:
        for value in vars(self).values():
            yield from value if isinstance(value, list) else [value] if isinstance(value, Tensor) else []

    def buffers_of(self, slab: int, whole: Buffers) -> Buffers:
        """The buffers of one slab, as parts of the windows and of the buffers of all atoms."""
        atoms, rows = self.shape.of(slab), min(self.shape.rows, max(self.shape.atoms, 1))
        count, g = atoms.stop - atoms.start, whole.scratch.gradient
        assert g is not None

        def of(window: Tensor) -> Tensor:
            start = slab % (len(window) // rows) * rows
            return window[start : start + count]

        head = self.head[:, :count] if whole.sizes.head_gated else self.head[:count]
        gradient = GradientScratch(
            mixed=self.mixed[:count],
            x=of(self.gradient),
            features=self.gradient_features[:count],
            norms=self.norms[:count],
            m=[of(m) for m in self.m],
            sent=None,
            d=[of(d) for d in self.d],
            half=g.half,
            pull=g.pull,
            virials=g.virials,
        )
        # X after the last layer takes the memory of mix(A), which no other stage than the first and the last has.
        scratch = Scratch(
            knot=whole.scratch.knot,
            place=whole.scratch.place,
            stretch=whole.scratch.stretch,
            a=of(self.a),
            p=self.spare[:count],
            hidden=self.hidden[:count],
            gate=of(self.gate),
            features=self.features[:count],
            head=head if self.head.numel() else self.head,
            x=[*(of(x) for x in self.x), self.mixed[:count]],
            y=[of(y) for y in self.y],
            inverse=[of(inverse) for inverse in self.inverse],
            rare=whole.scratch.rare[atoms] if whole.sizes.sums else whole.scratch.rare,
            sums=self.sums[:count],
            work=None,
            gradient=gradient,
        )
        return replace(
            whole, sizes=replace(whole.sizes, num_atoms=count), energies=whole.energies[atoms], scratch=scratch,
            windows=None, last_inputs=None if whole.last_inputs is None else whole.last_inputs[atoms],
        )  # fmt: skip


def edges_of(edges: Edges, atoms: slice) -> Edges:
    """The rows of some atoms."""
    return replace(edges, row_ptr=edges.row_ptr[atoms.start : atoms.stop + 1])
