"""`check_engine`: the whole contract, for an engine and a potential, as a table."""

from __future__ import annotations

from collections.abc import Callable

from torchmdx.engines.conformance.contract import CONTRACT
from torchmdx.engines.conformance.subject import Subject
from torchmdx.engines.engine import Engine
from torchmdx.evaluation.checks import Conformance, measured
from torchmdx.models.potential import Potential
from torchmdx.runtime.isolation import isolated


@isolated
def check_engine(
    make: Callable[..., Engine],
    potential: Potential,
    *,
    stress: bool = True,
    precision: str = "float32",
    allowed: float = 1e-5,
    verbose: bool = True,
) -> Conformance:
    """Runs the contract on an engine for a potential, on its device, and prints the table.

    Args:
        make: As for `register_engine`.
        stress: Whether the engine computes stress.
        allowed: The largest error, relative to the largest force. Takes seconds for a small model. A check that raises
            has failed, and the table shows the error.
    """
    suite = [(name, asks, allowed, measure) for name, asks, measure in CONTRACT if stress or name != "stress"]
    found = measured("engine", suite, lambda: Subject.of(make, potential, stress=stress, precision=precision))
    if verbose:
        print(found)
    return found
