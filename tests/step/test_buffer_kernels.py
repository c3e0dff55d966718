"""The first and last kernel of a step do what StepBuffers does in torch: on a GPU, and under Triton's interpreter."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from torchmdx import Batch, System
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.step.buffer_storage import FAR, FIRST_BAD, NEEDED, NOT_FINITE, OVERFLOW, SPREADS, UNCERTAIN
from torchmdx.step.buffers import StepBuffers

# Atoms of each system; more than 128 take several programs, an empty system has results all the same.
CASES = {
    "one system": dict(sizes=[5], dtype=torch.float32),
    "stress and energies": dict(sizes=[5], dtype=torch.float32, stress=True, energies=True),
    "several systems": dict(sizes=[70, 0, 110, 3], dtype=torch.float32, stress=True, energies=True),
    "float64": dict(sizes=[70, 0, 110], dtype=torch.float64, stress=True, energies=True),
    "more systems than atoms": dict(sizes=[0] * 40 + [2], dtype=torch.float32, stress=True),
    "overflow": dict(sizes=[40], dtype=torch.float32, capacity=7),
    "not finite": dict(sizes=[90, 130], dtype=torch.float32, energies=True, bad=True),
    "far": dict(sizes=[20], dtype=torch.float32, far=True),
    "an ensemble": dict(sizes=[70, 0, 110], dtype=torch.float32, energies=True, stress=True, spread=True),
    "an ensemble of more systems than atoms": dict(sizes=[0] * 140 + [2], dtype=torch.float32, spread=True),
}


MOST_SPREAD = 0.7


def make(sizes, dtype, stress=False, energies=False, spread=False, device="cpu", **_):
    """Buffers with random contents, in a random order with images, and the model's system_index."""
    rng = np.random.default_rng(sum(sizes))
    systems = []
    for k, size in enumerate(sizes):
        pbc = [True, k % 2 == 0, False]
        cell = rng.normal(size=(3, 3)) + 9 * np.eye(3)
        systems.append(System.create(rng.uniform(-30, 30, (size, 3)), np.ones(size, dtype=int), cell, pbc))
    batch = Batch.from_systems(systems).to(device)
    buffers = StepBuffers(batch, dtype, stress=stress, energies=energies, doubts=SPREADS if spread else None)
    buffers.most.fill_(MOST_SPREAD)
    buffers.inputs["positions"].copy_(batch.positions)
    buffers.inputs["cell"].copy_(batch.cell)
    # Any order within systems, so that the model's system_index does not change.
    index = batch.system_index.cpu().numpy()
    order = torch.from_numpy(np.lexsort((rng.random(len(index)), index))).to(device)
    buffers.refresh(batch, order)
    buffers.output.fill_(123.0)
    return batch, buffers


def results(batch, buffers, sizes, dtype, stress=False, capacity=None, bad=False, far=False, spread=False, **_):
    """What a model could have given: (edges, energy, energies, forces, stress, spread), with what is wrong here."""
    n, device = batch.num_atoms, batch.positions.device
    rng = np.random.default_rng(1)

    def new(shape, dtype):
        return torch.tensor(rng.normal(size=shape), dtype=dtype, device=device)

    edges = brute_force(replace(batch, pbc=torch.zeros_like(batch.pbc)), 25.0, capacity)
    energy, energies, forces = new(len(sizes), torch.float64), new(n, torch.float64), new((n, 3), dtype)
    if bad:
        forces[100, 1], forces[57, 2], energies[200], buffers.positions[150, 0] = (
            float("nan"), float("inf"), float("-inf"), float("nan"),
        )  # fmt: skip
    if far:
        buffers.positions[11, 2] = -float(buffers.far) * 1.01
    stresses = new((len(sizes), 3, 3), dtype) if stress else None
    spreads = (new(len(sizes), torch.float64).abs(), new(n, torch.float64).abs()) if spread else None
    return edges, energy, energies, forces, stresses, spreads


def apart_from_the_host(buffers):
    """Separate blocks for host and device, as with a GPU; only the host's contain the inputs."""
    if not buffers.on_gpu:
        buffers.host_input, buffers.host_output = torch.zeros_like(buffers.input), torch.zeros_like(buffers.output)
        sizes = [view.numel() for view in buffers.inputs.values()]
        buffers.host_inputs = buffers._views_in(buffers.host_input, tuple(sizes))
    buffers.host_input.copy_(buffers.input)
    buffers.host_output.fill_(77.0)
    buffers.input.fill_(55.0)


def outcome(case, *, kernels, device="cpu", direct=False):
    """Everything that `prepare` and `finish` write. direct: from and to the host's blocks."""
    settings = CASES[case]
    batch, buffers = make(**settings, device=device)
    if direct:
        apart_from_the_host(buffers)
        from torchmdx.step.buffer_kernels import launch_finish, launch_prepare

        launch_prepare(buffers, batch.system_index, from_host=True)
    elif kernels:
        from torchmdx.step.buffer_kernels import launch_finish, launch_prepare

        launch_prepare(buffers, batch.system_index)
    else:
        buffers.prepare(batch.system_index)
    placed = buffers.positions.clone()
    given = results(batch, buffers, **settings)
    if direct:
        launch_finish(buffers, *given, to_host=len(buffers.output))
        assert torch.equal(buffers.host_output.cpu().view(torch.int64), buffers.output.cpu().view(torch.int64))
        assert torch.equal(buffers.input.cpu(), buffers.host_input)  # kept, for whoever looks at them later
    elif kernels:
        launch_finish(buffers, *given)
    else:
        buffers.finish(*given)
    return {"positions": placed, "cell": buffers.cell, **buffers.outputs}


