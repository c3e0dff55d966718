"""What chains of kernels read and write, counted by hand from their launches; and what a cache keeps from memory."""

from dataclasses import replace

import pytest
import torch

from torchmdx import Batch, System
from torchmdx.commands import tensor_traffic
from torchmdx.commands.tensor_traffic import DIGITS, ROWS, Traffic, traffic
from torchmdx.engines.fused.engine import kernels_for
from torchmdx.engines.plan.launch_sizes import ByElements
from torchmdx.neighbors.brute_force import brute_force

# Of one byte each, so that bytes are numbers of tensors; by element, and of the network of edges, others.
ONE = dict.fromkeys(("a", "mixed", "x", "d", "p", "g", "y", "m"), 1.0) | dict(b=0.5, one=10.0, two=20.0, three=30.0)


def test_a_cache_holds_what_a_kernel_finds_and_leaves():
    found = Traffic((100.0, 30.0, 10.0), (60.0,))
    assert found.beyond(0) == 140  # more than the 120 of what is kept
    assert found.beyond(10) == 100  # kept: 50, written and read; kernels: 80 and 10
    assert found.beyond(25) == 70  # kept: 35; kernels: 50
    assert found.beyond(60) == 0
    assert (found + found).beyond(10) == 200


def test_what_is_kept_is_read_before_it_is_written_again():
    forward, backward = ["-> a", "a -> x0 d0", "x0 -> y0"], ["d0 -> p", "p y0 -> x0", "x0 y0 ->"]
    assert traffic(forward, backward, ONE) == Traffic((1, 3, 2, 2, 3, 2), (2,))


def test_many_atoms():
    forward, backward = tensor_traffic.many_atoms(2)
    found = traffic(forward, backward, ONE)
    # Sums; norms; the first product; the gate; two layers of product, messages, product and update; the readout.
    assert found.kernels[: len(forward)] == (1, 1, 2, 2, *(2, 3, 2, 3) * 2, 1)
    # The readout; two layers of product, update, messages, product and mixing, of which the last ends at the gate.
    assert found.kernels[len(forward) :] == (4, *(2, 5, 4, 2, 6), *(2, 5, 4, 2, 5), 2, 3, 1)
    # a, mixed, x0, x1, x2, and y, m and d of both layers.
    assert found.kept == (11,)


def test_tiles_of_atoms_have_fewer_kernels():
    forward, backward = tensor_traffic.tiles(2)
    found = traffic(forward, backward, ONE)
    assert found.kernels[: len(forward)] == (1, 1, 4, 3, 5, 3, 3)
    assert found.kernels[len(forward) :] == (7, 4, 9, 4, 4, 3, 1)
    assert found.kept == (9,)  # x0 is evaluated again, and x2 is not stored
    assert sum(found.kernels) < sum(traffic(*tensor_traffic.many_atoms(2), ONE).kernels)


@pytest.mark.parametrize(("half", "again"), [(False, 2), (True, 4)])
def test_little_memory_keeps_less_and_evaluates_again(half, again):
    """a, x and y, and m and d of two layers are kept; the embedding is evaluated once or twice more."""
    found = traffic(*tensor_traffic.little_memory(2, half=half), ONE)
    assert found.kept == (7,)
    forward = 1 + 1 + 2 + 2 + (2 + 3 + 2 + 3) + (2 + 3 + 2 + 2 + 4)
    layers = (2 + 5 + 4 + 2) * 2 + again
    last, first = 2 + 6 + 2, 4  # the embedding's tensors, the gradient in them, and Y of the layer before; the gate
    assert sum(found.kernels) == forward + layers + last + first + 2 + 1 + 3 + 1


def test_a_third_layer_in_little_memory_is_updated_again():
    two, three = (sum(traffic(*tensor_traffic.little_memory(n, half=False), ONE).kernels) for n in (2, 3))
    assert three - two == (2 + 3 + 2 + 3) + (2 + 5 + 4 + 2) + (2 + 3 + 6 + 2)


def test_few_atoms():
    found = traffic(*tensor_traffic.few_atoms(2), ONE)
    assert found.kernels == (4, 6, 6, 11, 7)


def test_sums_by_element_stand_between_edges_and_atoms():
    plain, made = (
        traffic(*chain, ONE).kernels
        for chain in (tensor_traffic.many_atoms(1), tensor_traffic.by_elements(*tensor_traffic.many_atoms(1)))
    )
    assert made == (0.5, 1.5, *plain[1:-1], 1.5, 0.5)


@pytest.mark.parametrize(("kept", "tensors"), [(("one", "two"), 67), (("one",), 47), (("two",), 57), ((), 37)])
def test_charges_keep_values_of_edges(kept, tensors):
    """Beside seven tensors of atoms and z₃."""
    forward, backward = tensor_traffic.charges(1, kept)
    found = traffic(forward, backward, ONE)
    assert found.kept == (tensors,)
    extra = 20 if "two" in kept else 0
    # charges, z₁, the maps, Y, messages, product, update
    assert found.kernels[4:11] == (1, 10, 40 + extra, 2, 33, 2, 3)
    assert sum(found.kernels[len(forward) :]) == 4 + 2 + 5 + 64 + 10 * ("one" not in kept) + 50 + extra + 10 + 2 + 5 + 6


