"""Each check of conformance passes for models that are right, and catches one that is wrong in its way."""

import pytest
import torch
from model_kinds import kinds
from outside_model import Outside, outside_potential, registration  # noqa: F401 (used by every test)

import torchmdx
from torchmdx.evaluation.conformance import check
from torchmdx.evaluation.conformance.check import SUITE
from torchmdx.models import registry


@pytest.mark.nightly_for("everything", "tensornet2", "qet", "tensornet-SO(3)")
@pytest.mark.parametrize("kind", kinds("tensornet", "tensornet-SO(3)", "tensornet2", "qet", "everything"))
def test_models_of_torchmdx_conform(make_kind, kind):
    potential = make_kind(kind)
    found = check(potential, reflections=potential.config.group == "O(3)", device="cpu", verbose=False)
    assert found.passed, str(found)


def test_a_model_from_outside_conforms(capsys):
    found = check(outside_potential(), device="cpu")
    assert found.passed, str(found)
    found.require()
    table = capsys.readouterr().out
    assert table.count("  ok  ") == len(SUITE) == len(table.splitlines()) - 1
    assert "requirement" in table


@pytest.mark.gpu
def test_a_model_from_outside_is_captured_as_a_graph():
    found = check(outside_potential(), device="cuda", verbose=False)
    assert found.passed, str(found)


class Constant(Outside):
    def forward(self, edges, vectors, atomic_numbers, charge):
        return self.elements(atomic_numbers) + 0 * vectors.sum()


class SeesDirections(Outside):
    def forward(self, edges, vectors, atomic_numbers, charge):
        return super().forward(edges, vectors * vectors.new_tensor([1.0, 1.0, 1.1]), atomic_numbers, charge)


class SeesHandedness(Outside):
    def forward(self, edges, vectors, atomic_numbers, charge):
        x = super().forward(edges, vectors, atomic_numbers, charge)
        distance = torch.linalg.vector_norm(vectors, dim=-1).clamp(max=self.config.cutoff)
        sums = [
            vectors.new_zeros(len(x), 3).index_add(
                0, edges.target, vectors * (self.envelope(distance) ** 2 * torch.exp(-k * distance))[:, None]
            )
            for k in (0.0, 0.5, 1.5)
        ]
        volume = (torch.linalg.cross(sums[0], sums[1]) * sums[2]).sum(-1)
        return x + volume[:, None]


class CountsAtoms(Outside):
    def forward(self, edges, vectors, atomic_numbers, charge):
        x = super().forward(edges, vectors, atomic_numbers, charge)
        return x * (1 + 0.1 * torch.arange(len(x), device=x.device))[:, None]


class MixesSystems(Outside):
    def forward(self, edges, vectors, atomic_numbers, charge):
        x = super().forward(edges, vectors, atomic_numbers, charge)
        return x + torch.tanh(x.mean(0))


class GrowsWithTheSystem(Outside):
    def forward(self, edges, vectors, atomic_numbers, charge):
        return super().forward(edges, vectors, atomic_numbers, charge) * len(atomic_numbers)


class DividesByNeighbours(Outside):
    def forward(self, edges, vectors, atomic_numbers, charge):
        x = super().forward(edges, vectors, atomic_numbers, charge)
        distance = torch.linalg.vector_norm(vectors, dim=-1).clamp(max=self.config.cutoff)
        near = x.new_zeros(len(x)).index_add(0, edges.target, self.envelope(distance))
        return x / near[:, None]


class BreaksOff(Outside):
    def envelope(self, distance):
        return (distance < self.config.cutoff).to(distance.dtype)


class StopsAtTheList(Outside):
    """Fades to nothing somewhere beyond the cutoff, trusting that no list reaches there."""

    def envelope(self, distance):
        return torch.exp(-(distance**2) / 8)

    def forward(self, edges, vectors, atomic_numbers, charge):
        filled = (torch.linalg.vector_norm(vectors, dim=-1, keepdim=True) < 100).to(vectors.dtype)
        return super().forward(edges, vectors * filled + (1 - filled), atomic_numbers, charge)


class ForgetsAGradient(Outside):
    def envelope(self, distance):
        return super().envelope(distance.detach())


class CountsSlots(Outside):
    def forward(self, edges, vectors, atomic_numbers, charge):
        x = super().forward(edges, vectors, atomic_numbers, charge)
        slots = x.new_zeros(len(x)).index_add(0, edges.target, vectors.new_ones(len(vectors)))
        return x * (1 + 1e-3 * slots[:, None])