def differences(case, device="cpu", direct=False):
    """Differences between the results of the kernels and of torch, as text."""
    wanted, found = outcome(case, kernels=False), outcome(case, kernels=True, device=device, direct=direct)
    assert wanted.keys() == found.keys()
    wrong = []
    for name, value in wanted.items():
        # Positions are rounded to the model's dtype once; in float64 the order of subtractions shows.
        close = dict(rtol=1e-13, atol=1e-13) if value.dtype == torch.float64 else dict(rtol=2e-7, atol=1e-6)
        if name != "positions":
            close = dict(rtol=0, atol=0)
        if not torch.allclose(found[name].cpu(), value, equal_nan=True, **close):
            wrong.append(f"{name}: {found[name].tolist()} instead of {value.tolist()}")
    return wrong


@pytest.mark.interpreter
@pytest.mark.parametrize("direct", [False, True], ids=["", "direct"])
@pytest.mark.parametrize("case", CASES)
def test_kernels_under_the_interpreter(case, direct):
    assert differences(case, direct=direct) == []


@pytest.mark.gpu
@pytest.mark.parametrize("direct", [False, True], ids=["", "direct"])
@pytest.mark.parametrize("case", CASES)
def test_kernels_on_a_gpu(case, direct):
    assert differences(case, device="cuda", direct=direct) == []


@pytest.mark.interpreter
def test_energies_and_flags_alone_go_to_the_host():
    assert differences_of_part() == []


def differences_of_part():
    """A kernel copies the requested number of values to the host."""
    from torchmdx.step.buffer_kernels import launch_finish

    settings = CASES["stress and energies"]
    batch, buffers = make(**settings)
    buffers.prepare(batch.system_index)
    apart_from_the_host(buffers)
    length = buffers._first_out
    launch_finish(buffers, *results(batch, buffers, **settings), to_host=length)
    wrong = [] if torch.equal(buffers.host_output[:length], buffers.output[:length]) else ["energies and flags"]
    return wrong if (buffers.host_output[length:] == 77.0).all() else [*wrong, "what comes after them"]


# What torch does is held to the meaning of the words.


@pytest.mark.parametrize("case", CASES)
def test_prepared_positions_are_the_same_structure_near_the_origin(case):
    settings = CASES[case]
    batch, buffers = make(**settings)
    buffers.prepare(batch.system_index)
    order = buffers.order.long()
    assert torch.equal(batch.system_index[order], batch.system_index)
    if len(order) > 20:
        assert not torch.equal(order, torch.arange(len(order)))
    moved = batch.positions[order] - buffers.positions.double()
    moved -= torch.einsum("ni,nij->nj", buffers.images.double(), batch.cell[batch.system_index])
    assert (buffers.images[~batch.pbc[batch.system_index]] == 0).all()
    # What is left is one translation of each system.
    for k in range(batch.num_systems):
        rest = moved[batch.system_index == k]
        if len(rest):
            assert float((rest - rest[0]).abs().max()) < (1e-5 if settings["dtype"] == torch.float32 else 1e-12)
    assert (buffers.outputs["flags"] == 0).all()


@pytest.mark.parametrize("case", CASES)
def test_finish_tells_what_is_wrong(case):
    settings = CASES[case]
    batch, buffers = make(**settings)
    buffers.prepare(batch.system_index)
    edges, energy, energies, forces, stress, spread = results(batch, buffers, **settings)
    buffers.finish(edges, energy, energies, forces, stress, spread)
    out, order = buffers.outputs, buffers.order.long()
    wrong = sorted(order[[57, 100, 150, 200]].tolist()) if settings.get("bad") else []
    flags = out["flags"].tolist()
    assert flags[NOT_FINITE] == len(wrong)
    assert flags[FIRST_BAD] == (wrong[0] if wrong else batch.num_atoms)
    assert flags[FAR] == int(settings.get("far", False))
    assert flags[OVERFLOW] == int("capacity" in settings)
    assert flags[NEEDED] == int(edges.needed)
    for name, given in (("forces", forces.double()), ("energies", energies)):
        if name in out:
            np.testing.assert_array_equal(out[name][order], given)
    np.testing.assert_array_equal(out["energy"], energy)
    if stress is not None:
        np.testing.assert_array_equal(out["stress"], stress.double())
    if spread is not None:
        np.testing.assert_array_equal(out["energy_spread"], spread[0])
        np.testing.assert_array_equal(out["force_spread"][order], spread[1])
        beyond = sum(value > MOST_SPREAD for value in spread[1].tolist())
        assert 0 < beyond < batch.num_atoms or batch.num_atoms < 3
        assert flags[UNCERTAIN] == beyond
    else:
        assert flags[UNCERTAIN] == 0
