"""The forms' kernels in C: the numbers of what is written out in torch, whatever the sizes, types and threads."""

import logging

import pytest
import torch
from pair_lists import listed, random, systems

from torchmdx import Batch, System
from torchmdx.engines.cpu import build
from torchmdx.engines.cpu import pair_forms as compiled
from torchmdx.engines.cpu import threads as rows
from torchmdx.engines.cpu.build import library
from torchmdx.engines.pairs.edge_values import to_edges
from torchmdx.engines.pairs.messages import EdgeMessages, Messages, SurroundingsForm
from torchmdx.engines.pairs.pair_list import PairList
from torchmdx.engines.pairs.products import PartSums, Products
from torchmdx.runtime import c_library

needs_compiler = pytest.mark.skipif(library() is None, reason="needs a C compiler")


def cases(pairs, channels, dtype):
    """(form, its arguments)."""
    n, p = pairs.edges.num_atoms, pairs.num_slots
    nine, filters = (n, 9, channels), (p + 1, 3, channels)
    shapes = {
        Messages(pairs): [filters, nine, nine],
        SurroundingsForm(pairs): [(p + 1, 9), filters, (n, 2, channels), nine],
        Products(symmetric=False): [nine, nine, nine],
        Products(symmetric=True): [nine, nine, nine],
    }
    for parts in (1, 3):
        for metric in (False, True):
            shapes[PartSums(parts, metric)] = [nine, nine, (n, parts, channels)]
    rows = (pairs.edges.capacity + n, 3, channels)
    shapes[EdgeMessages(pairs)] = [rows, nine, nine]
    return [(form, [random(*shape, seed=k).to(dtype) for k, shape in enumerate(all_)]) for form, all_ in shapes.items()]


def partials(pairs, channels, dtype):
    """Every derivative of every form, and rows of edges with their sums."""
    n, p = pairs.edges.num_atoms, pairs.num_slots
    ends = [random(length, channels, seed=length).to(dtype).requires_grad_() for length in (p + 1, n, n)]
    rows = to_edges(pairs, *ends)
    sums = torch.autograd.grad(rows, ends, random(*rows.shape, seed=9).to(dtype))
    return [rows.detach(), *sums] + [
        form.partial(slot, tuple(None if k == slot else v for k, v in enumerate(values)))
        for form, values in cases(pairs, channels, dtype)
        for slot in range(len(values))
    ]


@needs_compiler
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("channels", [1, 37, 130])
@pytest.mark.parametrize("capacity", [None, 700])
def test_they_are_what_torch_says(monkeypatch, dtype, tolerance, channels, capacity):
    pairs = PairList.of(*listed(Batch.from_systems(systems()), capacity))
    found = partials(pairs, channels, dtype)
    monkeypatch.setattr(compiled, "serves", lambda *tensors: False)
    for here, expected in zip(found, partials(pairs, channels, dtype), strict=True):
        assert here.dtype == dtype
        assert here.shape == expected.shape
        assert float((here - expected).abs().max() / expected.abs().max()) < tolerance


@needs_compiler
def test_slots_of_no_pair_stay_zero():
    pairs = PairList.of(*listed(Batch.from_systems(systems()), 700))
    unused = slice(int(pairs.num_pairs), pairs.num_slots)
    assert unused.stop > unused.start
    messages_, surroundings = cases(pairs, 3, torch.float64)[:2]
    for (form, values), slots in ((messages_, [0]), (surroundings, [0, 1])):
        for slot in slots:
            found = form.partial(slot, tuple(None if k == slot else v for k, v in enumerate(values)))
            assert (found[unused] == 0).all()


@needs_compiler
@pytest.mark.parametrize("openmp", [True, False], ids=["OpenMP", "threads"])
@pytest.mark.usefixtures("own_threads")
def test_any_number_of_threads_gives_the_same_bits(monkeypatch, openmp):
    if not openmp:
        monkeypatch.setattr(rows, "openmp", lambda: None)
    elif rows.openmp() is None:
        pytest.skip("torch is linked to no OpenMP that is known")
    pairs = PairList.of(*listed(Batch.from_systems(systems())))
    monkeypatch.setattr(rows, "EDGES_A_THREAD", 10)
    monkeypatch.setattr(compiled, "ATOMS_A_THREAD", 2)
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        assert len(rows.shares(pairs.edges)) == threads + 1
        found.append(partials(pairs, 5, torch.float32))
    for more in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], more, strict=True))


@needs_compiler
def test_atoms_that_see_nobody():
    batch = Batch.from_systems([System.create([[0.0, 0, 0], [90.0, 0, 0]], [1, 8])])
    pairs = PairList.of(*listed(batch, 4))
    for form, values in cases(pairs, 3, torch.float64):
        for slot in range(len(values)):
            assert torch.isfinite(
                form.partial(slot, tuple(None if k == slot else v for k, v in enumerate(values)))
            ).all()
    form, (filters, x, _) = cases(pairs, 3, torch.float64)[0]
    expected = filters[-1, [0, 1, 1, 1, 2, 2, 2, 2, 2]] * x
    torch.testing.assert_close(form.partial(2, (filters, x, None)), expected, rtol=1e-15, atol=0)


def test_other_types_are_left_to_torch():
    assert not compiled.serves(torch.zeros(1, dtype=torch.bfloat16))
    assert not compiled.serves(torch.zeros(1, device="meta"))
    assert not compiled.serves(torch.zeros(1), torch.zeros(1, dtype=torch.float64))


@pytest.fixture
def nothing_loaded(monkeypatch, tmp_path):
    """No library is loaded yet, as in a new process, and the cache directory is empty."""
    cached = build.library, build.kernel_suffix, c_library.c_library, c_library._found
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(c_library, "packaged_file", lambda *_: tmp_path / "none")
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.usefixtures("nothing_loaded")
def test_without_a_compiler_there_is_one_line_in_the_log(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with caplog.at_level(logging.DEBUG, "torchmdx"):
        for _ in range(3):
            assert not compiled.serves(torch.zeros(1))
    words = "the CPU runs slower code in torch instead of kernels: no compiler found (cc, gcc, clang or $CC)"
    assert [(record.levelname, record.message) for record in caplog.records] == [("WARNING", words)]


@needs_compiler
@pytest.mark.parametrize("suffix", build.INSTRUCTION_SUFFIXES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_instruction_set_gives_the_same_numbers(monkeypatch, suffix, dtype):
    if build.INSTRUCTION_SUFFIXES.index(suffix) > build.INSTRUCTION_SUFFIXES.index(build.kernel_suffix()):
        pytest.skip(f"this processor has no {suffix}")
    pairs = PairList.of(*listed(Batch.from_systems(systems())))
    wanted = partials(pairs, 37, dtype)
    monkeypatch.setattr(rows, "kernel_suffix", lambda: suffix)
    for found, expected in zip(partials(pairs, 37, dtype), wanted, strict=True):
        assert float((found - expected).norm() / expected.norm()) < 10 * torch.finfo(dtype).eps
