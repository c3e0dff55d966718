"""Tables of the model card for single molecules, pairs and ions, and the list of failures."""

from __future__ import annotations

from typing import Any

from card_figures import SUBSETS

Cards = dict[str, Any]  # contents of the JSON files, by name


def table(header: str, rows: list[list[str]]) -> str:
    """A table of Markdown. header: its columns, as `a | b`."""
    lines = [f"| {header} |", "|" + "---|" * (header.count("|") + 1)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def torsions(cards: Cards) -> str:
    """Scans of capped residues."""
    rows = [
        [
            f"ACE-{row['residue']}-NME",
            SUBSETS[row["subset"]],
            "φ" if row["angle"] == "phi" else "ψ",
            f"{row['height']:.1f}",
            f"{row['rmse']:.2f}",
            f"{row['largest']:.2f}",
        ]
        for row in cards["torsions"]
    ]
    return table("molecule | which is | angle | GFN2-xTB's curve is high | RMSE | largest error", rows)


def rotors(cards: Cards) -> str:
    """Barriers of rotation."""
    rows = [
        [row["molecule"], SUBSETS[row["subset"]], *(f"{row[key]:.2f}" for key in ("gfn2", "network", "rmse"))]
        for row in cards["rotors"]
    ]
    return table("molecule | which is | barrier, GFN2-xTB | organic-1 | RMSE of the curve", rows)


def waters(cards: Cards) -> str:
    """Water clusters, by size."""
    numbers = sorted({row["number"] for row in cards["waters"]})
    rows = []
    for number in numbers:
        same = [row for row in cards["waters"] if row["number"] == number]
        error = sum(abs(row["network"] - row["gfn2"]) for row in same) / len(same)
        bound = sum(row["gfn2"] for row in same) / len(same)
        forces = sum(row["forces_mae"] for row in same) / len(same)
        rows.append(
            [
                str(number),
                SUBSETS[same[0]["subset"]],
                f"{bound:.1f}",
                f"{error:.2f}",
                f"{error / number:.2f}",
                f"{forces:.0f}",
            ]
        )
    return table("waters | which are | binding energy | MAE | MAE of each molecule | forces, MAE, meV/Å", rows)


def pairs(cards: Cards) -> str:
    """Scans of two molecules."""
    rows = [
        [
            f"{row['pair']} ({row['contact']})",
            f"{row['minimum']:.2f}",
            f"{row['depth_gfn2']:.2f}",
            f"{row['depth_network']:.2f}",
            f"{row['rmse']:.2f}",
            f"{row['far_gfn2']:.2f}",
            f"{row['far_network']:.2f}",
        ]
        for row in cards["pairs"]
    ]
    header = (
        "pair | minimum, Å | depth, GFN2-xTB | organic-1 | RMSE from 0.95 of it on | at 3 times, GFN2-xTB | organic-1"
    )
    return table(header, rows)


def alone(cards: Cards) -> str:
    """Small ions alone."""
    rows = [[f"`{row['ion']}`", str(row["frames"]), f"{row['error']:+.1f}"] for row in cards["ions"]["alone"]]
    return table("ion | training frames of it alone | error of the energy", rows)


def chains(cards: Cards) -> str:
    """Acids, amines and their ions along a growing chain."""
    kinds = ("acid", "anion", "amine", "cation")
    rows = [
        [str(row["carbons"]), str(row["atoms"]), *(f"{row[kind]:+.1f}" for kind in kinds)]
        for row in cards["ions"]["chains"]
    ]
    return table("carbons in the chain | atoms of the anion | acid | its anion | amine | its cation", rows)


def protons(cards: Cards) -> str:
    """Protons moved from one atom to another."""
    rows = [
        [
            row["molecule"],
            f"{row['charge']:+d}" if row["charge"] else "0",
            f"{row['lengths'][0]:.2f} to {row['lengths'][-1]:.2f}",
            f"{row['right_to']:.2f}",
            f"{max(row['gfn2']):.1f}",
            f"{max(row['network']):.1f}",
            f"{row['largest']:+.1f}",
            f"{row['at']:.2f}",
        ]
        for row in cards["protons"]
    ]
    header = (
        "molecule | charge | donor and proton, Å | within 1 kcal/mol up to | highest, GFN2-xTB | organic-1 | "
        "largest error | at, Å"
    )
    return table(header, rows)


def large_ions(cards: Cards) -> str:
    """Ions of the held-out molecules."""
    rows = [
        [
            row["formula"],
            f"{row['charge']:+d}",
            str(row["atoms"]),
            str(row["frames"]),
            f"{row['forces_mae']:.0f}",
            f"{row['lowest']:+.1f} to {row['highest']:+.1f}",
        ]
        for row in cards["heldout"]["each_ion"]
    ]
    return table("ion | charge | atoms | frames | forces, MAE, meV/Å | errors of the energy, kcal/mol", rows)


def limits(cards: Cards) -> str:
    """Where it fails: a list."""
    rows, pairs = cards["test"]["headline"], {row["pair"]: row for row in cards["pairs"]}
    ions, neutral = rows["ions"], rows["neutral"]
    lines = [
        f"- **Ions.** The median error of energy is {ions['energy_median']:.1f} meV/atom and the mean "
        f"{ions['energy_mae']:.1f} ({neutral['energy_median']:.1f} and {neutral['energy_mae']:.1f} of neutral "
        f"molecules); of forces, {ions['forces_mae']:.0f} meV/Å ({neutral['forces_mae']:.0f}). A network that knows "
        "only the total charge does not know where it sits."
    ]
    widest = max(cards["heldout"]["each_ion"], key=lambda row: row["highest"] - row["lowest"])
    lines.append(
        "- **Ions longer than the 10 Å that two layers reach.** Errors of frames of one ion, "
        f"{widest['formula']} with a charge of {widest['charge']:+d}, are {widest['lowest']:+.0f} to "
        f"{widest['highest']:+.0f} kcal/mol: folded and stretched conformers cannot be compared."
    )
    furthest, of_neutral = (
        max((row for row in cards["protons"] if not (neutral_only and row["charge"])), key=lambda r: abs(r["largest"]))
        for neutral_only in (False, True)
    )
    lines.append(
        "- **Shared protons**: where a hydrogen bond is strong enough to share its proton, energies are wrong by "
        f"up to {abs(furthest['largest']):.0f} kcal/mol ({furthest['molecule']}), in neutral molecules by up to "
        f"{abs(of_neutral['largest']):.0f} ({of_neutral['molecule']})."
    )
    row = pairs["chloride, water"]
    alone = {ion["ion"]: ion["error"] for ion in cards["ions"]["alone"]}
    lines.append(
        f"- **Halides alone.** The error of chloride alone is {alone['[Cl-]']:+.0f} kcal/mol, of fluoride "
        f"{alone['[F-]']:+.0f}. **Chloride and "
        f"water**: the lowest point of the scan is {row['depth_gfn2']:.1f} kcal/mol with GFN2-xTB, "
        f"{row['depth_network']:.1f} with organic-1."
    )
    for name, text in (("benzene, benzene", "stacked benzene"), ("methane, methane", "a pair of methanes")):
        row = pairs[name]
        lines.append(
            f"- **{text[0].upper()}{text[1:]}**: the lowest point of the scan is {row['depth_gfn2']:.1f} kcal/mol with "
            f"GFN2-xTB, {row['depth_network']:.1f} with organic-1."
        )
    row, apart = pairs["ammonium, water"], cards["test"]["kind_ions"]["pairs of molecules"]
    lines.append(
        "- **An ion and a molecule that do not touch**: the total charge acts on every atom, wherever the ion is. The "
        f"{apart['frames']} unseen frames of pairs with an ion are wrong by {apart['energy_mae']:.0f} meV/atom in the "
        f"mean (median {apart['energy_median']:.0f}, one in twenty by more than {apart['energy_p95']:.0f}). Ammonium "
        "and water at "
        f"{row['distances'][-1]:.1f} Å: {row['far_gfn2']:.1f} kcal/mol by GFN2-xTB, {row['far_network']:.1f} by "
        "organic-1."
    )
    return "\n".join(lines)
