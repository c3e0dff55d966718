"""Tensors that the kernels of an evaluation read and write, for the least time that memory takes (floors.py).

A kernel is written as "what it reads -> what it writes". Names are those of buffers.py, with a number for each layer:

| name | bytes of an atom, or of a row of TensorNet2's network of edges | tensor |
|---|---|---|
| y, m | 9 C numbers | Y, and the sums of messages M; then their gradients |
| a, mixed, x, d, p, g | 9 C numbers | others of nine components; x goes into a layer, g is the gradient in x |
| b | 9 K S numbers | sums by element |
| one, two, three | C, 2 C and 3 C numbers of a row | z₁, z₂ (or slopes of its activation) and z₃ |

Smaller tensors, of gates and norms, are left out, and so are lists of edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Kernels = list[str]
DIGITS = "0123456789"
ROWS = ("one", "two", "three")


@dataclass(frozen=True)
class Traffic:
    """Bytes that each kernel reads and writes; and that are kept from a forward to its backward pass, each time."""

    kernels: tuple[float, ...] = ()
    kept: tuple[float, ...] = ()

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.kernels + other.kernels, self.kept + other.kept)

    def beyond(self, cache: float) -> float:
        """The least bytes that pass memory behind a cache of this size.

        A kernel finds at most a cache full of what it reads, and leaves at most as much of what it writes. Of what is
        kept for the backward pass, all but a cache full is written and read.
        """
        streamed = sum(max(0.0, moved - 2 * cache) for moved in self.kernels)
        return max(streamed, sum(2 * max(0.0, kept - cache) for kept in self.kept))


def traffic(forward: Kernels, backward: Kernels, sizes: dict[str, float]) -> Traffic:
    """sizes: bytes of tensors by name, without the number of a layer."""

    def moved(names: Iterable[str]) -> float:
        return sum(sizes[name.rstrip(DIGITS)] for name in names)

    there = {name for kernel in forward for name in _written(kernel)}
    again: set[str] = set()
    kept: set[str] = set()
    for kernel in backward:
        kept |= {name for name in _read(kernel) if name in there and name not in again}
        again |= set(_written(kernel))
    each = tuple(moved(_read(kernel)) + moved(_written(kernel)) for kernel in (*forward, *backward))
    return Traffic(each, (moved(kept),))


def _read(kernel: str) -> list[str]:
    return kernel.split("->")[0].split()


def _written(kernel: str) -> list[str]:
    return kernel.split("->")[1].split()


def by_elements(forward: Kernels, backward: Kernels) -> tuple[Kernels, Kernels]:
    """The same with the embedding's sums by element (element_sums.py), which begin and end the chains."""
    return ["-> b", "b -> a", *forward[1:]], [*backward[:-1], "p -> b", "b ->"]


def many_atoms(layers: int) -> tuple[Kernels, Kernels]:
    """`Chain`: a kernel for each product with weights and for each map within atoms."""
    forward = ["-> a", "a ->", "a -> mixed", "mixed -> x0"]
    for i in range(layers):
        forward += [f"x{i} -> y{i}", f"y{i} -> m{i} p", f"p -> d{i}", f"d{i} x{i} -> x{i + 1}"]
    backward = [_gradient(f"x{layers}", layers)]
    for i in reversed(range(layers)):
        backward += [f"d{i} -> p", f"p y{i} m{i} -> p m{i}", f"y{i} m{i} p -> p", f"p -> d{i}"]
        backward += [_gradient(f"d{i} x{i} g", i)]
    return [*forward, f"x{layers} ->"], [*backward, "g -> p", "p a -> p", "p ->"]


def _gradient(read: str, layer: int) -> str:
    """The gradient in what goes into a layer, and in D of the layer before, or through the gate."""
    return f"{read} d{layer - 1} -> g d{layer - 1}" if layer else f"{read} mixed -> g"


