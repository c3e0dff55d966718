"""Times training steps and those of torchmd-net, in one run on one GPU.

    python -m benchmarks.training [--peer] [--reading]
    torchrun --nproc-per-node 2 -m benchmarks.training      several GPUs, 512 frames each

2 layers, 128 channels, 32 radial functions, 5 Å; rattled alanine dipeptide; energy and force loss, AdamW. Milliseconds
per step, wall clock over many steps without waiting for each. Labels are noise, which does not change the work.
--reading also times the reader: batches from a store on disk, padded and copied to the GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record import write
from benchmarks.systems import load
from torchmdx import Potential, TensorNetConfig
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store, StoreWriter
from torchmdx.training.batches import Batches, Ranks
from torchmdx.training.config import OptimizerSection
from torchmdx.training.labelled import LabelledBatch, label
from torchmdx.training.loss_section import LossSection
from torchmdx.training.step import TrainStep

BATCHES = (8, 32, 128, 512)
CUTOFF = 5.0


def frames(count: int) -> Frames:
    numbers, positions, _ = load("alanine_dipeptide")
    rng = np.random.default_rng(0)
    parts = [
        Frames.single(
            positions + 0.05 * rng.normal(size=positions.shape),
            numbers,
            energy=rng.normal(),
            forces=rng.normal(size=positions.shape),
        )
        for _ in range(count)
    ]
    return Frames.concatenate(parts)


def milliseconds(step: Callable[[], Any], count: int) -> float:
    """ms per step, median of five stretches."""
    for _ in range(6):
        step()
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / count * 1e3)
    return statistics.median(times)


def ours(size: int, precision: str, record: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig(cutoff=CUTOFF)).cuda()
    products = dict(bf16=precision == "bf16", tf32=precision == "tf32")
    step = TrainStep(potential, LossSection(), OptimizerSection(), record=record, **products)
    step.set_rates(1e-4, (1.0, 1.0, 0.0))
    batches = [batch(size, seed) for seed in range(4)]
    turn = iter(range(10**9))
    torch.cuda.reset_peak_memory_stats()
    ms = milliseconds(lambda: step(batches[next(turn) % 4]), 40 if record else 10)
    label_of = f"torchmdx {precision}" + ("" if record else ", not recorded")
    memory = torch.cuda.max_memory_allocated() / 2**30
    return dict(by=label_of, batch=size, ms=round(ms, 3), gb=round(memory, 2))


def batch(size: int, seed: int, device: str = "cuda") -> LabelledBatch:
    made = frames(size)
    made.positions[:] += 0.02 * np.random.default_rng(seed).normal(size=made.positions.shape)
    labelled = label(
        made, np.arange(size), num_atoms=made.num_atoms, num_systems=size, cutoff=CUTOFF, dtype=torch.float32
    )
    return labelled.to(torch.device(device))


def peer_model(device: str) -> torch.nn.Module:
    from torchmdnet.models.model import create_model

    settings = dict(
        precision=32, embedding_dimension=128, num_layers=2, num_rbf=32, rbf_type="expnorm", trainable_rbf=False,
        activation="silu", cutoff_lower=0.0, cutoff_upper=CUTOFF, max_z=100, max_num_neighbors=32, model="tensornet",
        equivariance_invariance_group="O(3)", static_shapes=False, derivative=True, atom_filter=-1, prior_model=None,
        output_model="Scalar", reduce_op="sum", box_vecs=None,
    )  # fmt: skip
    torch.manual_seed(0)
    return create_model(settings).to(device)


def peer_step(model: torch.nn.Module, size: int, device: str) -> Callable[[], Any]:
    """A training step of torchmd-net, as in its trainer."""
    model = model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    made = frames(size)
    numbers = torch.tensor(made.atomic_numbers, device=device)
    positions = torch.tensor(made.positions, dtype=torch.float32, device=device)
    index = torch.arange(size, device=device).repeat_interleave(int(made.counts[0]))
    energy, forces = torch.randn(size, 1, device=device), torch.randn(made.num_atoms, 3, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        found, force = model(numbers, positions.clone(), index)
        loss = ((found - energy) ** 2).mean() + ((force - forces) ** 2).mean()
        loss.backward()
        optimizer.step()

    return step


def peer(size: int) -> dict[str, Any]:
    step = peer_step(peer_model("cuda"), size, "cuda")
    torch.cuda.reset_peak_memory_stats()
    ms = milliseconds(step, 6)
    memory = torch.cuda.max_memory_allocated() / 2**30
    return dict(by="torchmd-net 3.1.0", batch=size, ms=round(ms, 3), gb=round(memory, 2))


def reading(size: int) -> dict[str, Any]:
    """Frames from disk to the GPU, with nothing else running."""
    with tempfile.TemporaryDirectory() as folder:
        with StoreWriter(Path(folder) / "set") as writer:
            writer.add(frames(4096), "made", 0)
        store = Store.open(Path(folder) / "set")
        batches = Batches(
            store, np.arange(len(store)), size, cutoff=CUTOFF, dtype=torch.float32, device=torch.device("cuda"), seed=0,
            ranks=Ranks(), prefetch=4,
        )  # fmt: skip
        for _ in batches.epoch(0):
            pass
        torch.cuda.synchronize()
        start, count = time.perf_counter(), 0
        for epoch in range(1, 4):
            count += sum(1 for _ in batches.epoch(epoch))
        torch.cuda.synchronize()
        ms = (time.perf_counter() - start) / count * 1e3
    return dict(by="reading and batching alone", batch=size, ms=round(ms, 3))


def together(size: int) -> dict[str, Any]:
    """Steps of `size` frames a GPU in this process and the others that torchrun started, gradients summed by NCCL."""
    import torch.distributed as dist

    rank = dist.get_rank()
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig(cutoff=CUTOFF)).cuda()
    step = TrainStep(potential, LossSection(), OptimizerSection(), reduce=lambda values: dist.all_reduce(values))
    step.set_rates(1e-4, (1.0, 1.0, 0.0))
    batches = [batch(size, 4 * rank + seed) for seed in range(4)]
    turn = iter(range(10**9))
    ms = milliseconds(lambda: step(batches[next(turn) % 4]), 20)
    return dict(by=f"torchmdx float32, {dist.get_world_size()} GPUs", batch=size, ms=round(ms, 3))


def launched() -> None:
    """Entry for `torchrun --nproc-per-node K -m benchmarks.training`: one GPU alone, then all together."""
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    alone = ours(512, "float32", True)
    dist.barrier()
    rows = [alone, together(512)]
    if dist.get_rank() == 0:
        rows[1]["times_one"] = round(dist.get_world_size() * alone["ms"] / rows[1]["ms"], 3)
        print(rows)
        print(write("training_gpus", rows))
    dist.destroy_process_group()


def main() -> None:
    if "LOCAL_RANK" in os.environ:
        launched()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="store_true", help="also torchmd-net, which must be installed")
    parser.add_argument("--reading", action="store_true", help="also the reader alone")
    options = parser.parse_args()
    rows = []
    for size in BATCHES:
        works = [lambda s=size, p=p: ours(s, p, True) for p in ("float32", "tf32", "bf16")]
        works += [lambda s=size: ours(s, "float32", False)]
        works += [lambda s=size: peer(s)] if options.peer else []
        works += [lambda s=size: reading(s)] if options.reading else []
        for work in works:
            try:
                rows.append(work())
            except Exception as error:
                rows.append(dict(batch=size, error=f"{type(error).__name__}: {error}"[:200]))
            print(rows[-1], flush=True)
            torch.cuda.empty_cache()
    print(write("training", rows))


if __name__ == "__main__":
    main()
