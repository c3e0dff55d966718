"""How engines evaluate, as floors.py reads it from them: the choice for a size, a precision and a GPU."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from ase.build import molecule

from torchmdx import Ensemble, System
from torchmdx.commands.engine_evaluations import Evaluation, evaluations_of, of_kernels
from torchmdx.engines.choose import engine_for
from torchmdx.engines.fused.engine import kernels_for
from torchmdx.engines.pairs.engine import PairwiseEngine
from torchmdx.engines.plan.launch_sizes import ByElements
from torchmdx.system import Batch

H200 = 141 * 10**9  # bytes of memory


@pytest.fixture
def kernels(make_potential):
    """Kernels for so many atoms on an H200, with buffers for two of them, on this CPU."""
    pytest.importorskip("triton")

    def make(num_atoms, precision="float32", elements=(), channels=32, **settings):
        settings = dict(num_layers=2, num_channels=channels, num_radial=8, cutoff=2.5) | settings
        potential = make_potential(torch.float32, **settings).requires_grad_(False)
        model = kernels_for(potential)(potential, bound=1e-3, precision=precision)
        model.machine = replace(model.machine, memory=H200)
        tiles = model.choose_tiles(num_atoms)
        if elements:
            tiles = replace(tiles, by_elements=ByElements(edges=0))
        model.allocate(2, 1, 2, tiles=tiles, elements=elements)
        return model

    return make


def test_many_atoms(kernels):
    wanted = Evaluation(launches="many atoms", mixes="tf32x3", products="tf32x3", words=(15, 15, 15))
    assert of_kernels(kernels(3000)) == wanted
    assert of_kernels(kernels(98304)) == wanted
    assert of_kernels(kernels(999000)) == replace(wanted, launches="little memory")


def test_less_precision(kernels):
    """Four words in place of six coefficients for each part, where the table allows it."""
    half = of_kernels(kernels(3000, "half"))
    assert half == Evaluation(launches="many atoms", mixes="tf32x3", products="tf32x3", words=half.words, sent=2)
    assert set(half.words) <= {12, 18}
    rounded = Evaluation(launches="many atoms", mixes="tf32", products="tf32", words=(15, 15, 15))
    assert of_kernels(kernels(3000, "tf32")) == rounded
    assert of_kernels(kernels(3000, "bfloat16")) == replace(rounded, mixes="bf16", products="bf16", sent=2)


def test_few_atoms_multiply_on_cuda_cores(kernels):
    """With the whole table, whatever the precision."""
    for precision in ("float32", "half", "tf32"):
        assert of_kernels(kernels(30, precision)) == Evaluation(launches="few atoms", words=(18, 18, 18))


def test_one_launch_reads_five_times_four_words(kernels):
    from torchmdx.engines.fused.one_launch import OneLaunch
    from torchmdx.engines.plan.clusters import AtomClusters

    model = kernels(22, channels=128)
    model.one_launch = OneLaunch(model, model.buffers, AtomClusters.choose(2, 16), None)
    assert of_kernels(model) == Evaluation(launches="one launch", mixes="tf32x3", words=(20, 20, 20))


def test_tiles_of_atoms(kernels):
    model = kernels(3000, channels=128)
    assert of_kernels(model).launches == "many atoms"
    model.tile_kernels = object()
    wanted = Evaluation(launches="tiles of atoms", mixes="fp16x3", products="tf32x3", words=(15, 15, 15))
    assert of_kernels(model) == wanted


def test_elements(kernels):
    """Five elements are two walks of three; without buffers for them, there are none."""
    found = of_kernels(kernels(3000, elements=[1, 6, 7, 8, 9]))
    assert (found.functions, found.elements, found.walks) == (16, 5, 2)
    assert "the embedding by 5 elements in 16 functions" in str(found)
    assert of_kernels(kernels(3000)).functions == 0


def test_charges(kernels):
    network = dict(model="tensornet2", channels=32)
    wanted = Evaluation(
        launches="charges", mixes="tf32x3", products="tf32x3", edges="tf32x3", edges_back="tf32x3", words=(15, 6, 6),
        kept_rows=("one", "two"),
    )  # fmt: skip
    assert of_kernels(kernels(200, **network)) == wanted
    # One program per atom: products of atoms on CUDA cores, and all coefficients of the table.
    few = replace(wanted, launches="charges, few atoms", mixes="float32", products="float32", words=(18, 6, 6))
    assert of_kernels(kernels(30, **network)) == few
    assert "of edges tf32x3, their gradients tf32x3" in str(few)
    # Two maps in one kernel of half-precision parts; z₂ is kept, and its gradient made by products of TF32.
    assert of_kernels(kernels(3000, **network)) == replace(wanted, edges="fp16x3", kept_rows=("two",))
    model = kernels(3000, **network)
    model.edge_maps = object()
    model.allocate(2, 1, 2, tiles=model.choose_tiles(3000))
    assert of_kernels(model) == replace(wanted, edges="fp16x3", edges_back="fp16x3")
    assert "of edges fp16x3, their gradients fp16x3" in str(of_kernels(model))


def test_engines_of_a_cpu(make_potential, potential):
    batch = Batch.of(System.from_ase(molecule("CH3CH2OH")))

    def found(potential, precision):
        return evaluations_of(engine_for(potential, batch, stress=False, precision=precision)[0])

    single = make_potential(torch.float32, num_channels=16, num_radial=8)
    tabulated = Evaluation(launches="one call into C", words=(1,))
    assert found(single, "float32") == [tabulated]
    assert (
        str(tabulated) == "one call into C; products of nine components float32, others float32; filters from a table"
    )
    wide = dict.fromkeys(("mixes", "products", "edges", "edges_back"), "float64")
    (exact,) = found(potential, "float64")
    assert exact == Evaluation(number=8, sent=8, **wide)
    assert str(exact).endswith("; filters without a table")
    members = Ensemble([single, make_potential(torch.float32, seed=1, num_channels=16)])
    assert found(members, "float32") == [tabulated, tabulated]


def test_the_network_of_pairs_multiplies_on_tensor_cores_of_a_gpu(make_potential):
    engine = PairwiseEngine(make_potential(torch.float32), Batch.of(System.from_ase(molecule("H2O"))), stress=False)
    assert evaluations_of(engine)[0].products == "float32"
    engine.potential = SimpleNamespace(dtype=torch.float32, device=torch.device("cuda"))
    assert evaluations_of(engine)[0].products == "tf32x3"
