"""Branches of a step: launches on a stream of their own, which fork from the current stream and join it.

In a capture they become branches of the graph. They suit work that leaves most of the GPU idle and that nothing needs
for a while. Kernels that wait for blocks of other clusters (one_launch.py) must not be in any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from torchmdx.runtime.own_streams import own_stream


class Branch:
    """Runs functions in parallel with what follows; `join` waits for them."""

    def __init__(self, device: torch.device, number: int) -> None:
        self.device, self.number, self.used = device, number, False

    def run(self, work: Callable[[], None]) -> None:
        """Launches on the branch what depends only on what has been launched before."""
        if self.device.type != "cuda":
            work()
            return
        main = torch.cuda.current_stream(self.device)
        # Members of an ensemble are on different streams, and so are their branches.
        stream = own_stream(self.device, (main.cuda_stream, self.number))
        stream.wait_stream(main)
        self.stream, self.used = stream, True
        with torch.cuda.stream(stream):
            work()

    def join(self) -> None:
        if self.used:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
            self.used = False


@contextmanager
def in_branch(device: torch.device, number: int) -> Iterator[Branch]:
    """A branch that has joined at the end, also after an error. number: tells branches apart that are open together."""
    branch = Branch(device, number)
    try:
        yield branch
    finally:
        branch.join()
