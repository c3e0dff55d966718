"""What a fine-tuning gained on the new frames and lost on the old ones: a table, and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchmdx.report.page import PageSection
from torchmdx.report.tables import Table
from torchmdx.runtime.wording import number
from torchmdx.training.config import Config
from torchmdx.training.heads import OLD
from torchmdx.training.loss import used_terms
from torchmdx.training.validation import NEW, TEST

UNITS = {"energy": "meV/atom", "forces": "meV/Å", "stress": "meV/Å³", "charges": "me", "dipole": "me Å"}
WHICH = {NEW: "new frames (validation)", TEST: "new frames (test)", OLD: "old frames"}
# Errors that grow by less are the same.
NOISE = 1.05

Values = Mapping[str, float]
Row = tuple[str, str, str, float, float]


def rows(config: Config, before: Values, after: Values) -> list[Row]:
    """Set, quantity, unit, error of the checkpoint and of the fine-tuned potential, on held-out frames.

    The new frames are those of the test set, if there is one: the validation set has chosen the fine-tuned potential.
    """
    new = TEST if f"{TEST}_loss" in before and f"{TEST}_loss" in after else NEW
    sets = [name for name in (new, *_of_heads(config, new), OLD) if f"{name}_loss" in before]
    terms = [(name, term) for name in sets for term in used_terms(config.loss)]
    keys = [(name, term, f"{name}_{term}") for name, term in terms if f"{name}_{term}" in {**before, **after}]
    # An error of exactly 0, that of the checkpoint on its own labels, is not among the values.
    which = WHICH | _of_heads(config, new)
    return [(which[name], term, UNITS[term], before.get(key, 0.0), after.get(key, 0.0)) for name, term, key in keys]


def _of_heads(config: Config, new: str) -> dict[str, str]:
    """Prefixes of the values of each head on the new frames, and what they are called; none for a single head."""
    heads = config.data.heads if len(config.data.heads) > 1 else {}
    return {f"{new}_{head}": f"{WHICH[new]}, head {head}" for head in heads}


def lines(config: Config, before: Values, after: Values, best_epoch: int) -> list[str]:
    """The table as text, and below it all warnings."""
    head = ["held-out", "error of", "checkpoint", "fine-tuned", ""]
    cells = [head, *([w, q, number(a), number(b), unit] for w, q, unit, a, b in rows(config, before, after))]
    widths = [max(len(row[k]) for row in cells) for k in range(4)]
    table = [
        f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}  {row[4]}".rstrip()
        for row in cells
    ]
    return [*table, *remarks(config, before, after, best_epoch)]


def remarks(config: Config, before: Values, after: Values, best_epoch: int) -> list[str]:
    """What was gained and lost in one line, and warnings."""
    summary = "; ".join(_summary(config, before, after)) if best_epoch else ""
    return [*([summary] if summary else []), *_warnings(config, before, after, best_epoch)]


def _summary(config: Config, before: Values, after: Values) -> Iterator[str]:
    """A clause for each set, on the forces, or the energies of a training without forces."""
    found = rows(config, before, after)
    for which in dict.fromkeys(name for name, *_ in found):
        own = {quantity: (unit, a, b) for name, quantity, unit, a, b in found if name == which}
        if not own:
            continue
        quantity = "forces" if "forces" in own else next(iter(own))
        unit, a, b = own[quantity]
        if which == WHICH[OLD] and config.finetune.replay_labels == "base":
            yield f"moved by {number(b)} {unit} on the old frames"
        else:
            what = "gained" if b < a else "lost"
            yield f"{what} {number(abs(a - b))} of {number(a)} {unit} in {quantity} on the {which}"


def _warnings(config: Config, before: Values, after: Values, best_epoch: int) -> Iterator[str]:
    checkpoint = config.finetune.checkpoint
    if best_epoch == 0:
        yield (
            f"warning: no epoch had a lower validation loss than {checkpoint!r} itself, which best.safetensors holds "
            "(with shifted references, if requested); try a lower optimizer.learning_rate or more data"
        )
        return
    own_labels = config.finetune.replay_labels == "base"
    new = TEST if f"{TEST}_loss" in after else NEW
    of_new = {term: after[f"{new}_{term}"] for term in UNITS if f"{new}_{term}" in after}
    for which, term, unit, a, b in rows(config, before, after):
        drift = which == WHICH[OLD] and own_labels
        if not drift and b > NOISE * a:
            yield (
                f"warning: the fine-tuned potential is worse than {checkpoint!r} on the {which}: "
                f"{term} {number(b)} instead of {number(a)} {unit}"
            )
        elif drift and b > of_new.get(term, b):
            yield (
                f"warning: the fine-tuned potential has moved further from {checkpoint!r} on the old frames than it is "
                f"from the labels of the new ones: {term} {number(b)} against {number(of_new[term])} {unit}; try a "
                "larger finetune.replay_share, more frames to replay, or a lower optimizer.learning_rate"
            )
    if f"{OLD}_loss" not in after:
        yield (
            "note: errors on structures unlike the new frames may have grown, and were not measured: "
            "finetune.replay trains and validates such structures too"
        )


def fine_tuning(config: Config, before: Values, after: Values, best_epoch: int) -> PageSection:
    """Errors of the checkpoint and of the fine-tuned potential on held-out frames, side by side."""
    cells = [
        [f"{quantity}, {which} / {unit}", number(a), number(b)]
        for which, quantity, unit, a, b in rows(config, before, after)
    ]
    table = Table(["mean absolute error", "checkpoint", "fine-tuned"], cells, words=(0,))
    return PageSection("Fine-tuning", remarks(config, before, after, best_epoch), tables={"": table})
