"""Which engine evaluates a potential, why, and how the plan prints itself."""

import subprocess
import sys
from dataclasses import replace

import pytest

from torchmdx import TensorNet2Config, TensorNetConfig
from torchmdx.engines.plan import Network, Workload, machine_named, plan
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.models.qet import QETConfig

ETHANOL = Workload.usual(9)


def found(config, machine, precision="float32", priors=(), **facts):
    network = replace(Network.of_config(config), **facts.pop("network", {}))
    return plan(config, priors, ETHANOL, precision, replace(machine_named(machine), **facts), network)


@pytest.mark.parametrize(
    ("case", "engine", "why"),
    [
        (dict(machine="H100"), "fused", "fused kernels"),
        (dict(machine="RTX 4090", priors=[ZBLConfig()]), "fused", "fused kernels, priors separately"),
        (dict(machine="H100", precision="float64"), "exact", "float64 takes the exact model"),
        (dict(machine="CPU", precision="float64"), "C", "one call into C on the CPU"),
        (
            dict(machine="CPU", precision="float64", compiled=False),
            "exact",
            "float64 takes the exact model: it needs the compiled library",
        ),
        (dict(machine="H100", triton=False), "pairs", "network of pairs: it needs triton, which is not installed"),
        (dict(machine="CPU"), "C", "one call into C on the CPU"),
        (dict(machine="CPU", priors=[ZBLConfig()]), "C", "network in C on the CPU, priors separately"),
        (dict(machine="CPU", compiled=False), "pairs", "network of pairs: it needs the compiled library"),
        (
            dict(machine="CPU", compiled=False, pair_kernels=False),
            "pairs",
            "network of pairs: it needs the compiled library",
        ),
        (
            dict(machine="CPU", network=dict(dtype="bfloat16")),
            "pairs",
            "network of pairs: its weights must be torch.float32 or torch.float64, got torch.bfloat16",
        ),
        (
            dict(machine="CPU", network=dict(kind="Mine")),
            "exact",
            "exact model: its network must be a TensorNet, a TensorNet2, a QET, got a Mine",
        ),
        (
            dict(machine="H100", network=dict(kind="Mine")),
            "exact",
            "exact model: its network must be a TensorNet, got Mine",
        ),
    ],
    ids=str,
)
def test_a_tensornet(case, engine, why):
    plan = found(TensorNetConfig(), **case)
    assert (plan.engine, plan.why) == (engine, why)
    assert plan.stages


@pytest.mark.parametrize(
    ("case", "engine", "why"),
    [
        (dict(machine="A100"), "fused", "fused kernels"),
        (dict(machine="CPU"), "C", "one call into C on the CPU"),
        (dict(machine="CPU", compiled=False), "pairs", "network of pairs: it needs the compiled library"),
        (
            dict(machine="CPU", compiled=False, pair_kernels=False),
            "exact",
            "exact model: it needs the compiled library",
        ),
        (
            dict(machine="H100", network=dict(head="torch.nn.Linear")),
            "exact",
            "exact model: its head must be a ScalarHead or a GatedHead, got a Linear",
        ),
        (
            dict(machine="CPU", network=dict(head="torch.nn.Linear")),
            "exact",
            "exact model: its head must be a ScalarHead or a GatedHead, got a Linear",
        ),
    ],
    ids=str,
)
def test_a_tensornet2(case, engine, why):
    plan = found(TensorNet2Config(), **case)
    assert (plan.engine, plan.why) == (engine, why)


@pytest.mark.parametrize(
    ("case", "engine", "why"),
    [
        (dict(machine="CPU"), "C", "features in C on the CPU, equilibration and head between the passes"),
        (dict(machine="CPU", compiled=False), "pairs", "network of pairs: it needs the compiled library"),
        (
            dict(machine="H100"),
            "pairs",
            "network of pairs: the charge equilibration of a QET has no fused kernels",
        ),
    ],
    ids=str,
)
def test_a_qet(case, engine, why):
    plan = found(QETConfig(), **case)
    assert (plan.engine, plan.why) == (engine, why)
    assert plan.warning == (why.removeprefix("network of pairs: ") if case["machine"] == "H100" else None)


def test_who_leaves_the_kernels_on_a_gpu_is_warned():
    wide, reason = TensorNetConfig(num_channels=320), "num_channels must be at most 256, got 320"
    plan = found(wide, "H100")
    assert (plan.engine, plan.warning) == ("pairs", reason)
    assert plan.stages[0].why == reason
    assert str(plan).endswith(f"  several times slower than the fused kernels: {reason}")
    assert found(TensorNetConfig(), "H100").warning is None
    assert found(wide, "CPU").warning is None


def test_priors_have_kernels_of_their_own_or_none():
    work = replace(ETHANOL, search_cutoff=10.0)
    priors = [ZBLConfig(), CoulombConfig()]
    stages = {s.name: s.runs for s in plan(TensorNet2Config(), priors, work, "float32", machine_named("H100")).stages}
    assert stages["prior zbl"] == "torch, by autograd, a branch parallel to the network"
    assert stages["prior coulomb"] == "Triton"
    assert stages["list"] == "one of the network's own"
    cpu = replace(machine_named("CPU"), pair_kernels=False)
    stages = {s.name: s.runs for s in plan(TensorNet2Config(), priors, work, "float32", cpu).stages}
    assert stages["prior coulomb"] == stages["prior zbl"] == "torch, by autograd"
    assert "list" not in stages


def test_a_plan_prints_itself():
    text = str(plan(TensorNetConfig(), [], Workload.usual(2489), "float32", machine_named("A100")))
    first, *rows = text.splitlines()
    assert first == "2,489 atoms on A100 (sm_80, 79 GiB), float32: fused kernels"
    assert [row.split()[0] for row in rows] == ["launches", "within", "embedding"]
    assert all("otherwise" in row for row in rows)
    assert "tiles of atoms need a GPU of the architecture sm_90a, got A100" in text
    batch = replace(ETHANOL, atoms=18, systems=2)
    assert str(plan(TensorNetConfig(), [], batch, "float32", machine_named("CPU"))).startswith("18 atoms in 2 systems")


@pytest.mark.parametrize(("machine", "runs"), [("H100", "Triton, a branch"), ("CPU", "torch, products of matrices")])
def test_ewald_sums_have_a_stage(machine, runs):
    crystal, config = replace(ETHANOL, search_cutoff=9.0), TensorNet2Config()
    given = (crystal, "float32", machine_named(machine), Network.of_config(config))
    summed, truncated = (plan(config, [CoulombConfig(periodic=kind)], *given) for kind in ("auto", "reaction_field"))
    (stage,) = (stage for stage in summed.stages if stage.name == "Ewald sum")
    assert stage.runs.startswith(runs)
    assert "Ewald sum" not in str(truncated)


PURE = """
import sys
from torchmdx.engines.plan import Workload, machine_named, plan
from torchmdx.models.tensornet2 import TensorNet2Config
import torch
def touched(*args, **settings): raise AssertionError("the GPU was asked")
torch.cuda._lazy_init = torch.cuda.get_device_properties = torch.cuda.is_available = touched
for card in ("H100", "CPU"):
    plan(TensorNet2Config(), [], Workload.usual(22), "float32", machine_named(card))
print([name for name in sys.modules if name == "triton" or name.startswith("torchmdx.engines.")
       and not name.startswith("torchmdx.engines.plan")])
"""


@pytest.mark.nightly
def test_a_plan_needs_no_gpu_no_triton_and_no_engine():
    done = subprocess.run([sys.executable, "-c", PURE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
