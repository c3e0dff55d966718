"""The maps of TensorNet2's filters by warps that specialise: emulated on the CPU, and on a GPU."""

import copy
import ctypes
import shutil
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from charged_buffers import replanned
from emulated import compiled, needs_nvrtc
from interpreter import INTERPRETED, needs_kernels
from test_gpu_tensornet import CUTS, batch_of, run

from torchmdx import CapturedStep, Potential, TensorNet2Config
from torchmdx.engines import ops
from torchmdx.engines.plan import Workload, machine_named
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.neighbors.brute_force import brute_force

pytest.importorskip("triton")

from torchmdx.engines.gpu import edge_maps
from torchmdx.engines.gpu.edge_maps import BACKWARD, BY_SLOPES, FORWARD, WITH_SLOPES, EdgeMaps
from torchmdx.engines.gpu.fp16_parts import HalfParts
from torchmdx.engines.gpu.tensornet2 import FastTensorNet2

C = 128
needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an H100 or H200"
)


class EmulatedMaps:
    """Runs one of the kernels on one core, as `ClusterKernel` does on a GPU."""

    def __init__(self, library, which):
        self.library, self.which = library, which

    def most_clusters(self, shared_bytes):
        return 2

    def launch(self, clusters, shared_bytes, given):
        self.library.launch(ctypes.byref(given), self.which, clusters, shared_bytes)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("edge_maps"), "edge_maps")


def maps_of(library, filters, clusters=2):
    names = (FORWARD, BACKWARD, WITH_SLOPES, BY_SLOPES)
    return EdgeMaps(filters, {name: EmulatedMaps(library, k) for k, name in enumerate(names)}, clusters)


@pytest.fixture(scope="module")
def weights():
    """Filters as `FilterWeights` has them, and their matrices in float64."""
    torch.manual_seed(0)
    middle, last = torch.randn(2 * C, C) / C**0.5, torch.randn(3 * C, 2 * C) / (2 * C) ** 0.5
    return SimpleNamespace(
        middle=middle.double(),
        last=last.double(),
        middle_bias=torch.randn(2 * C) * 0.3,
        last_bias=torch.randn(3, C) * 0.3,
        middle_parts=HalfParts.of(middle),
        last_parts=HalfParts.of(last),
    )


def exact(w, z1, g3):
    """z₃ and the gradient in z₁, in float64."""
    z2 = torch.nn.functional.silu(z1.double()) @ w.middle.T + w.middle_bias.double()
    z3 = torch.nn.functional.silu(z2) @ w.last.T + w.last_bias.double().flatten()
    g2 = (g3.double().flatten(1) @ w.last) * ops.slope(z2)
    return z3, (g2 @ w.middle) * ops.slope(z1.double())


def rows_of(count, spare, seed=0):
    """z₁ of `count` rows in use with some small rows, a gradient in z₃, and row_ptr of five atoms."""
    made = torch.Generator().manual_seed(seed)
    z1 = torch.randn(count + spare, C, generator=made) * 2
    z1[7] *= 1e-4
    g3 = torch.randn(count + spare, 3, 2, 64, generator=made)
    g3 *= torch.exp(2 * torch.randn(count + spare, 3, 2, 1, generator=made))
    g3[3, 1] = 0
    row_ptr = torch.zeros(6, dtype=torch.int32)
    row_ptr[5] = count - 5
    return z1, g3, row_ptr


def test_python_and_the_kernel_agree_on_sizes(library, weights):
    matrices = maps_of(library, [weights]).matrices[0]
    stages = [len(matrices[name]) for name in (FORWARD, BACKWARD, BY_SLOPES)]
    sizes = [edge_maps.STAGE, edge_maps.THREADS, edge_maps.ROWS, *stages, ctypes.sizeof(edge_maps.EdgeMapsStruct)]
    sizes += [edge_maps.SHARED_BYTES[FORWARD], edge_maps.SHARED_BYTES[BACKWARD]]
    assert sizes == [library.constant(k) for k in range(len(sizes))]
    assert edge_maps.pack_forward(weights.middle_parts, weights.last_parts)[0].numel() * 2 == edge_maps.STAGE


