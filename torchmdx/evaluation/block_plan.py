"""Work in blocks of atoms: each block is evaluated with its edges, and a second time for the derivative."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchmdx.neighbors.edges import Edges


@dataclass(frozen=True)
class AtomBlock:
    """Atoms as targets, and their edges."""

    atoms: slice
    edges: slice


class Extent(NamedTuple):
    """The first atoms that are evaluated, and the first of these with a derivative: numbers of atoms, None for all.

    Both are among the numbers that the blocks were divided at.
    """

    evaluated: int | None
    differentiated: int | None


ALL = Extent(None, None)


def blocks_of(edges: Edges, most_atoms: int, most_edges: int, divided_at: Sequence[int] = ()) -> list[AtomBlock]:
    """All atoms in blocks with a limited number of atoms and edges, but at least one atom. Reads the list on the host.

    Args:
        divided_at: Numbers of first atoms at which a block ends.
    """
    ends, found, first = edges.row_ptr.tolist(), [], 0
    stops = sorted({*divided_at, edges.num_atoms})
    while first < edges.num_atoms:
        fitting = bisect_right(ends, ends[first] + most_edges) - 1
        last = min(max(fitting, first + 1), first + most_atoms, stops[bisect_right(stops, first)])
        found.append(AtomBlock(slice(first, last), slice(ends[first], ends[last])))
        first = last
    return found or [AtomBlock(slice(0, 0), slice(0, 0))]


class InBlocks(torch.autograd.Function):
    """Applies a function to each block of atoms, and evaluates it a second time for the derivative.

    work(block, *own, *sent, *of_edges): values [n,...] of the n atoms of a block, from tensors of these atoms, tensors
    of the sources of its edges, and tensors of its edges. kinds: the numbers of `own`, `sent` and `of_edges` among the
    tensors, which are given for all atoms and edges, or for as many of the first atoms as the blocks need.
    """

    @staticmethod
    def forward(
        ctx: Any,
        work: Callable[..., Tensor],
        plan: BlockPlan,
        kinds: tuple[int, int, int],
        extent: Extent,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.work, ctx.plan, ctx.kinds, ctx.extent = work, plan, kinds, extent
        ctx.save_for_backward(*tensors)
        out: Tensor | None = None
        for block in (blocks := plan.first(extent.evaluated)):
            value = work(block, *plan.parts(block, kinds, tensors))
            out = value.new_empty(blocks[-1].atoms.stop, *value.shape[1:]) if out is None else out
            out[block.atoms] = value
        assert out is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors, plan = ctx.saved_tensors, ctx.plan
        wanted = ctx.needs_input_grad[4:]
        grads = [torch.zeros_like(tensor) if want else None for tensor, want in zip(tensors, wanted, strict=True)]
        for block in plan.first(ctx.extent.differentiated):
            parts = plan.parts(block, ctx.kinds, tensors)
            leaves = [part.detach().requires_grad_(want) for part, want in zip(parts, wanted, strict=True)]
            with torch.enable_grad():  # a weighted sum, since `grad_outputs` would import sympy, which takes seconds
                weighted = (ctx.work(block, *leaves) * grad[block.atoms]).sum()
            asked = [leaf for leaf, want in zip(leaves, wanted, strict=True) if want]
            found = iter(torch.autograd.grad(weighted, asked))
            for number, whole in enumerate(grads):
                if whole is not None:
                    plan.add(block, ctx.kinds, number, whole, next(found))
        return None, None, None, None, *grads


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """The blocks of a list of edges."""

    edges: Edges
    blocks: list[AtomBlock]

    def first(self, count: int | None) -> list[AtomBlock]:
        """The blocks of the first `count` atoms, all of them for None; at least one block."""
        within = self.blocks if count is None else [block for block in self.blocks if block.atoms.stop <= count]
        return within or self.blocks[:1]

    def parts(self, block: AtomBlock, kinds: tuple[int, int, int], tensors: tuple[Tensor, ...]) -> list[Tensor]:
        """The parts of whole tensors that a block needs, as `InBlocks` describes."""
        own, sent, _ = kinds
        source = self.edges.source[block.edges]
        return [
            tensor[block.atoms]
            if number < own
            else tensor.index_select(0, source)
            if number < own + sent
            else tensor[block.edges]
            for number, tensor in enumerate(tensors)
        ]

    def add(self, block: AtomBlock, kinds: tuple[int, int, int], number: int, whole: Tensor, part: Tensor) -> None:
        """Adds the gradient by a part of a tensor to that by the whole one."""
        own, sent, _ = kinds
        if number < own:
            whole[block.atoms] += part
        elif number < own + sent:
            whole.index_add_(0, self.edges.source[block.edges], part)
        else:
            whole[block.edges] += part

    def target(self, block: AtomBlock) -> Tensor:
        """The target of each edge of a block, counted from the first atom of the block."""
        return self.edges.target[block.edges] - block.atoms.start

    def run(
        self,
        work: Callable[..., Tensor],
        own: tuple[Tensor, ...] = (),
        sent: tuple[Tensor, ...] = (),
        of_edges: tuple[Tensor, ...] = (),
        extent: Extent = ALL,
    ) -> Tensor:
        """`InBlocks` of these tensors."""
        kinds = len(own), len(sent), len(of_edges)
        found: Tensor = InBlocks.apply(work, self, kinds, extent, *own, *sent, *of_edges)
        return found
