"""Every copy of the cutoff function is that of models/cutoff.py, with its slope; others are refused by name."""

import ctypes
import re
from pathlib import Path

import pytest
import torch
from emulated import compiled
from interpreter import DEVICE, needs_kernels

import torchmdx
from torchmdx import CapturedStep, Potential, System, TensorNetConfig
from torchmdx.engines import cutoff_copies, ops
from torchmdx.engines.cpu.build import tensornet_library
from torchmdx.engines.cutoff_copies import CLUSTER, COPIES, PAIRS, TRITON, C, repeated, require_repeated
from torchmdx.engines.gpu.tensornet2 import FastTensorNet2
from torchmdx.engines.pairs.pair_values import has_kernels
from torchmdx.models.cutoff import cosine_cutoff

CUTOFF = 4.7
DISTANCES = torch.linspace(0.05, 0.999 * CUTOFF, 61, dtype=torch.float64)


def values_and_slopes():
    r = DISTANCES.clone().requires_grad_()
    value = cosine_cutoff(r, CUTOFF)
    return value.detach(), torch.autograd.grad(value.sum(), r)[0]


def assert_copied(copy, found, slopes=None):
    """The error names the copy."""
    value, slope = values_and_slopes()
    assert float((found.double().cpu() - value).abs().max()) < 1e-6, f"{copy} is not models/cutoff.py"
    if slopes is not None:
        assert float((slopes.double().cpu() - slope).abs().max()) < 1e-6, f"the slope of {copy} is not models/cutoff.py"


def called(function):
    """Two numbers for each distance by a function in C."""
    function.restype, rows = None, []
    for r in DISTANCES.tolist():
        pair = (ctypes.c_float * 2)()
        function(r, CUTOFF, pair)
        rows.append(list(pair))
    return torch.tensor(rows, dtype=torch.float64).unbind(1)


def test_the_copy_in_c():
    library = tensornet_library()
    if library is None:
        pytest.skip("needs a C compiler")
    library.tensornet_cutoff.argtypes = [ctypes.c_double, ctypes.c_double, ctypes.POINTER(ctypes.c_float)]
    value, bend = called(library.tensornet_cutoff)
    assert_copied(C, value, bend * value)


@pytest.mark.nightly
@pytest.mark.interpreter
def test_the_copy_in_cuda(tmp_path):
    from torchmdx.engines.plan.clusters import AtomClusters

    function = compiled(tmp_path, "charged_cluster", **AtomClusters(2, 1, 8, 2, True).constants).cutoff
    function.argtypes = [ctypes.c_float, ctypes.c_float, ctypes.POINTER(ctypes.c_float)]
    assert_copied(CLUSTER, *called(function))


@needs_kernels
def test_the_copy_of_the_fused_kernels():
    import cutoff_kernels

    assert_copied(TRITON, *cutoff_kernels.of_edges(DISTANCES.float().to(DEVICE), CUTOFF))


@needs_kernels
def test_the_copy_of_training():
    import cutoff_kernels

    assert_copied(PAIRS, *cutoff_kernels.of_pairs(DISTANCES.to(DEVICE), CUTOFF))


def test_the_readable_copy_is_that_of_the_models():
    r = DISTANCES.clone().requires_grad_()
    (slope,) = torch.autograd.grad(repeated(r, CUTOFF).sum(), r)
    assert_copied("engines/cutoff_copies.py", repeated(DISTANCES, CUTOFF), slope)
    assert ops.cut is cosine_cutoff


OTHERS = [
    (lambda r, cutoff: (1 - r / cutoff) ** 2 * (r < cutoff), r"is 0\.99\d* at 0\.\d+ Å, got 0\.9"),
    (lambda r, cutoff: 0.5 * cosine_cutoff(r, cutoff), "is 1 at 0 Å, got 0.5"),
    (lambda r, cutoff: torch.cos(0.5 * torch.pi / cutoff * r) ** 2, "is 0 at 5.05 Å, got 0.0"),
]


@pytest.mark.parametrize(("other", "values"), OTHERS)
def test_another_function_of_the_models_is_refused_wherever_a_copy_would_be_used(
    other, values, make_potential, ethanol, monkeypatch
):
    monkeypatch.setattr(cutoff_copies, "cosine_cutoff", other)
    potential = make_potential(torch.float32, model="tensornet2", num_channels=16, num_layers=1, cutoff=5.0)
    if tensornet_library() is not None:
        with pytest.raises(ValueError, match=rf"models/cutoff.py must be that of {C}: .*{values}"):
            CapturedStep(potential, System.from_ase(ethanol))
    with pytest.raises(ValueError, match=rf"must be that of {PAIRS}: .*{values}"):
        has_kernels(Potential(TensorNetConfig(num_channels=4, num_radial=5, cutoff=5.0)).network)
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match=rf"must be that of {TRITON}, {CLUSTER}: .*{values}"):
        FastTensorNet2(potential, bound=1.0)


def test_a_function_that_is_not_1_at_distance_0_is_refused(monkeypatch):
    """Also if all copies agree: kernels leave it out there."""
    half = lambda r, cutoff: 0.5 * torch.cos(0.5 * torch.pi / cutoff * r) ** 2 * (r < cutoff)  # noqa: E731
    monkeypatch.setattr(cutoff_copies, "cosine_cutoff", half)
    monkeypatch.setattr(cutoff_copies, "repeated", half)
    with pytest.raises(ValueError, match="kernels leave it out at distance 0, where it must be 1, got 0.5"):
        require_repeated(5.0, C)


def test_the_function_as_it_is_passes():
    require_repeated(5.0, *COPIES)


def test_every_file_with_a_copy_is_listed():
    package = Path(torchmdx.__file__).parent
    definition = re.compile(r"^(?:def|DEV \w+|static inline void) (?:cosine_cut|_cutoff)\(", re.MULTILINE)
    found = {
        path.relative_to(package).as_posix()
        for path in (package / "engines").rglob("*")
        if path.suffix in (".py", ".c", ".h", ".cu", ".cuh") and definition.search(path.read_text())
    }
    assert found == set(COPIES)