def tiles(layers: int) -> tuple[Kernels, Kernels]:
    """`TileChain`: between sums over neighbours, all work within atoms is one kernel."""
    last = layers - 1
    forward, backward = ["-> a", "a ->", "a -> mixed x0 y0"], []
    for i in range(layers):
        forward += [f"y{i} -> m{i} p", f"p x{i} -> d{i}" + (f" x{i + 1} y{i + 1}" if i < last else "")]
    for i in reversed(range(layers)):
        read = f"p g x{i + 1}" if i < last else f"x{i}"
        backward += [f"{read} d{i} y{i} m{i} -> g m{i} p", f"y{i} m{i} p -> p"]
    return forward, [*backward, "p g mixed -> p", "p a -> p", "p ->"]


def little_memory(layers: int) -> tuple[Kernels, Kernels]:
    """`LeanChain`, in place: x, y and d0 are buffers of whatever layer is at hand."""
    forward, backward = ["-> a", "a ->", "a -> d0", "d0 -> x"], []
    for i in range(layers):
        forward += ["x -> y", f"y -> m{i} d{i}", f"d{i} -> d{i}"]
        forward += [f"d{i} x -> x"] if i < layers - 1 else [f"x d{i} ->", f"x d{i} -> x d{i}"]
    for i in reversed(range(layers)):
        backward += [f"d{i} -> d{i}", f"d{i} y m{i} -> d{i} m{i}", f"y m{i} d{i} -> d{i}", f"d{i} -> d{i}"]
        backward += ["a -> mixed"] if i == layers - 1 else []
        if not i:
            backward += ["d0 mixed x -> x"]
            continue
        backward += ["mixed -> g", *(f"d{j} g -> g" for j in range(i - 1))]
        backward += [f"d{i} g x d{i - 1} -> x d{i - 1}", "g -> y"]
    return forward, [*backward, "x -> p", "a ->", "p a -> p", "p ->"]


def few_atoms(layers: int) -> tuple[Kernels, Kernels]:
    """`RowChain`: a kernel for each layer, which ends with the product in front of the next sum over neighbours."""
    last = layers - 1
    forward, backward = ["-> a mixed x0 y0"], []
    for i in range(layers):
        forward += [f"y{i} x{i} -> m{i} d{i} " + (f"x{i + 1} y{i + 1}" if i < last else "g p")]
    for i in reversed(range(layers)):
        before = f"d{i - 1} y{i - 1} m{i - 1} -> g m{i - 1} p" if i else "a mixed ->"
        backward += [f"y{i} m{i} p x{i} g {before}"]
    return forward, backward


def charges(layers: int, kept: Sequence[str]) -> tuple[Kernels, Kernels]:
    """`ChargedChain`. kept: of ROWS, those that have buffers of their own from the forward to the backward pass."""
    two = " two{}" if "two" in kept else ""
    forward, backward = ["-> a", "a ->", "a -> mixed", "mixed -> x0"], [_gradient(f"x{layers}", layers)]
    for i in range(layers):
        forward += [f"x{i} ->", f"-> one{i}", f"one{i} -> three{i}" + two.format(i), f"x{i} -> y{i}"]
        forward += [f"y{i} three{i} -> m{i} p", f"p -> d{i}", f"d{i} x{i} -> x{i + 1}"]
    for i in reversed(range(layers)):
        backward += [f"d{i} -> p", f"p y{i} m{i} -> p m{i}", f"y{i} m{i} p three{i} -> p three{i}"]
        backward += [] if "one" in kept else [f"-> one{i}"]
        backward += [f"three{i} one{i}{two.format(i)} -> one{i}", f"one{i} ->", f"p -> y{i}"]
        backward += [_gradient(f"y{i} x{i} g", i)]
    return [*forward, f"x{layers} ->"], [*backward, "g -> p", "p a -> p", "p ->"]


def between_atoms(layers: int) -> tuple[Kernels, Kernels]:
    """What no engine avoids: atoms send Y, and gradients in M, which need Y as well."""
    each = range(layers)
    forward = [kernel for i in each for kernel in (f"-> y{i}", f"y{i} ->")]
    return forward, [kernel for i in reversed(each) for kernel in (f"-> m{i}", f"y{i} m{i} ->")]