@pytest.mark.nightly_for("5-2", "300-2")
@pytest.mark.parametrize(("count", "clusters"), [(300, 1), (300, 2), (5, 2)])
def test_emulated_maps_agree_with_float64_and_leave_other_rows_alone(library, weights, count, clusters):
    z1, g3, row_ptr = rows_of(count, spare=40)
    maps, (z3_exact, back_exact) = maps_of(library, [weights], clusters), exact(weights, z1, g3)
    z3 = torch.full((len(z1), 3, C), 7.0)
    maps.forth(0, z1, z3, row_ptr)
    assert (z3[:count].flatten(1) - z3_exact[:count]).norm() < 3e-7 * z3_exact[:count].norm()
    assert (z3[count:] == 7.0).all()
    back = z1.clone()
    maps.back(0, back, g3, row_ptr)
    assert (back[:count] - back_exact[:count]).norm() < 4e-7 * back_exact[:count].norm()
    assert torch.equal(back[count:], z1[count:])
    slopes, again = torch.full((len(z1), 2 * C), 7.0), torch.zeros_like(z3)
    maps.forth(0, z1, again, row_ptr, slopes)
    assert torch.equal(again[:count], z3[:count])
    assert (slopes[count:] == 7.0).all()
    back = z1.clone()
    maps.back(0, back, g3, row_ptr, slopes)
    assert (back[:count] - back_exact[:count]).norm() < 4e-7 * back_exact[:count].norm()


@pytest.mark.nightly
def test_the_order_in_which_threads_run_changes_nothing(library, weights, monkeypatch):
    z1, g3, row_ptr = rows_of(290, spare=0)
    maps = maps_of(library, [weights], 1)
    found = []
    for seed in (None, "1", "2"):
        if seed is not None:
            monkeypatch.setenv("EMULATED_ORDER", seed)
        z3, back = torch.zeros(len(z1), 3, C), z1.clone()
        maps.forth(0, z1, z3, row_ptr)
        maps.back(0, back, g3, row_ptr)
        found.append((z3, back))
    for z3, back in found[1:]:
        assert torch.equal(z3, found[0][0])
        assert torch.equal(back, found[0][1])


def test_a_value_that_is_not_a_number_stays_in_its_row(library, weights):
    z1, _, row_ptr = rows_of(140, spare=0)
    z1[20, 3] = torch.nan
    z3 = torch.zeros(len(z1), 3, C)
    maps_of(library, [weights]).forth(0, z1, z3, row_ptr)
    assert z3[20].isnan().all()
    assert not z3[:20].isnan().any()
    assert not z3[21:].isnan().any()


@pytest.mark.nightly_for("settings1")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(num_channels=64), "they need 128 channels, got 64"),
        (dict(activation="tanh"), "they need the activation silu, got tanh"),
        (dict(), None),
    ],
)
def test_another_network_is_left_to_other_kernels(settings, reason):
    potential = Potential(TensorNet2Config(num_layers=1, num_radial=4, **settings))
    fast = FastTensorNet2(potential, bound=1e-2)
    with pytest.raises(ValueError, match="maps of edges in one kernel do not serve this network: they need a GPU of"):
        fast.use_edge_maps()
    work = Workload(atoms=300, capacity=9000)
    assert not fast.planned(work).edge_maps
    fast.machine = machine_named("H100")
    assert fast.planned(work).edge_maps == (reason is None)
    if reason is not None:
        with pytest.raises(ValueError, match=f"do not serve this network: {reason}"):
            fast.use_edge_maps()


@pytest.mark.nightly
@needs_kernels
@pytest.mark.skipif(not INTERPRETED, reason="the emulated kernel reads memory of the CPU")
@pytest.mark.parametrize("keeps", [False, True])
def test_a_potential_with_emulated_maps_agrees_with_the_exact_model(library, make_potential, ethanol, cation, keeps):
    potential = make_potential(model="tensornet2", num_channels=C, num_layers=2)
    batch, tiles = batch_of(ethanol, cation), CUTS["coarse"]
    fast = replanned(FastTensorNet2(potential), edge_maps=True, keeps_slopes=keeps)
    fast.edge_maps = maps_of(library, fast.charged.filters)
    found = run(potential, batch, fast=fast, tiles=tiles)
    assert (found.scratch.charged.z2 == []) == (not keeps)
    assert found.scratch.charged.piece is None
    wanted = evaluate(potential.double(), batch, brute_force(batch, potential.cutoff))
    torch.testing.assert_close(found.energies, wanted.energies, atol=1e-6, rtol=1e-7)
    assert (found.forces - wanted.forces).norm() < 4e-6 * wanted.forces.norm()


