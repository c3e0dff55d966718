"""Captures use streams that are neither in torch's pool nor used by another thread."""

import threading

import pytest
import torch

from torchmdx.runtime.own_streams import own_stream

pytestmark = pytest.mark.gpu
POOL = 32  # streams that torch hands out in turn


def test_they_are_not_of_the_pool_of_torch():
    device = torch.device("cuda")
    pool = {torch.cuda.Stream(device).cuda_stream for _ in range(2 * POOL)}
    own = {own_stream(device, number).cuda_stream for number in range(3)}
    assert len(own) == 3
    assert not own & (pool | {0})


def test_a_thread_has_its_own_and_keeps_them():
    device, found = torch.device("cuda"), []

    def look() -> None:
        found.append([own_stream(device).cuda_stream for _ in range(2)])

    for thread in [threading.Thread(target=look) for _ in range(2)]:
        thread.start()
        thread.join()
    look()
    assert all(first == second for first, second in found)
    assert len({first for first, _ in found}) == 3


def test_work_on_one_is_ordered_by_waiting():
    device = torch.device("cuda")
    stream, values = own_stream(device), torch.zeros(1 << 20, device=device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(50):
            values += 1
    torch.cuda.current_stream(device).wait_stream(stream)
    assert float(values.sum()) == 50 * (1 << 20)
