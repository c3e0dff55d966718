"""torchmd-net's TensorNet or TensorNet2 with the weights of a torchmdx potential, timed in its three modes.

Needs torchmd-net (>= 3.1) and warp-lang. Its neighbour search and self-edges are set up as in its documentation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

MODES = ("eager", "graph", "compile")


def build(
    mode: str,
    cutoff: float,
    channels: int,
    layers: int,
    radial: int,
    box: Tensor | None,
    most_neighbors: int,
    charges: int = 0,
) -> Any:
    """A torchmd-net model, set up for one of its modes: TensorNet, or TensorNet2 with this number of charges."""
    from torchmdnet.models.model import create_model

    return create_model(
        dict(
            model="tensornet2" if charges else "tensornet",
            q_dim=charges,
            precision=32,
            embedding_dimension=channels,
            num_layers=layers,
            num_rbf=radial,
            rbf_type="expnorm",
            trainable_rbf=False,
            activation="silu",
            cutoff_lower=0.0,
            cutoff_upper=cutoff,
            max_z=100,
            max_num_neighbors=most_neighbors,
            equivariance_invariance_group="O(3)",
            static_shapes=mode != "eager",
            derivative=mode != "compile",
            atom_filter=-1,
            prior_model=None,
            output_model="Scalar",
            reduce_op="sum",
            box_vecs=None if box is None else box.cpu().tolist(),
        )
    ).eval()


def copy_weights(potential: Any, peer: Any) -> None:
    """Copies torchmdx's weights into the peer's model, so that both compute the same function."""
    ours = potential.float().state_dict()
    names: dict[str, Tensor] = {}
    rep, emb = "representation_model", "representation_model.tensor_embedding"
    for kind in ("weight", "bias"):
        for k, part in enumerate(ours[f"network.embedding.filters.{kind}"].chunk(3), start=1):
            names[f"{emb}.distance_proj{k}.{kind}"] = part
        names[f"{emb}.emb2.{kind}"] = ours[f"network.embedding.pair.{kind}"]
        names[f"{emb}.init_norm.{kind}"] = ours[f"network.embedding.norm.{kind}"]
        names[f"{rep}.linear.{kind}"] = ours[f"network.readout.{kind}"]
        names[f"{rep}.out_norm.{kind}"] = ours[f"network.norm.{kind}"]
        for k in (0, 1):
            names[f"{emb}.linears_scalar.{k}.{kind}"] = ours[f"network.embedding.gate.{2 * k}.{kind}"]
        for k in (0, 2):
            names[f"output_model.output_network.layers.{k}.{kind}"] = ours[f"head.network.{k}.{kind}"]
        for layer in range(potential.config.num_layers):
            for k in range(3):
                names[f"{rep}.layers.{layer}.linears_scalar.{k}.{kind}"] = ours[
                    f"network.layers.{layer}.filters.{2 * k}.{kind}"
                ]
    names[f"{emb}.emb.weight"] = ours["network.embedding.elements.weight"]
    for k, part_name in enumerate(("scalar", "vector", "symmetric")):
        names[f"{emb}.linears_tensor.{k}.weight"] = ours[f"network.embedding.mix.{part_name}.weight"]
        for layer in range(potential.config.num_layers):
            stem = f"{rep}.layers.{layer}.linears_tensor"
            names[f"{stem}.{k}.weight"] = ours[f"network.layers.{layer}.mix_in.{part_name}.weight"]
            names[f"{stem}.{k + 3}.weight"] = ours[f"network.layers.{layer}.mix_out.{part_name}.weight"]
    if potential.predicts_charges:
        names |= charge_weights(ours, potential.config.num_layers)
    missing, unexpected = peer.load_state_dict(names, strict=False)
    # Radial basis, scale and the empty cell keep their initial values.
    kept = ("distance_expansion.", "distance.box", "mean", "std")
    missing = [name for name in missing if not any(part in name for part in kept)]
    assert not unexpected, unexpected
    assert not missing, missing


def charge_weights(ours: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Weights of the networks that predict charges, after the embedding and each layer, under the peer's names."""
    names: dict[str, Tensor] = {}
    for index in range(layers + 1):
        stem = "charge_predict_0" if index == 0 else f"charge_predicts.{index - 1}"
        stem, own = f"representation_model.{stem}", f"network.charges.{index}"
        for kind in ("weight", "bias"):
            names[f"{stem}.q_norm.{kind}"] = ours[f"{own}.norm.{kind}"]
            for k in (0, 2, 4):
                names[f"{stem}.q_mlp.layers.{k}.{kind}"] = ours[f"{own}.network.{k}.{kind}"]
    return names


def prepare(mode: str, model: Any, numbers: Tensor, positions: Tensor, index: Tensor, box: Tensor | None) -> Any:
    """(run, read): `run()` evaluates energy and forces once; `read()` gives the forces of the last run."""
    representation = model.representation_model
    # TensorNet2 has no separate method for this.
    owner = representation if hasattr(representation, "setup_for_inference") else representation.tensor_embedding
    owner.setup_for_inference(numbers.cpu(), index.cpu())
    model = model.cuda()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    state: dict[str, Tensor] = {}
    if mode == "eager":

        def run() -> None:
            moving = positions.clone().requires_grad_(True)
            _, state["forces"] = model(numbers, moving, index, box)

    elif mode == "graph":
        moving = positions.clone().requires_grad_(True)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(12):
                model(numbers, moving, index, box)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            _, state["forces"] = model(numbers, moving, index, box)
        state["positions"] = moving  # which the graph reads, as long as someone may replay it

        def run() -> None:
            assert "positions" in state
            graph.replay()

    else:
        moving = positions.clone().requires_grad_(True)
        model(numbers, moving, index, box)
        compiled = torch.compile(model, backend="inductor", dynamic=False, fullgraph=True, mode="reduce-overhead")

        def run() -> None:
            moving.grad = None
            compiled(numbers, moving, index, box)[0].sum().backward()
            state["forces"] = -moving.grad

    return run, lambda: state["forces"].detach().clone()


def milliseconds(run: Callable[[], Any], repeats: int = 30, warm_up: int = 5) -> float:
    """Median of CUDA-event times, ms."""
    for _ in range(warm_up):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(np.median(times))
