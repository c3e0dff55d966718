"""Messages in kernels of CUDA C++: emulated on the CPU and on a GPU against sums in float64, and compiled."""

from types import SimpleNamespace

import pytest
import torch
from emulated import message_emulators, needs_nvrtc

from torchmdx.engines.gpu import row_messages
from torchmdx.engines.gpu.many_atoms import Chain
from torchmdx.engines.gpu.row_messages import RowMessages
from torchmdx.models.tensors import squared_norm, symmetric_product

pytest.importorskip("triton")

INTERVALS, SOURCES, C, FIRST = 7, 23, 128, 100
PARTS = [0, 1, 1, 1, 2, 2, 2, 2, 2]
COUNTS = (0, 1, 3, 33, 70, 32, 5, 0, 31, 2, 9, 40, 64, 1)  # edges of rows: none, a few, more than a warp reads at once


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """The kernels on one core."""
    return message_emulators(tmp_path_factory.mktemp("rows"))


class Rows(RowMessages):
    """One layer of random rows, the second of three: only its launches.

    Args:
        window: For how many atoms the tensors of sources have room; atoms are then counted from elsewhere. 0: for all.
        counts: Of a domain, how many atoms are evaluated by hops.
    """

    def __init__(self, kernels, device="cpu", *, window=0, counts=None, dtype=torch.float64):
        self.random, self.device = torch.Generator().manual_seed(0), device
        self.kernels, self.n, self.room, self.counts = kernels, len(COUNTS), window, counts
        ends = torch.tensor((0, *COUNTS)).cumsum(0)
        self.count = int(ends[-1])
        self.edges = SimpleNamespace(row_ptr=ends.int().to(device))
        self.targets = torch.repeat_interleave(torch.arange(self.n), torch.tensor(COUNTS)).to(device)
        self.sources = self.integers(SOURCES, self.count + 3)
        self.senders = self.sources + (FIRST + 5 if window else 0)
        knot = self.integers(INTERVALS + 1, self.count + 3) - 1  # some edges are beyond the cutoff
        place = torch.rand(self.count + 3, 4, generator=self.random).to(device)
        gradient = SimpleNamespace(pull=self.new(1, self.count + 3))
        self.b = SimpleNamespace(knot=knot, place=place, gradient=gradient)
        *powers, fourth, fifth = (self.new(INTERVALS, 3, C) * 0.5**q for q in range(6))
        last = fourth.view(torch.int32) & ~0x3FFF | (fifth.view(torch.int32) >> 18) & 0x3FFF
        words = torch.stack([*(power.view(torch.int32) for power in powers), last], 1)
        self.tables, self.own = [None, None, words.view(torch.uint32), None], self.new(3, C)
        self.powers = torch.stack([*powers, last.view(torch.float32), (last << 18).view(torch.float32)], 1).double()
        self.weights = SimpleNamespace(layers=[None, SimpleNamespace(own=self.own), None])
        self.charge = torch.tensor([0.0, 2.0], dtype=dtype, device=device)
        self.system = torch.tensor([0] * 4 + [1] * (self.n - 4), device=device)
        self.sent = self.new(SOURCES, 9, C)  # Y or the gradient in M of all sources

    def new(self, *shape):
        return torch.randn(shape, generator=self.random).to(self.device)

    def integers(self, most, count):
        return torch.randint(most, (count,), generator=self.random, dtype=torch.int32).to(self.device)

    def atoms(self, hops):
        return self.n if self.counts is None else torch.tensor([self.counts[hops]], dtype=torch.int32).to(self.device)

    def _all_y(self, i, y):
        if not self.room:
            return self.sent
        self.windowed = torch.full((self.room, 9, C), torch.nan, device=self.device)  # kept until it has been read
        self.windowed[(torch.arange(SOURCES) + 5) % self.room] = self.sent
        return self.windowed

    _all_m = _all_y

    def _window(self, tensor):
        return (FIRST, self.room) if self.room else (0, 0)

    def filters(self):
        """Filters and slopes of all edges [E,3,C] in float64, zero beyond the cutoff."""
        table, t = self.powers[self.b.knot.long().clamp(min=0)], self.b.place[:, 3, None, None].double()
        value, slope = (torch.zeros_like(table[:, 0]) for _ in range(2))
        for q in reversed(range(6)):
            value, slope = value * t + table[:, q], slope * t + value
        inside = (self.b.knot >= 0)[:, None, None]
        return (value * inside)[: self.count], (slope * inside)[: self.count]

    def sums(self, filters, sources=SOURCES):
        """Σ_j f Y_j of each row in float64, over the first sources only."""
        near = (self.sources[: self.count] < sources)[:, None, None]
        given = filters[:, PARTS] * self.sent.double()[self.sources[: self.count].long()] * near
        zero = torch.zeros(self.n, 9, C, dtype=torch.float64, device=self.device)
        return zero.index_add_(0, self.targets, given)


def close(found, expected):
    return float((found.double() - expected).norm()) < 1e-6 * float(expected.norm())


CASES = [{}, {"window": SOURCES + 2}, {"counts": (3, 6, 9)}, {"dtype": torch.float32}]


