"""How an engine evaluates a network, as far as floors.py counts it: read from the engine, so sizes and limits are its.

What an engine chooses depends on the number of atoms, the precision, the elements, the GPU and its memory.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchmdx.models.tensors import PARTS

if TYPE_CHECKING:
    from torchmdx.engines.engine import Engine
    from torchmdx.engines.gpu.tensornet import FastTensorNet
    from torchmdx.engines.gpu.tensornet2 import FastTensorNet2

# Kinds of products, of floors.PASSES.
FLOAT32, FLOAT64, THREE_TF32, THREE_FP16 = "float32", "float64", "tf32x3", "fp16x3"
CHAINS = {
    "RowChain": "few atoms",
    "Chain": "many atoms",
    "TileChain": "tiles of atoms",
    "LeanChain": "little memory",
    "SlabRows": "many atoms",
    "SlabTiles": "tiles of atoms",
    "ChargedChain": "charges",
    "ChargedRowChain": "charges, few atoms",
}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """launches: how work is divided among kernels. Products are named by their rounding (floors.PASSES).

    mixes: of atoms' nine components with matrices; products: others of atoms. edges, edges_back: of TensorNet2's
    network of edges, and their gradients.
    words: of a filter table that an edge reads for a channel, of the embedding and each layer; 1 where that is not
    known, and empty if filters are evaluated instead.
    number: bytes of a number.
    functions, elements: of the embedding's sums by element; 0 if they are not used. walks: along the edges, in these.
    kept_rows: of tensor_traffic.ROWS, those that the backward pass reads.
    """

    launches: str = "autograd"
    mixes: str = FLOAT32
    products: str = FLOAT32
    edges: str = FLOAT32
    edges_back: str = FLOAT32
    words: tuple[int, ...] = ()
    number: int = 4
    functions: int = 0
    elements: int = 0
    walks: int = 1
    kept_rows: tuple[str, ...] = ()


def evaluations_of(engine: Engine) -> list[Evaluation]:
    """Of an engine, or of the engines of an ensemble's members."""
    from torchmdx.engines.cpu.engine import CpuEngine
    from torchmdx.engines.cpu.with_priors import CpuPriorEngine
    from torchmdx.engines.ensemble import EnsembleEngine
    from torchmdx.engines.exact import ExactEngine
    from torchmdx.engines.gpu.engine import GpuEngine
    from torchmdx.engines.gpu.with_priors import GpuPriorEngine
    from torchmdx.engines.pairs.engine import PairEngine

    if isinstance(engine, EnsembleEngine):
        return [found for member in engine.engines for found in evaluations_of(member)]
    if isinstance(engine, GpuEngine | GpuPriorEngine):
        return [of_kernels(engine.model)]
    if isinstance(engine, CpuEngine | CpuPriorEngine):
        return [Evaluation(launches="one call into C", words=(1,))]
    # Autograd of the model, or of the network of pairs, which have the potential's precision.
    number = engine.potential.dtype.itemsize if isinstance(engine, ExactEngine | PairEngine) else 4
    kind = FLOAT64 if number == 8 else FLOAT32
    if kind == FLOAT32 and isinstance(engine, PairEngine) and engine.potential.device.type == "cuda":
        kind = THREE_TF32  # engines/pairs/kernels/linear.py
    return [Evaluation(mixes=kind, products=kind, edges=kind, edges_back=kind, number=number)]


def of_kernels(model: FastTensorNet) -> Evaluation:
    """Of the fused kernels with the buffers that they have."""
    from torchmdx.engines.gpu.tensornet2 import FastTensorNet2

    buffers = model.buffers
    assert buffers is not None
    sizes = buffers.sizes
    if model.one_launch is not None:
        table = model.one_launch.memory["table"]
        assert table is not None
        words = (table.shape[2] * table.shape[4],) * table.shape[0]  # [tables,intervals,words,C,words]
        return Evaluation(launches="one launch", mixes=THREE_TF32, words=words)
    chain = model.chain_type(buffers)
    launches = CHAINS[(chain.args[0] if isinstance(chain, functools.partial) else chain).__name__]
    if launches.endswith("few atoms"):
        terms = len(PARTS) * (model.weights.degree + 1)
        few = Evaluation(launches=launches, words=(terms,) * (1 + sizes.layers))
        return _with_edges(few, model) if isinstance(model, FastTensorNet2) else few
    mixes = THREE_FP16 if launches == "tiles of atoms" else THREE_TF32
    words = tuple(len(PARTS) * table.shape[1] for table in model.tables)
    found = Evaluation(launches=launches, mixes=mixes, products=THREE_TF32, words=words)
    if (present := buffers.present) is not None and sizes.tiles.by_elements is not None:
        walks = -(-present.count // sizes.tiles.by_elements.walk(present.count)["GROUP"])
        found = replace(found, functions=present.functions.count, elements=present.count, walks=walks)
    return _with_edges(found, model) if isinstance(model, FastTensorNet2) else found


def _with_edges(found: Evaluation, model: FastTensorNet2) -> Evaluation:
    """With the network of edges, of which a table has the radial part of the first map."""
    assert model.buffers is not None
    charged = model.buffers.scratch.charged
    assert charged is not None
    maps = model.plan.edge_maps and model.edge_maps is not None
    kept = ("one",) * bool(charged.z1) + ("two",) * bool(charged.z2)
    return replace(
        found,
        words=(found.words[0], *(model.weights.degree + 1 for _ in found.words[1:])),
        edges=THREE_FP16 if maps else THREE_TF32,
        edges_back=THREE_FP16 if maps else THREE_TF32,
        kept_rows=kept,
    )
