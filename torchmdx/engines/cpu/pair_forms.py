"""Kernels in C for the multilinear forms of `torchmdx.engines.pairs.products` and `messages`.

Unlike the torch operations they need no intermediate arrays of edges times nine components, which are slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchmdx.engines.cpu.build import library
from torchmdx.engines.cpu.threads import TYPES, addresses, lists_of, run_rows, shares
from torchmdx.models.tensors import PARTS, to_components

if TYPE_CHECKING:
    from torchmdx.engines.pairs.pair_list import PairList

# With fewer atoms per thread, another thread costs more time than it saves in products of tensors.
ATOMS_A_THREAD = 256
# Kernels of the derivatives of surroundings, by slot.
SURROUNDINGS = ("surroundings_directions", "surroundings_filters", "surroundings_atoms", "surroundings_rows")


def serves(*tensors: Tensor) -> bool:
    """Whether there are kernels for these tensors: on the CPU, of one dtype (under autocast dtypes may differ)."""
    first = tensors[0]
    if first.device.type != "cpu" or first.dtype not in TYPES or any(x.dtype != first.dtype for x in tensors):
        return False
    return library() is not None


def messages_rows(pairs: PairList, f: Tensor, x: Tensor) -> Tensor:
    """The derivative of `Messages` by X or G, [N,9,C], from f [P+1,3,C] and the other one."""
    out = to_components(f[-1]) * x
    over_rows("message_rows", pairs, f, x, out, code=pairs.code // 2)
    return out


def messages_pairs(pairs: PairList, x: Tensor, g: Tensor) -> Tensor:
    """The derivative of `Messages` by F, [P+1,3,C]."""
    out = x.new_zeros(pairs.num_slots + 1, 3, x.shape[2])
    over_rows("message_pairs", pairs, x, g, out)
    both = (x * g).sum(0)
    torch.stack([both[part].sum(0) for part in PARTS], out=out[-1])
    return out


def surroundings(pairs: PairList, slot: int, *arguments: Any) -> Tensor:
    """The derivative of `Surroundings` by D [P+1,9], F [P+1,3,C], Z [N,2,C] or G [N,9,C], the one that is None."""
    d, _, z, g = arguments
    given = [a for a in arguments if a is not None]
    channels, atoms = given[-1].shape[2], pairs.edges.num_atoms
    rows = pairs.num_slots + 1
    shape = ((rows, 9), (rows, 3, channels), (atoms, 2, channels), (atoms, 9, channels))[slot]
    # Kernels write all rows of atoms, but of pairs only those in use.
    out = given[0].new_zeros(shape) if slot < 2 else given[0].new_empty(shape)
    over_rows(SURROUNDINGS[slot], pairs, *given, out)
    if slot == 1:
        out[-1, 0] = d[-1, 0] * (z.sum(1) * g[:, 0]).sum(0)
    return out


def products(slot: int, symmetric: bool, *arguments: Any) -> Tensor:
    """The derivative of `Products` by a, b or h, [N,9,C], the one that is None."""
    a, b, h = arguments
    left, right = ((h, b), (a, h), (a, b))[slot]
    out = torch.empty_like(left)
    over_atoms("products", (left.shape[2], slot, int(symmetric)), left, right, out)
    return out


def part_sums(a: Tensor, b: Tensor, parts: int, metric: bool) -> Tensor:
    """The derivative of `PartSums` by h, [N,parts,C]."""
    out = a.new_empty(len(a), parts, a.shape[2])
    over_atoms("part_sums", (a.shape[2], parts, int(metric)), a, b, out)
    return out


def scale_parts(b: Tensor, h: Tensor, metric: bool) -> Tensor:
    """The derivative of `PartSums` by one tensor, [N,9,C], from the other one and h [N,parts,C]."""
    if h.shape[1] == 1 and not metric:
        return h * b  # a kernel would not be faster
    out = torch.empty_like(b)
    over_atoms("scale_parts", (b.shape[2], h.shape[1], int(metric)), h, b, out)
    return out


def over_atoms(name: str, numbers: tuple[int, ...], *arrays: Tensor) -> None:
    """Runs a kernel over atoms, in threads; numbers: its arguments before the arrays."""
    count = len(arrays[-1])
    threads = max(1, min(torch.get_num_threads(), count // ATOMS_A_THREAD))
    bounds = [count * k // threads for k in range(threads + 1)]
    dtype = arrays[0].dtype
    run_rows(name, dtype, bounds, *numbers, *addresses(name, dtype, *arrays))


def over_rows(name: str, pairs: PairList, *arrays: Tensor, code: Tensor | None = None) -> None:
    """Runs a kernel over the rows of the list, in threads."""
    edges = pairs.edges
    channels = next(a.shape[2] for a in arrays if a.dim() == 3)
    dtype, lists = arrays[0].dtype, lists_of(edges, edges.source, pairs.code if code is None else code)
    run_rows(name, dtype, shares(edges), channels, pairs.num_slots, *lists, *addresses(name, dtype, *arrays))
