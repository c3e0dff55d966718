"""The kernels of multiple time steps against NumPy: on a GPU, and under Triton's interpreter."""

import numpy as np
import pytest
import torch
from interpreter import DEVICE, needs_kernels

pytest.importorskip("triton")

N, BLOCK, INNER = 37, 32, 3
GRID = (2,)


def drawn(*shape):
    return torch.as_tensor(np.random.default_rng(sum(shape)).normal(size=shape), device=DEVICE)


@needs_kernels
@pytest.mark.parametrize("halted", [0, 1])
def test_inner_steps_begin_with_a_kick_of_the_difference_unless_halted(halted):
    from torchmdx.dynamics.kernels.multiple_steps import begin

    positions, velocities, forces, fast, masses = (drawn(N, 3) * scale for scale in (1, 2, 3, 5, 7))
    inverse, limits = masses[:, 0].abs().contiguous(), torch.full((N,), 1e3, dtype=torch.float64, device=DEVICE)
    verdict, control = torch.zeros(1, dtype=torch.int64, device=DEVICE), torch.tensor([8, halted], device=DEVICE)
    quick = [torch.zeros_like(positions) for _ in range(3)]
    quick_control, constants = torch.zeros_like(control), torch.tensor([0.5, 0.25, 1, 0], device=DEVICE).double()
    given = (positions, velocities, forces, fast, *quick, quick_control, inverse, limits, verdict, constants, control)
    begin[GRID](*given, N, INNER=INNER, BLOCK=BLOCK)
    kicked = velocities + INNER * 0.25 * inverse[:, None] * (forces - fast)
    for found, expected in zip(quick, (positions, kicked, fast), strict=True):
        torch.testing.assert_close(found, torch.zeros_like(found) if halted else expected, rtol=1e-13, atol=1e-13)
    assert quick_control.tolist() == [8, halted]
    assert verdict.item() == 0


@needs_kernels
@pytest.mark.parametrize(("limit", "verdict"), [(0.51, 0), (0.49, 2)])
def test_one_atom_beyond_its_limit_is_a_verdict(limit, verdict):
    from torchmdx.dynamics.kernels.multiple_steps import compare

    forces, limits = drawn(N, 3), torch.full((N,), limit, dtype=torch.float64, device=DEVICE)
    other = forces.clone()
    other[35] += torch.tensor([0.3, 0.0, -0.4], device=DEVICE)  # 0.5 eV/Å
    found, control = (torch.zeros(size, dtype=torch.int64, device=DEVICE) for size in (1, 2))
    compare[GRID](forces, other, limits, found, control, N, BLOCK=BLOCK)
    assert found.item() == verdict
    found.fill_(1)  # of an inner step, whose forces mean nothing
    compare[GRID](forces, other, limits, found, control, N, BLOCK=BLOCK)
    assert found.item() == 1


@needs_kernels
def test_positions_are_handed_over_with_the_verdict_of_the_inner_steps():
    from torchmdx.dynamics.kernels.multiple_steps import hand_over

    positions, moved = drawn(N, 3), torch.zeros(N, 3, dtype=torch.float64, device=DEVICE)
    verdict, control = (torch.zeros(size, dtype=torch.int64, device=DEVICE) for size in (1, 2))
    for inner_halted in (0, 1):
        quick_control = torch.tensor([2, inner_halted], device=DEVICE)
        hand_over[(4,)](positions, quick_control, moved, verdict, control, N, BLOCK=BLOCK)
        assert verdict.item() == inner_halted
    torch.testing.assert_close(moved, positions, rtol=0, atol=0)
    control[1] = 1
    hand_over[(4,)](2 * positions, quick_control, moved, verdict, control, N, BLOCK=BLOCK)
    torch.testing.assert_close(moved, positions, rtol=0, atol=0)