def test_what_atoms_send_cannot_be_avoided():
    assert traffic(*tensor_traffic.between_atoms(2), ONE) == Traffic((1, 1, 1, 1, 1, 2, 1, 2), (2,))


def names_of(buffers):
    """{address: names} of the tensors of atoms in tensor_traffic.py."""
    scratch, gradient = buffers.scratch, buffers.scratch.gradient
    lists = dict(x=scratch.x, y=scratch.y, m=gradient.m, d=gradient.d)
    single = dict(a=scratch.a, mixed=gradient.mixed, p=scratch.p, g=gradient.x, b=scratch.sums)
    named = [(f"{name}{i}", tensor) for name, tensors in lists.items() for i, tensor in enumerate(tensors)]
    named += single.items()
    if gradient.sent is not None:  # recompute.py: buffers take turns
        *sums, last = gradient.sent
        named = [("a", scratch.a), *((name, scratch.x[0]) for name in "xp"), *((name, last) for name in ("y", "mixed"))]
        named += [(name, tensor) for i, tensor in enumerate(gradient.d) for name in (f"d{i}", "y")]
        named += [(name, tensor) for i, tensor in enumerate(sums) for name in (f"m{i}", "g", "mixed")]
    found = {}
    for name, tensor in named:
        if tensor is not None and tensor.numel():
            found.setdefault(tensor.data_ptr(), set()).add(name)
    return found


class Recorder:
    """In place of a kernel of atom_tiles.py."""

    def __init__(self, names, launched):
        self.names, self.launched = names, launched

    def launch(self, blocks, given):
        self.launched.append(set().union(*(self.names.get(getattr(given, name), ()) for name, _ in given._fields_)))


LAYERS = 3
CASES = {
    "many atoms": (tensor_traffic.many_atoms, dict(num_channels=32), 3000, []),
    "by element": (tensor_traffic.many_atoms, dict(num_channels=32), 3000, [1, 6, 7, 8]),
    "few atoms": (tensor_traffic.few_atoms, dict(num_channels=32), 30, []),
    "little memory": (lambda n: tensor_traffic.little_memory(n, half=False), dict(num_channels=32), 100000, []),
    "half": (lambda n: tensor_traffic.little_memory(n, half=True), dict(num_channels=32), 100000, []),
    "tiles of atoms": (tensor_traffic.tiles, dict(num_channels=128), 3000, []),
    "charges": (lambda n: tensor_traffic.charges(n, ()), dict(num_channels=32, model="tensornet2"), 3000, []),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_are_given_what_they_read_and_write(monkeypatch, make_potential, case):
    """Launched without being compiled or run: every kernel gets its tensors of atoms, in this order.

    How TensorNet2's network of edges is divided among kernels depends on the GPU.
    """
    jit = pytest.importorskip("triton.runtime.jit")
    from torchmdx.engines.fused.atom_tiles import KERNELS, TileKernels

    chain, settings, num_atoms, elements = CASES[case]
    settings = settings | dict(num_layers=LAYERS, num_radial=8, cutoff=2.5)
    potential = make_potential(torch.float32, **settings).requires_grad_(False)
    batch = Batch.from_systems([System.create([[0.0, 0, 0], [0, 0, 1.1]], [6, 8])]).to("cpu", torch.float32)
    edges = brute_force(batch, 2.5)
    model = kernels_for(potential)(potential, bound=1e-2, precision="half" if case == "half" else "float32")
    tiles = model.choose_tiles(num_atoms)
    if elements:  # four of 16 functions are more than the room in tensors of 32 channels
        tiles = replace(tiles, by_elements=ByElements(edges=0))
    buffers = model.allocate(2, 1, edges.capacity, tiles=tiles, elements=elements)
    assert (buffers.scratch.sums is not None) == bool(elements)
    names, launched = names_of(buffers), []
    if case == "tiles of atoms":
        model.tile_kernels = TileKernels(model, dict.fromkeys(KERNELS, Recorder(names, launched)))

    def record(kernel, *args, **options):
        launched.append(set().union(*(names.get(x.data_ptr(), ()) for x in args if isinstance(x, torch.Tensor))))

    monkeypatch.setattr(jit.JITFunction, "run", record)
    model.run(batch.positions, batch.atomic_numbers, batch.system_index, batch.cell, batch.charge, edges)
    forward, backward = tensor_traffic.by_elements(*chain(LAYERS)) if elements else chain(LAYERS)
    after = iter(launched)
    for kernel in (*forward, *backward):
        wanted = {name for name in kernel.replace("->", " ").split() if name.rstrip(DIGITS) not in ROWS}
        assert not wanted or any(wanted <= given for given in after), kernel
