"""Digests that identify potentials."""

import dataclasses

from torchmdx import Potential
from torchmdx.models.digest import digest_of
from torchmdx.models.ensemble import Ensemble


def test_weights_constants_and_members_tell_potentials_apart(make_potential):
    first, same, other = make_potential(), make_potential(), make_potential(seed=1)
    assert digest_of(first) == digest_of(same) != digest_of(other)
    same.shift += 1e-6
    assert digest_of(first) != digest_of(same)
    assert len({digest_of(Ensemble(two)) for two in ([first, other], [first, same], [other, first])}) == 3


def test_the_configuration_tells_potentials_apart(make_potential):
    """Potentials of the same weights: the activation is only in the configuration."""
    first = make_potential()
    second = Potential(dataclasses.replace(first.config, activation="tanh"))
    second.load_state_dict(first.state_dict())
    assert digest_of(first) != digest_of(second)
    assert digest_of(first) != digest_of(make_potential().float())
