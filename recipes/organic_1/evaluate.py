"""Measures a potential of this recipe against GFN2-xTB, and fills the model card. Needs RDKit, tblite and matplotlib.

python evaluate.py --checkpoint organic_1/best.safetensors --training organic_1 --data data

Writes card/*.json, the pictures in docs/images, and the tables of docs/organic-1.md. Molecular dynamics are those of
dynamics.py, which writes card/dynamics.json; `--only page` fills the card from existing files.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import card_errors
import card_figures
import torch
from card_assemblies import pairs, waters
from card_ions import ions
from card_methods import Network, Workers
from card_page import error_table, render
from card_protons import protons
from card_rotors import rotors
from card_torsions import read_subsets, torsions
from card_training import frames_in, training

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs"
SCANS = ("torsions", "rotors", "waters", "pairs", "ions", "protons")
PARTS = ("training", "errors", *SCANS, "page")


def plain(value: Any) -> Any:
    """Without NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def write(args: argparse.Namespace, name: str, found: Any) -> None:
    """One JSON file of the card."""
    (args.card / f"{name}.json").write_text(json.dumps(plain(found), indent=1, ensure_ascii=False) + "\n")


def image(args: argparse.Namespace, name: str) -> Path:
    """Where a picture goes."""
    return Path(args.images / f"organic-1-{name}.png")


def measure_errors(args: argparse.Namespace) -> dict[str, int]:
    """Parts 1 and 2: labelled frames of unseen and of large molecules."""
    found, counts = {}, {}
    for name, most in (("test", args.frames), ("heldout", args.large_frames)):
        data = sorted(args.data.glob(f"{name}-*.npz"))
        if not data:
            raise FileNotFoundError(f"--data must hold {name}-*.npz, of archive.py unpack; {str(args.data)!r} does not")
        frames = card_errors.compare(args.checkpoint, data, most, args.seed)
        found[name] = plain(card_errors.errors(frames))
        if name == "heldout":
            found[name]["each_ion"] = card_errors.by_composition(frames, frames.charges != 0)
        write(args, name, found[name])
        print(error_table(name, found[name]["headline"]), flush=True)
        counts |= {f"{name}_frames": len(frames.counts), f"{name}_all": frames_in(data)}
        if name == "test":
            card_figures.parity(image(args, "parity"), frames, args.seed)
    card_figures.errors(image(args, "errors"), found["test"], found["heldout"])
    return counts


def measure_scans(args: argparse.Namespace, workers: Workers) -> None:
    """Parts 3 to 8: torsions, rotors, water clusters, pairs, ions, protons."""
    network = Network(args.checkpoint)
    subsets = read_subsets(HERE / "smiles.txt")
    frames = sorted(args.data.glob("train-*.npz"))
    parts: dict[str, tuple[Callable[[], Any], Callable[[Path, Any], None] | None]] = {
        "torsions": (lambda: torsions(network, workers, subsets, args.seed), card_figures.torsions),
        "rotors": (lambda: rotors(network, workers, subsets), None),
        "waters": (lambda: waters(network, workers, args.seed), card_figures.waters),
        "pairs": (lambda: pairs(network, workers), card_figures.pairs),
        "ions": (lambda: ions(network, workers, frames), None),
        "protons": (lambda: protons(network, workers), None),
    }
    for name, (make, draw) in parts.items():
        if name in args.only:
            began = time.monotonic()
            rows = make()
            write(args, name, rows)
            if draw is not None:
                draw(image(args, name), rows)
            print(f"{name}: {len(rows)} rows after {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default="organic-1", help="a path or a name")
    parser.add_argument("--training", type=Path, nargs="*", default=[], help="folders of the training, in order")
    parser.add_argument("--data", type=Path, default=HERE / "data", help="of archive.py unpack")
    parser.add_argument("--card", type=Path, default=HERE / "card")
    parser.add_argument("--images", type=Path, default=DOCS / "images")
    parser.add_argument("--page", type=Path, default=DOCS / "organic-1.md")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--frames", type=int, default=100_000, help="of the test set at most")
    parser.add_argument("--large-frames", type=int, default=100_000, help="of the held-out molecules at most")
    parser.add_argument("--workers", type=int, default=2, help="processes of GFN2-xTB")
    parser.add_argument("--seed", type=int, default=20265)
    args = parser.parse_args()
    args.card.mkdir(parents=True, exist_ok=True)
    args.images.mkdir(parents=True, exist_ok=True)
    began, counts = time.monotonic(), {}
    if set(SCANS) & set(args.only):
        workers = Workers(args.workers)
        measure_scans(args, workers)
        workers.close()
    if "training" in args.only:
        write(args, "training", training(args.checkpoint, args.training, args.data))
    if "errors" in args.only:
        counts = measure_errors(args)
    if set(args.only) == set(PARTS):
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        versions = {"torch": torch.__version__.split("+")[0], "tblite": importlib.metadata.version("tblite")}
        facts = {"checkpoint": Path(args.checkpoint).name, "device": device, "seed": args.seed, **versions, **counts}
        write(args, "run", facts | {"seconds": time.monotonic() - began})
    elif counts:  # keeps the other results
        write(args, "run", json.loads((args.card / "run.json").read_text()) | counts)
    if "page" in args.only:
        left = render(args.page, args.card)
        print(f"wrote {args.page}" + (f"; nothing new for {', '.join(left)}" if left else ""))


if __name__ == "__main__":
    main()