@pytest.mark.nightly
@needs_kernels
@pytest.mark.skipif(not INTERPRETED, reason="the emulated kernel reads memory of the CPU")
def test_few_atoms_with_emulated_maps_agree_with_the_exact_model(library, make_potential, ethanol):
    """One program per atom, and these maps between: no kernel of few atoms evaluates the network of edges."""
    potential = make_potential(model="tensornet2", num_channels=C, num_layers=2)
    fast = replanned(FastTensorNet2(potential, priors=True), edge_maps=True)
    fast.edge_maps = maps_of(library, fast.charged.filters)
    batch = batch_of(ethanol)
    found = run(potential, batch, fast=fast, tiles=CUTS["row"])
    assert found.sizes.one_program_per_atom
    wanted = evaluate(potential.double(), batch, brute_force(batch, potential.cutoff))
    torch.testing.assert_close(found.energies, wanted.energies, atol=1e-6, rtol=1e-7)
    assert (found.forces - wanted.forces).norm() < 4e-6 * wanted.forces.norm()


@pytest.mark.nightly_for("maps_forward", "maps_forward_with_slopes", "maps_backward")
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("name", edge_maps.CALLED)
def test_the_kernels_compile_without_spilling_registers(tmp_path, name):
    command = ["nvcc", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v", "-cubin"]
    command += [f"-DNAME={name}", f"-DKERNEL={edge_maps.CALLED[name]}"]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "maps.cubin"), str(edge_maps.SOURCES / edge_maps.MAIN)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("0 bytes spill stores, 0 bytes spill loads") == 1
    assert "serialized" not in done.stderr


@pytest.mark.nightly
def test_the_kernels_compile_from_the_files_that_the_package_names(tmp_path, monkeypatch):
    needs_nvrtc(tmp_path, monkeypatch)
    found = edge_maps.code()
    assert found.keys() == edge_maps.SHARED_BYTES.keys()
    assert all(code[:4] == b"\x7fELF" and name.encode() in code for name, code in found.items())


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("count", [5, 300, 70_001])
def test_maps_on_a_gpu_agree_with_float64_and_repeat_their_bits(weights, count):
    z1, g3, row_ptr = (x.cuda() for x in rows_of(count, spare=40))
    gpu = {
        k: HalfParts(v.big.cuda(), v.small.cuda(), v.unit) if isinstance(v, HalfParts) else v.cuda()
        for k, v in vars(weights).items()
    }
    w = SimpleNamespace(**gpu)
    device = torch.device("cuda", torch.cuda.current_device())
    maps = EdgeMaps([w], edge_maps.launchers(device), 66)
    z3_exact, back_exact = exact(w, z1, g3)
    found = []
    for _ in range(5):
        z3, back = torch.full((len(z1), 3, C), 7.0, device="cuda"), z1.clone()
        maps.forth(0, z1, z3, row_ptr)
        maps.back(0, back, g3, row_ptr)
        slopes, by_slopes = torch.full((len(z1), 2 * C), 7.0, device="cuda"), z1.clone()
        maps.forth(0, z1, z3, row_ptr, slopes)
        maps.back(0, by_slopes, g3, row_ptr, slopes)
        found.append((z3, back, by_slopes))
    z3, back, by_slopes = found[0]
    assert (by_slopes[:count] - back_exact[:count]).norm() < 1e-6 * back_exact[:count].norm()
    assert (z3[:count].flatten(1) - z3_exact[:count]).norm() < 1e-6 * z3_exact[:count].norm()
    assert (back[:count] - back_exact[:count]).norm() < 1e-6 * back_exact[:count].norm()
    assert (z3[count:] == 7.0).all()
    assert torch.equal(back[count:], z1[count:])
    assert all(torch.equal(a, b) for again in found for a, b in zip(found[0], again, strict=True))


@pytest.mark.gpu
@needs_hopper
def test_a_step_on_a_gpu_takes_the_maps_and_agrees_with_the_exact_model(make_potential, ethanol, cation):
    potential = make_potential(torch.float32, model="tensornet2", num_channels=C, num_layers=2).cuda()
    batch = batch_of(*[ethanol, cation] * 60)
    step = CapturedStep(potential, batch, mode="graph")
    first = step(batch.positions.cpu().numpy()).forces
    again = step(batch.positions.cpu().numpy()).forces
    model = step.engine.model
    assert model.edge_maps is not None
    assert np.array_equal(first, again)
    wanted = (
        evaluate(copy.deepcopy(potential).double(), batch, brute_force(batch, potential.cutoff)).forces.cpu().numpy()
    )
    assert np.linalg.norm(first - wanted) < 4e-6 * np.linalg.norm(wanted)
