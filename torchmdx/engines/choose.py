"""The fastest engine that can evaluate a potential on its device.

An engine reads positions, cell and edges from fixed buffers and never synchronises with the host, so its work can be
captured.
"""

from __future__ import annotations

import functools
import logging

from torchmdx.engines.cpu.build import library
from torchmdx.engines.cpu.engine import CompiledEngine, unsupported
from torchmdx.engines.cpu.with_priors import CompiledPriorEngine
from torchmdx.engines.engine import Engine
from torchmdx.engines.ensemble import EnsembleEngine
from torchmdx.engines.exact import ModelEngine
from torchmdx.engines.fused.engine import KernelEngine, kernels_for, make_kernels
from torchmdx.engines.fused.with_priors import PriorKernelEngine
from torchmdx.engines.pairs import energy as pair_energy
from torchmdx.engines.pairs.engine import PairwiseEngine
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNet
from torchmdx.models.tensornet2 import TensorNet2
from torchmdx.runtime.cpu_memory import keep_freed_memory
from torchmdx.system import Batch

log = logging.getLogger(__name__)

PRECISIONS = ("float64", "float32", "half", "tf32", "bfloat16")


def choose_engine(potential: Potential, batch: Batch, *, stress: bool, precision: str) -> tuple[Engine, str]:
    """The fastest engine for this potential on its device, and why it is that one."""
    if batch.positions.device.type == "cpu":
        keep_freed_memory()
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if precision == "float64":
        return ModelEngine(potential, batch, stress=stress), "float64 takes the exact model"
    if potential.device.type == "cuda":
        reason = kernels_for(potential).why_not(potential, priors=True)
        if reason is None and potential.prior_configs:
            model = make_kernels(potential, precision, priors=True)
            engine = PriorKernelEngine(model, potential, batch, stress=stress)
            return engine, "fused kernels, and priors beside them"
        if reason is None:
            return KernelEngine(potential, batch, stress=stress, precision=precision), "fused kernels"
        if precision in ("half", "tf32", "bfloat16"):
            raise ValueError(f"precision {precision!r} needs the fused kernels, which do not serve it: {reason}")
        if isinstance(potential.network, (TensorNet, TensorNet2)):
            say_slower(reason)
        if pair_energy.serves(potential):
            return PairwiseEngine(potential, batch, stress=stress), f"network of pairs: {reason}"
        return ModelEngine(potential, batch, stress=stress), f"exact model: {reason}"
    if precision in ("half", "tf32", "bfloat16"):
        raise ValueError(f"precision {precision!r} needs a GPU, got a potential on the CPU")
    if (reason := unsupported(potential)) is None:
        if potential.prior_configs:
            return CompiledPriorEngine(potential, batch, stress=stress), "network in C on the CPU, and priors beside it"
        return CompiledEngine(potential, batch, stress=stress), "one call into C on the CPU"
    # In plain torch the network of pairs would keep TensorNet2's filters of all edges; the exact model works in blocks.
    if pair_energy.serves(potential) and (library() is not None or not potential.predicts_charges):
        return PairwiseEngine(potential, batch, stress=stress), f"network of pairs: {reason}"
    return ModelEngine(potential, batch, stress=stress), f"exact model: {reason}"


@functools.cache
def say_slower(reason: str) -> None:
    """Logs, once for each reason, that a network of a kind that has fused kernels does without them."""
    log.warning("a potential is evaluated several times slower than by the fused GPU kernels: %s", reason)


def engine_for(potential: Potential | Ensemble, batch: Batch, *, stress: bool, precision: str) -> tuple[Engine, str]:
    """As `choose_engine`, for a potential or an ensemble."""
    if not isinstance(potential, Ensemble):
        engine, why = choose_engine(potential, batch, stress=stress, precision=precision)
        if isinstance(engine, KernelEngine):
            engine.alone = True
        return engine, why
    chosen = [choose_engine(member, batch, stress=stress, precision=precision) for member in potential]
    reasons = list(dict.fromkeys(why for _, why in chosen))
    together = EnsembleEngine([engine for engine, _ in chosen], batch, stress=stress)
    order = "side by side" if together.streams else "one after the other"
    return together, f"{len(chosen)} members {order}: {' and '.join(reasons)}"


def exact_engine_for(potential: Potential | Ensemble, batch: Batch, *, stress: bool) -> Engine:
    """The exact model, of every member of an ensemble."""
    if not isinstance(potential, Ensemble):
        return ModelEngine(potential, batch, stress=stress)
    engines = [ModelEngine(member, batch, stress=stress) for member in potential]
    return EnsembleEngine(engines, batch, stress=stress)