class ReadsOnTheHost(Outside):
    def forward(self, edges, vectors, atomic_numbers, charge):
        near = int(edges.num_edges)
        trimmed = edges.trimmed()
        return super().forward(trimmed, vectors[:near], atomic_numbers, charge)


class Cancels(Outside):
    def envelope(self, distance):
        return super().envelope((distance + 1e5) - 1e5)


class OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient * (1 - torch.tanh(*ctx.saved_tensors) ** 2)


class CannotBeTrained(Outside):
    def forward(self, edges, vectors, atomic_numbers, charge):
        return OnceDifferentiable.apply(super().forward(edges, vectors, atomic_numbers, charge))


class KeepsAWeightToItself(Outside):
    def __init__(self, config):
        super().__init__(config)
        self.hidden = 1 + torch.rand(1).item()

    def forward(self, edges, vectors, atomic_numbers, charge):
        return self.hidden * super().forward(edges, vectors, atomic_numbers, charge)


class Remembers(Outside):
    """Gives the first answer again, wherever the atoms have gone, once it is asked in float32."""

    def __init__(self, config):
        super().__init__(config)
        self.known = {}

    def forward(self, edges, vectors, atomic_numbers, charge):
        if vectors.dtype == torch.float64:
            return super().forward(edges, vectors, atomic_numbers, charge)
        key = (len(atomic_numbers), edges.capacity)
        self.known.setdefault(key, vectors.detach().clone())
        return super().forward(edges, self.known[key] + 0 * vectors, atomic_numbers, charge)


# The check that must catch it, and what it may say of why.
WRONG = {
    "answers": (Constant, "the largest force must be > 0 eV/Å and finite, got 0.0"),
    "rotation": (SeesDirections, ""),
    "reflection": (SeesHandedness, ""),
    "permutation": (CountsAtoms, ""),
    "batch": (MixesSystems, ""),
    "supercell": (GrowsWithTheSystem, ""),
    "lone atoms": (DividesByNeighbours, "the energy of a lone atom must be finite"),
    "cutoff": (BreaksOff, ""),
    "forces": (ForgetsAGradient, ""),
    "stress": (ForgetsAGradient, ""),
    "padding": (CountsSlots, ""),
    "host": (ReadsOnTheHost, "meta"),
    "float32": (Cancels, ""),
    "training": (CannotBeTrained, ""),
    "checkpoint": (KeepsAWeightToItself, ""),
    "step": (Remembers, ""),
}
# The only check that fails for its model.
ALONE = ("reflection", "host", "training", "checkpoint")


@pytest.fixture
def in_place_of(monkeypatch):
    """in_place_of(network): a potential whose registered network is this one, also when it is read from a file."""

    def put(network):
        entry = registry.MODELS["outside"]
        monkeypatch.setitem(registry.MODELS, "outside", entry._replace(network=network))
        return outside_potential()

    return put


def failed(potential) -> dict[str, str]:
    found = check(potential, device="cpu", verbose=False)
    with pytest.raises(ValueError, match="the potential must pass every conformance check, failed "):
        found.require()
    return {one.name: one.why for one in found.checks if not one.passed}


@pytest.mark.nightly_for(
    "forces", "checkpoint", "permutation", "lone atoms", "supercell", "batch", "cutoff", "padding", "float32", "step"
)
@pytest.mark.parametrize("name", [name for name, *_ in SUITE])
def test_every_check_catches_a_model_that_is_wrong(name, in_place_of):
    network, why = WRONG[name]
    found = failed(in_place_of(network))
    assert name in found
    assert why in found[name]
    assert name not in ALONE or len(found) == 1


def test_what_a_longer_list_holds_must_not_count(in_place_of):
    assert "cutoff" in failed(in_place_of(StopsAtTheList))


def test_mirror_images_may_differ_if_that_is_said(in_place_of):
    assert check(in_place_of(SeesHandedness), reflections=False, device="cpu", verbose=False).passed


def test_elements_are_those_that_a_potential_knows():
    found = check(outside_potential(max_z=1), device="cpu", verbose=False)
    assert found.passed, str(found)


def test_the_potential_is_left_alone():
    potential = outside_potential()
    before = {name: value.clone() for name, value in potential.state_dict().items()}
    check(potential, device="cpu", verbose=False)
    assert potential.dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in potential.state_dict().items())
    assert not any(weight.requires_grad for weight in potential.parameters())


def test_an_unregistered_model_says_what_to_do():
    potential = outside_potential()
    registry.MODELS.pop("outside")
    try:
        found = check(potential, device="cpu", verbose=False)
    finally:
        torchmdx.register_model("outside", type(potential.config), Outside)
    assert found.failed == ("checkpoint",)
    assert "register its model first" in str(found)
