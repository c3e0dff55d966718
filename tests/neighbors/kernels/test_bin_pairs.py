"""Pairs in bins: bits of hits, and lists that do not depend on how many of them there is room for."""

import numpy as np
import pytest
import torch
from checks import batch_of, pairs, require_neighbours
from interpreter import DEVICE, needs_kernels

from torchmdx.neighbors.search import EdgeSearch

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
bin_pairs = pytest.importorskip("torchmdx.neighbors.kernels.bin_pairs")
ones, place_of_one = bin_pairs.ones, bin_pairs.place_of_one
DENSE = np.diag([5.0, 6.0, 7.0])


@triton.jit
def _bits(WORDS, RANKS, COUNTS, PLACES, BLOCK: tl.constexpr):
    from_ = tl.arange(0, BLOCK)
    word = tl.load(WORDS + from_).to(tl.uint32, bitcast=True)
    tl.store(COUNTS + from_, ones(word))
    tl.store(PLACES + from_, place_of_one(word, tl.load(RANKS + from_).to(tl.uint32)).to(tl.int32))


@needs_kernels
def test_set_bits_of_a_word_are_counted_and_found():
    random = np.random.default_rng(0)
    words = [1 << k for k in range(32)] + [0xFFFFFFFF, 0x80000001, 0x7FFFFFFF]
    words += [int(random.integers(1, 2**32)) & int(random.integers(1, 2**32)) or 1 for _ in range(40)]
    cases = []
    for word in words:
        ones = [place for place in range(32) if word >> place & 1]
        cases += [(word, rank, place) for rank, place in enumerate(ones)]
    cases += [(0, 0, None)] * (-len(cases) % 1024)
    given = np.array([word for word, _, _ in cases], dtype=np.uint32).view(np.int32)
    for first in range(0, len(cases), 1024):
        part = cases[first : first + 1024]
        counts, places = torch.zeros(2, 1024, dtype=torch.int32, device=DEVICE)
        ranks = torch.tensor([rank for _, rank, _ in part], dtype=torch.int32, device=DEVICE)
        _bits[(1,)](torch.from_numpy(given[first : first + 1024]).to(DEVICE), ranks, counts, places, BLOCK=1024)
        assert counts.tolist() == [word.bit_count() for word, _, _ in part]
        assert [found for found, (word, _, _) in zip(places.tolist(), part, strict=True) if word] == [
            place for word, _, place in part if word
        ]


def dense(count=60):
    return [(np.random.default_rng(3).random((count, 3)) @ DENSE, DENSE, (True,) * 3)]


@pytest.mark.nightly
@needs_kernels
@pytest.mark.parametrize(("columns", "split"), [(4, 1), (2, 3)])
def test_hits_without_room_are_found_again(monkeypatch, columns, split):
    """With one word for each lane, most of the groups here have more passes than bits."""
    from torchmdx.neighbors.single_pass import OnePassCellList

    monkeypatch.setattr(OnePassCellList, "_sizes", lambda self: (16, columns, 1, 1, split))
    found, lengths = [], []
    for words in (1, 16):
        monkeypatch.setattr(OnePassCellList, "_words", lambda *_, words=words: words)
        search = EdgeSearch(2.6, backend="triton_cell_list")
        edges = search.allocate(batch_of(dense(), "triton_cell_list", torch.float32))
        require_neighbours(edges, dense(), 2.6, torch.float32)
        found.append(pairs(edges))
        lengths.append(int((search._search.lengths > 32 * words).sum()))
    assert found[0] == found[1]  # in the same order
    assert lengths[0] > 0
    assert lengths[1] == 0


@pytest.mark.nightly
@needs_kernels
@pytest.mark.parametrize("words", [1, 4])
def test_a_list_that_is_too_short_holds_the_first_edges(monkeypatch, words):
    from torchmdx.neighbors.single_pass import OnePassCellList

    monkeypatch.setattr(OnePassCellList, "_sizes", lambda self: (16, 4, 1, 1, 1))
    monkeypatch.setattr(OnePassCellList, "_words", lambda *_: words)
    batch = batch_of(dense(30), "triton_cell_list", torch.float32)
    search = EdgeSearch(2.6, backend="triton_cell_list")
    whole = pairs(search.allocate(batch))
    edges = search.allocate(batch, 100)
    assert edges.overflow
    assert int(edges.needed) == len(whole)
    assert pairs(edges) == whole[:100]
