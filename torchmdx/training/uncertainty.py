"""The end of a run: the uncertainty of the best potential, stored in its file."""

from __future__ import annotations

from pathlib import Path

import torch

from torchmdx.checkpoints.locate import with_head
from torchmdx.checkpoints.save_load import load_one, with_uncertainty_in
from torchmdx.models.uncertainty import why_not
from torchmdx.report.rigidity import NoCalibration, add_uncertainty
from torchmdx.runtime.files import write_whole
from torchmdx.runtime.wording import counted, number
from torchmdx.training.loop import BEST, Trainer


def store_uncertainty(trainer: Trainer, directory: Path, device: torch.device) -> None:
    """Gathers the covariance over the training frames, and calibrates it by the validation frames; each head its own.

    Prints what was stored, or why nothing was.
    """
    file, heads = directory / BEST, trainer.heads
    if not file.is_file():
        return
    for head in ("",) if heads is None else heads.names:
        name = with_head(file, head or None)
        parts = {part: trainer.parts[part] for part in ("train", "validation")}
        if heads is not None:
            parts = {part: heads.parts(indices)[head] for part, indices in parts.items()}
        potential = load_one(name, device=device, dtype=trainer.potential.dtype)
        of = f" of the head {head}" if head else ""
        sets = ((trainer.store, parts["train"]), (trainer.store, parts["validation"]))
        try:
            if (reason := why_not(potential.head)) is not None:
                raise NoCalibration(reason)
            found = add_uncertainty(potential, *sets, device=device, dtype=trainer.potential.dtype).uncertainty
        except NoCalibration as error:
            print(f"{file}  no uncertainty{of}: {error}")
            continue
        assert found is not None
        content = with_uncertainty_in(file, found, head or None)
        assert content is not None
        write_whole(file, content)
        frames = f"{counted(found.num_frames, 'frame')}, by the errors of {found.num_calibration:,}"
        print(f"{file}  uncertainty{of} from {frames}: factor {number(found.factor)} eV")
