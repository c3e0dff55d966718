"""Branches of launches: their order, with and without a GPU, and in a captured graph."""

import pytest
import torch

from torchmdx.engines.gpu.branches import in_branch


def test_without_a_gpu_work_runs_in_its_place():
    order = []
    with in_branch(torch.device("cpu"), 1) as branch:
        branch.run(lambda: order.append("branch"))
        order.append("main")
    assert order == ["branch", "main"]


@pytest.mark.gpu
def test_a_branch_sees_what_came_before_and_is_seen_by_what_comes_after():
    device = torch.device("cuda", torch.cuda.current_device())
    x, y, z = (torch.zeros(1 << 22, device=device) for _ in range(3))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()  # the zeros are written in another stream than the work

    def work():
        x.add_(1)
        with in_branch(device, 1) as first, in_branch(device, 2) as second:
            first.run(lambda: y.copy_(x).mul_(2))
            second.run(lambda: z.copy_(x).mul_(3))
        y.add_(z)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        work()
    graph.replay()
    torch.cuda.synchronize()
    assert (y == 2 * 2 + 2 * 3).all()


@pytest.mark.gpu
def test_a_branch_joins_after_an_error_too():
    device = torch.device("cuda", torch.cuda.current_device())
    x, graph = torch.zeros(8, device=device), torch.cuda.CUDAGraph()

    def fails():
        with in_branch(device, 1) as branch:
            branch.run(lambda: x.add_(1))
            raise KeyError

    # A branch that has not joined would make the capture fail.
    with torch.cuda.graph(graph), pytest.raises(KeyError):
        fails()
    graph.replay()
    assert (x == 1).all()
