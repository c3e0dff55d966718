"""Pictures of the model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from card_errors import Compared

from torchmdx.report.style import FAINT, INK, PALETTE, legend, picture, tidy

REFERENCE, OURS, IONS = INK, PALETTE[0], PALETTE[5]  # colours of GFN2-xTB, of the potential, and of ions
MOST_POINTS = 20_000
SUBSETS = {"train": "seen in training", "val": "of the validation", "test": "unseen", "none": "unseen"}


def parity(path: Path, frames: Compared, seed: int) -> None:
    """Predicted over labelled forces and energies of neutral molecules and of ions."""
    rng = np.random.default_rng(seed)
    neutral = frames.charges == 0
    bound = frames.bound()
    with picture(path, 8.4, 8.2) as figure:
        panels = figure.subplots(2, 2)
        for column, (chosen, name) in enumerate(((neutral, "neutral"), (~neutral, "ions"))):
            atoms = chosen[frames.frame]
            forces = np.stack([frames.forces[atoms].ravel(), frames.predicted_forces[atoms].ravel()], 1)
            mae = 1e3 * np.abs(forces[:, 1] - forces[:, 0]).mean()
            kept = rng.permutation(len(forces))[:MOST_POINTS]
            _cloud(panels[0, column], forces[kept], f"forces, {name}: MAE {mae:.0f} meV/Å", "force / eV/Å")
            mae = np.abs(frames.energy_errors()[chosen])
            title = f"energy, {name}: MAE {mae.mean():.1f}, median {np.median(mae):.1f} meV/atom"
            _cloud(panels[1, column], bound[chosen], title, "energy less that of atoms / eV/atom")


def _cloud(panel: Any, pairs: np.ndarray, title: str, what: str) -> None:
    low, high = float(pairs.min()), float(pairs.max())
    margin = 0.04 * (high - low)
    low, high = low - margin, high + margin
    counts, xs, ys = np.histogram2d(pairs[:, 0], pairs[:, 1], bins=140, range=[[low, high], [low, high]])
    place = (np.clip(np.digitize(pairs[:, k], edges) - 1, 0, 139) for k, edges in enumerate((xs, ys)))
    density = counts[tuple(place)]
    order = np.argsort(density)
    panel.plot([low, high], [low, high], color=FAINT, linewidth=0.8, zorder=1)
    panel.scatter(*pairs[order].T, c=np.log(density[order]), s=5, cmap="viridis", linewidths=0, zorder=2)
    panel.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    tidy(panel, title, f"{what}, GFN2-xTB", f"{what}, organic-1")


def errors(path: Path, tables: dict[str, Any], large: dict[str, Any]) -> None:
    """Force errors by kind, by size (the held-out molecules too) and by the largest force."""
    sizes = {k: tables[f"size_{k}"] | large[f"size_{k}"] for k in ("neutral", "ions")}
    groups = {
        "kind of frame": {k: tables[f"kind_{k}"] for k in ("neutral", "ions")},
        "size": sizes,
        "largest force of the frame": {k: tables[f"force_{k}"] for k in ("neutral", "ions")},
    }
    with picture(path, 9.6, 3.9) as figure:
        panels = figure.subplots(1, 3, sharey=True)
        for panel, (title, both) in zip(panels, groups.items(), strict=True):
            names = list(both["neutral"] | both["ions"])
            for offset, (charge, colour) in zip((-0.2, 0.2), (("neutral", OURS), ("ions", IONS)), strict=True):
                rows = [(k, both[charge][name]) for k, name in enumerate(names) if name in both[charge]]
                heights = [row["forces_mae"] for _, row in rows]
                panel.bar([k + offset for k, _ in rows], heights, 0.38, color=colour, label=charge)
                for (k, _), height in zip(rows, heights, strict=True):
                    panel.text(k + offset, height * 1.03, f"{height:.0f}", ha="center", fontsize=7, color=INK)
            panel.set_yscale("log")
            panel.set_yticks([20, 50, 100, 200, 500, 1000], ["20", "50", "100", "200", "500", "1000"])
            panel.minorticks_off()
            panel.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor")
            tidy(panel, f"by {title}", grid="y")
        panels[0].set_ylabel("force MAE / meV/Å", fontsize=9, color=INK)
        legend(panels[0], loc="upper left", ncols=2)
        highest = max(row["forces_mae"] for both in groups.values() for rows in both.values() for row in rows.values())
        panels[0].set_ylim(20, 2.0 * highest)  # room for the legend


def torsions(path: Path, rows: list[dict[str, Any]]) -> None:
    """Both curves of every scan: a column for each residue, φ above ψ."""
    residues = list(dict.fromkeys(row["residue"] for row in rows))
    with picture(path, 2.3 * len(residues), 4.8) as figure:
        panels = figure.subplots(2, len(residues), sharex=True, sharey="row", squeeze=False)
        for row in rows:
            column = residues.index(row["residue"])
            line = 0 if row["angle"] == "phi" else 1
            panel = panels[line, column]
            panel.plot(row["degrees"], row["gfn2"], color=REFERENCE, marker="o", markersize=2.5, label="GFN2-xTB")
            panel.plot(row["degrees"], row["network"], color=OURS, marker="s", markersize=2.5, label="organic-1")
            letter = "φ" if row["angle"] == "phi" else "ψ"
            name = f"ACE-{row['residue']}-NME"
            tidy(
                panel,
                (f"{name},\n{SUBSETS[row['subset']]}\n" if line == 0 else "") + f"RMSE {row['rmse']:.2f} kcal/mol",
            )
            panel.set_xlabel(f"{letter} / °", fontsize=9, color=INK)
            panel.set_xticks([-180, -90, 0, 90, 180])
            panel.tick_params(labelbottom=True)
        for line in (0, 1):
            panels[line, 0].set_ylabel("energy / kcal/mol", fontsize=9, color=INK)
        legend(panels[1, 0], loc="upper left")
        top = panels[1, 0].get_ylim()[1]
        panels[1, 0].set_ylim(-0.5, 1.25 * top)


def waters(path: Path, rows: list[dict[str, Any]]) -> None:
    """Binding energies of water clusters, and errors of these and of the forces."""
    number = np.array([row["number"] for row in rows])
    theirs, ours, forces = (np.array([row[key] for row in rows]) for key in ("gfn2", "network", "forces_mae"))
    with picture(path, 9.0, 3.2) as figure:
        first, second, third = figure.subplots(1, 3)
        shift = 0.12
        first.scatter(number - shift, theirs / number, s=16, color=REFERENCE, label="GFN2-xTB")
        first.scatter(number + shift, ours / number, s=16, color=OURS, marker="s", label="organic-1")
        tidy(first, "binding energy", "water molecules", "kcal/mol of each molecule")
        legend(first)
        second.axhline(0, color=FAINT, linewidth=0.8)
        second.scatter(number, (ours - theirs) / number, s=16, color=OURS, marker="s")
        limit = 1.2 * max(0.5, float(np.abs((ours - theirs) / number).max()))
        second.set_ylim(-limit, limit)
        tidy(second, "error of the binding energy", "water molecules", "kcal/mol of each molecule")
        third.scatter(number, forces, s=16, color=OURS, marker="s")
        third.set_ylim(0, 1.15 * forces.max())
        tidy(third, "forces of shaken clusters", "water molecules", "MAE / meV/Å")
        for panel in (first, second, third):
            panel.set_xticks(range(2, 13, 2))


def pairs(path: Path, rows: list[dict[str, Any]]) -> None:
    """Both curves of each pair; a dotted line at GFN2-xTB's minimum."""
    with picture(path, 9.0, 5.4) as figure:
        for panel, row in zip(figure.subplots(2, 3).ravel(), rows, strict=True):
            x, theirs, ours = (np.array(row[key]) for key in ("distances", "gfn2", "network"))
            panel.axhline(0, color=FAINT, linewidth=0.8)
            panel.axvline(row["minimum"], color=FAINT, linewidth=0.8, linestyle=":")
            panel.plot(x, theirs, color=REFERENCE, marker="o", markersize=2.5, label="GFN2-xTB")
            panel.plot(x, ours, color=OURS, marker="s", markersize=2.5, label="organic-1")
            deep = max(-min(theirs.min(), ours[x >= 0.95 * row["minimum"]].min()), 0.5)
            panel.set_ylim(-1.25 * deep, 1.25 * deep)
            tidy(panel, f"{row['pair']}\n{row['contact']}", "distance / Å", "energy / kcal/mol")
        legend(figure.axes[0], loc="upper right")
