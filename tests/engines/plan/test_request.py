"""What a network is to a plan."""

from dataclasses import dataclass

from torch import nn

from torchmdx import Potential, TensorNetConfig
from torchmdx.engines.plan import Network
from torchmdx.models.tensornet import TensorNet


@dataclass(frozen=True)
class OtherConfig:
    cutoff: float = 5.0
    max_z: int = 9


class Derived(TensorNet):
    pass


def test_a_network_is_what_the_potential_has():
    potential = Potential(TensorNetConfig(num_channels=8, head="gated"))
    assert Network.of(potential) == Network.of_config(potential.config) == Network("TensorNet", "GatedHead")
    assert Network.of(potential.double()).dtype == "float64"
    potential.head = nn.Linear(8, 1)
    assert not Network.of(potential).has_pairs
    potential = Potential(TensorNetConfig(num_channels=8))
    potential.network = Derived(potential.config)
    assert (Network.of(potential).kind, Network.of(potential).is_built_in) == ("Derived", False)
    derived = type("TensorNet", (Derived,), {})
    potential.network = derived(potential.config)
    assert not Network.of(potential).is_built_in  # the same name is not enough
    assert Network.of_config(OtherConfig()).kind == "Other"
