"""Signs that labels are of another level of theory than the potential to fine-tune."""

from __future__ import annotations

from collections.abc import Mapping

from torchmdx.training.config import Config
from torchmdx.training.loss import used_terms

# Mean error of the energy, eV/atom, from which it is suspicious; and its ratio to the mean error of the forces, Å. At
# the same level of theory, errors of energies per atom are a tenth of those of forces, or less.
SUSPICIOUS, RATIO = 0.05, 0.5


def doubt(config: Config, errors: Mapping[str, float]) -> str | None:
    """A warning about the errors of the first batch, eV/atom and eV/Å, of a run that keeps reference energies."""
    finetune, terms = config.finetune, used_terms(config.loss)
    if finetune.checkpoint is None or finetune.references != "keep" or "energy" not in terms:
        return None
    energy, forces = errors["energy"], errors["forces"]
    if energy < SUSPICIOUS or ("forces" in terms and energy < RATIO * forces):
        return None
    more = f", forces by {forces:.3g} eV/Å" if "forces" in terms else ""
    return (
        f"the energies of the first batch differ from those of {finetune.checkpoint!r} by {energy:.3g} eV/atom{more}:"
        " the labels may be of another level of theory. Set finetune.references: shift, which fits the reference "
        "energies to the labels; otherwise the network has to learn the difference, at the expense of the forces"
    )
