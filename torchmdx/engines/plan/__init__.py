"""What runs: the one place that decides which engine and which kernels evaluate a potential, and says why."""

from torchmdx.engines.plan.decide import Plan, plan
from torchmdx.engines.plan.kernels import KernelPlan, plan_kernels
from torchmdx.engines.plan.machine import MACHINES, Machine, machine_named
from torchmdx.engines.plan.request import Network, Request
from torchmdx.engines.plan.workload import Stage, Workload

__all__ = [
    "MACHINES",
    "KernelPlan",
    "Machine",
    "Network",
    "Plan",
    "Request",
    "Stage",
    "Workload",
    "machine_named",
    "plan",
    "plan_kernels",
]
