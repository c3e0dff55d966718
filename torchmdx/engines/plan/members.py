"""Whether the members of an ensemble are evaluated side by side."""

from __future__ import annotations

from dataclasses import replace

from torchmdx.engines.plan.decide import FUSED, Plan
from torchmdx.engines.plan.workload import Stage

# Members run concurrently up to this number of atoms. In the exact model each branch needs a few MB per atom.
MOST_SIDE_BY_SIDE, MOST_EXACT_SIDE_BY_SIDE = 2048, 512
TOGETHER, IN_TURN = "side by side", "one after the other"


def most_side_by_side(*, fused: bool) -> int:
    """Up to how many atoms. fused: all members have fused kernels, and no priors."""
    return MOST_SIDE_BY_SIDE if fused else MOST_EXACT_SIDE_BY_SIDE


def plan_of_members(count: int, member: Plan, *, priors: bool) -> Plan:
    """The plan of an ensemble of `count` members, from that of a member, which must not be `alone`."""
    atoms, most = member.work.atoms, most_side_by_side(fused=member.engine == FUSED and not priors)
    if not member.machine.is_gpu:
        stage = Stage("members", IN_TURN, "a CPU evaluates one at a time")
    elif atoms <= most:
        stage = Stage("members", TOGETHER, f"{atoms:,} atoms, of at most {most:,}", IN_TURN)
    else:
        stage = Stage("members", IN_TURN, f"{atoms:,} atoms, of more than {most:,}", TOGETHER)
    return replace(member, why=f"{count} members: {member.why}", stages=(stage, *member.stages))
