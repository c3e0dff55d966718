"""What the Coulomb energy of predicted charges adds to a captured step of a TensorNet2.

    python -m benchmarks.coulomb [--names dhfr,water1000]

The potential of benchmarks/step.py, without and with the prior: all pairs in vacuum, pairs within 10 Å in a box. ms:
medians of CUDA events around a replay, search and copies included. share: part of the step with the prior that the
prior takes. force_error: at capture, against the exact model in float64.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from benchmarks import peer_model, record, step
from torchmdx import Potential
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.step.captured_step import CapturedStep

NAMES = ("alanine_dipeptide", "chignolin", "dhfr", "factorIX", "water1000", "water8000")


def charged(plain: Potential) -> Potential:
    """The same weights, with the prior."""
    made = Potential(plain.config, [CoulombConfig()]).requires_grad_(False)
    made.load_state_dict(plain.state_dict(), strict=False)
    return made.to(device=plain.scale.device)


def timed(model: Potential, name: str) -> dict[str, Any]:
    torch.cuda.empty_cache()
    batch = step.batch_of(name, 1)
    captured = CapturedStep(model, batch, mode="graph")
    captured(batch.positions.numpy())
    report = captured.report()
    count = step.repeats(batch.num_atoms)
    return {
        "atoms": batch.num_atoms,
        "ms": peer_model.milliseconds(captured.policy.graphs["host"].replay, count, 5),
        "engine": report.engine,
        "nodes": report.nodes,
        "force_error": report.error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default=",".join(NAMES))
    options = parser.parse_args()
    plain = step.potential(True).cuda()
    whole, rows = charged(plain), []
    for name in options.names.split(","):
        without, found = timed(plain, name), timed(whole, name)
        found |= {"ms_without": without["ms"], "share": round(1 - without["ms"] / found["ms"], 3)}
        rows.append({"system": name, **found})
        print(rows[-1], flush=True)
        record.write("coulomb", rows)


if __name__ == "__main__":
    main()
