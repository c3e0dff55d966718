"""Means of losses and errors over the steps of an epoch, weighted by the number of labels in each step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchmdx.training.loss_section import TERMS

MILLI = 1000.0


class EpochMeans:
    """Running sums by term, which can be saved: [Σ labels · (loss, |error|, 1, error²)]."""

    def __init__(self, sums: dict[str, list[float]] | None = None) -> None:
        """sums: those of another object; terms that they lack have no values yet."""
        self.sums = {name: [0.0] * 4 for name in TERMS} | {k: [*v, 0.0][:4] for k, v in (sums or {}).items()}

    def add(self, values: dict[str, float], totals: Sequence[int]) -> None:
        """Adds the values of a step, by the names in training.step.VALUES, with the label counts of its batch."""
        for name, total in zip(TERMS, totals, strict=True):
            sums = self.sums[name]
            sums[0] += total * values[f"{name}_loss"]
            sums[1] += total * values[name]
            sums[2] += total
            sums[3] += total * values.get(f"{name}_square", 0.0)

    def errors(self) -> dict[str, float]:
        """Mean absolute errors in meV/atom, meV/Å, meV/Å³, me and me Å of the trained terms that had labels."""
        return {name: MILLI * sums[1] / sums[2] for name, sums in self.sums.items() if sums[2] and sums[1]}

    def squares(self) -> dict[str, float]:
        """Root mean square errors in the same units, by names such as forces_rmse."""
        found = {name: sums[3] / sums[2] for name, sums in self.sums.items() if sums[2] and sums[3]}
        return {f"{name}_rmse": MILLI * square**0.5 for name, square in found.items()}

    @staticmethod
    def together(several: Iterable[EpochMeans]) -> EpochMeans:
        """Sums over all frames of several sets."""
        found = EpochMeans()
        for means in several:
            found.sums = {
                name: [a + b for a, b in zip(found.sums[name], sums, strict=True)] for name, sums in means.sums.items()
            }
        return found

    def all(self, weights: Sequence[float]) -> dict[str, float]:
        """The loss with these term weights, and the errors."""
        means = [sums[0] / max(sums[2], 1.0) for sums in self.sums.values()]
        return {"loss": sum(w * m for w, m in zip(weights, means, strict=True))} | self.errors()