def check_messages(rows):
    """M and the normalised product are those of float64, with M kept or not; other rows stay as they are."""
    count = rows.n if rows.counts is None else rows.counts[1]
    y = rows.new(rows.n, 9, C)
    m, p, not_kept, again = (torch.full((rows.n, 9, C), torch.nan, device=rows.device) for _ in range(4))
    rows._walk_messages(1, y, m, p, True)
    rows._walk_messages(1, y, not_kept, again, False)
    filters, _ = rows.filters()
    expected = rows.sums(filters) + rows.own.double()[PARTS] * y.double()
    factor = 1 + 0.1 * rows.charge.double()[rows.system]
    product = symmetric_product(y.double(), expected) * factor[:, None, None]
    assert close(m[:count], expected[:count])
    assert close(p[:count], (product / (squared_norm(product) + 1)[:, None])[:count])
    assert torch.equal(again[:count], p[:count])
    assert not_kept.isnan().all()
    assert m[count:].isnan().all()
    assert p[count:].isnan().all()


def check_gradient(rows):
    """The gradients in Y and in the places of edges are those of float64, where they are written and added to."""
    received, count = (SOURCES, rows.n) if rows.counts is None else rows.counts[1:]
    y, before, gm = rows.new(rows.n, 9, C), rows.new(rows.n, 9, C), rows.new(rows.n, 9, C)
    filters, slopes = rows.filters()
    of_row = before.double() + rows.own.double()[PARTS] * gm.double()
    of_row[received:] = 0
    before[received:count] = gm[received:] = torch.nan  # zero, without being read
    expected = of_row + rows.sums(filters, received)
    sources = rows.sources[: rows.count].long()
    along = (slopes[:, PARTS] * y.double()[rows.targets] * rows.sent.double()[sources]).sum((1, 2))
    along *= sources < received
    evaluated, pull = rows.targets < count, rows.b.gradient.pull
    for first in (True, False):
        gradient, pulled = before.clone(), pull.clone()
        rows._walk_messages_gradient(1, y, gm, gradient, first)
        assert close(gradient[:count], expected[:count])
        assert torch.equal(gradient[count:], before[count:])
        wanted = along if first else along + pulled[0, : rows.count].double() * (rows.targets < received)
        assert close(pull[0, : rows.count][evaluated], wanted[evaluated])
        assert torch.equal(pull[0, : rows.count][~evaluated], pulled[0, : rows.count][~evaluated])
        assert torch.equal(pull[0, rows.count :], pulled[0, rows.count :])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_emulated_messages_are_sums_in_float64(kernels, case):
    check_messages(Rows(kernels, **case))


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_the_emulated_gradient_is_that_of_float64(kernels, case):
    check_gradient(Rows(kernels, **case))


def test_a_place_that_is_not_a_number_reaches_its_row_alone(kernels):
    rows = Rows(kernels)
    edge = int(rows.edges.row_ptr[4]) + 40  # of the fifth row
    rows.b.place[edge, 3], rows.b.knot[edge] = torch.nan, 0
    y = rows.new(rows.n, 9, C)
    m, p = torch.zeros_like(y), torch.zeros_like(y)
    rows._walk_messages(1, y, m, p, True)
    assert m.isnan().flatten(1).any(1).tolist() == [row == 4 for row in range(rows.n)]
    assert m[4].isnan().all()


def test_tables_of_six_words_are_left_to_triton(kernels, monkeypatch):
    launched = []
    monkeypatch.setattr(Chain, "_walk_messages", lambda *given: launched.append("messages"))
    monkeypatch.setattr(Chain, "_walk_messages_gradient", lambda *given: launched.append("gradient"))
    rows = Rows(kernels)
    rows.tables[2] = rows.powers.float()
    y = rows.new(rows.n, 9, C)
    rows._walk_messages(1, y, y, y, True)
    rows._walk_messages_gradient(1, y, y, y, True)
    assert launched == ["messages", "gradient"]


def test_several_slices_of_channels_are_left_to_triton(kernels, monkeypatch):
    launched = []
    monkeypatch.setattr(Chain, "_walk_messages_gradient", lambda *given: launched.append("gradient"))
    rows = Rows(kernels)
    rows.b.gradient = SimpleNamespace(pull=rows.new(2, rows.count + 3))
    y = rows.new(rows.n, 9, C)
    rows._walk_messages_gradient(1, y, y, y, True)
    assert launched == ["gradient"]


def test_the_kernels_compile_for_hopper(tmp_path, monkeypatch):
    needs_nvrtc(tmp_path, monkeypatch)
    assert row_messages.code()[:4] == b"\x7fELF"


def on_hopper():
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not on_hopper(), reason=f"needs a GPU of the architecture {row_messages.ARCHITECTURE}")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_messages_and_their_gradient_on_a_gpu(case):
    kernels = row_messages.launchers(torch.device("cuda", torch.cuda.current_device()))
    check_messages(Rows(kernels, "cuda", **case))
    check_gradient(Rows(kernels, "cuda", **case))
