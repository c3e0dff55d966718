"""Stand-ins for ORCA, pw.x, VASP and the shell of CP2K: they read the input that ASE writes, and write as they do.

python programs.py PROGRAM LOG FAULTS [arguments that ASE adds]

Each atom is on a spring to the origin, as in `toys.Springs`. LOG gets a line for every run: program and frame, which
is the coordinate x of the first atom. FAULTS: such as "unconverged=1,fails=2", of frames. An SCF that has not converged
leaves numbers for ASE to read; a program that fails says the same and exits with an error.
"""

import re
import sys
from pathlib import Path

STIFFNESS = 2.0  # eV/Å²
HARTREE, RYDBERG, BOHR = 27.211386245981, 27.211386245981 / 2, 0.529177210544  # eV, eV, Å
GPA = 1 / 160.21766208  # eV/Å³
STRESS = [[0.01, 0.001, 0.0], [0.001, 0.02, 0.0], [0.0, 0.0, 0.03]]  # eV/Å³, positive in tension

LOG, FAULTS = Path(), {}


def energy_and_forces(positions, charge=0.0):
    energy = STIFFNESS / 2 * sum(x * x for place in positions for x in place) + charge
    return energy, [[-STIFFNESS * x for x in place] for place in positions]


def begin(program, positions) -> str:
    """Notes the run, and returns its fault."""
    frame = round(positions[0][0])
    with LOG.open("a") as file:
        file.write(f"{program} {frame}\n")
    return FAULTS.get(frame, "")


def words(text, start, count):
    return [line.split() for line in text.splitlines()[start : start + count]]


def orca(name):
    text = Path(name).read_text()
    charge, multiplicity = re.search(r"\*xyz (-?\d+) (\d+)", text).groups()
    body = text.split("*xyz")[1].splitlines()[1:]
    rows = [line.split() for line in body[: body.index("*")]]
    positions = [[float(word) for word in row[1:]] for row in rows]
    fault = begin("orca", positions)
    energy, forces = energy_and_forces(positions, float(charge))
    print(f"Number of atoms ... {len(rows)}\nCARTESIAN COORDINATES (ANGSTROEM)\n---------------------------------")
    print("\n".join(" ".join(row) for row in rows))
    print(f"Multiplicity           Mult            ....    {multiplicity}")
    note = ""
    if fault:
        print("               *        SCF NOT CONVERGED AFTER 125 CYCLES          *")
        note = " (Wavefunction not fully converged!)"
    if fault == "fails":
        sys.exit("ORCA finished by error termination in SCF")
    print(f"FINAL SINGLE POINT ENERGY {note} {energy / HARTREE:.12f}\n****ORCA TERMINATED NORMALLY****")
    gradient = [f"{-x / HARTREE * BOHR:.12f}" for force in forces for x in force]
    lines = ["#", "# The current gradient in Eh/bohr", "#", *gradient, "#", "# The at: atomic numbers", "#"]
    Path(name).with_suffix(".engrad").write_text("\n".join(lines) + "\n")


def espresso(flag, name):
    assert flag == "-in"
    text = Path(name).read_text()
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("ATOMIC_POSITIONS"))
    count = int(re.search(r"nat\s*=\s*(\d+)", text).group(1))
    rows = words(text, at + 1, count)
    positions = [[float(word) for word in row[1:4]] for row in rows]
    at = next(number for number, line in enumerate(lines) if line.startswith("CELL_PARAMETERS"))
    cell = [[float(word) for word in row] for row in words(text, at + 1, 3)]
    fault = begin("espresso", positions)
    energy, forces = energy_and_forces(positions)
    print("     Program PWSCF v.7.3 starts on ...\n     celldm(1)=   1.889726 celldm(2)= 0.0")
    print(f"     number of atoms/cell      = {count}\n     number of atomic types    = 1")
    print("     crystal axes: (cart. coord. in units of alat)")
    for number, row in enumerate(cell):
        print(f"               a({number + 1}) = ( {' '.join(f'{x:.6f}' for x in row)} )")
    print("     site n.     atom                  positions (alat units)")
    for number, row in enumerate(rows):
        print(f"         {number + 1}           {row[0]}  tau(   {number + 1}) = ( {' '.join(row[1:4])}  )")
    print("     number of k points=     1\n                       cart. coord. in units 2pi/alat")
    print("        k(    1) = (   0.0000000   0.0000000   0.0000000), wk =   2.0000000\n")
    print("     End of self-consistent calculation\n\n          k = 0.0000 0.0000 0.0000 (   100 PWs)   bands (ev):\n")
    print("    -5.1000  -2.3000\n\n     the Fermi energy is     1.0000 ev\n")
    if fault:
        print("     convergence NOT achieved after 100 iterations: stopping")
    if fault == "fails":
        sys.exit(2)
    print(f"!    total energy              =    {energy / RYDBERG:.12f} Ry")
    if re.search(r"tprnfor\s*=\s*\.true\.", text):
        print("     Forces acting on atoms (cartesian axes, Ry/au):\n")
        for number, force in enumerate(forces):
            shown = "  ".join(f"{x / RYDBERG * BOHR:.12f}" for x in force)
            print(f"     atom    {number + 1} type  1   force =  {shown}")
    if re.search(r"tstress\s*=\s*\.true\.", text):
        print("     Computing stress (Cartesian axis) and pressure\n\n          total   stress  (Ry/bohr**3)")
        for row in STRESS:
            print("  ".join(f"{-x / RYDBERG * BOHR**3:.12f}" for x in row) + "        0.0   0.0   0.0")
    print("     JOB DONE.")


def vasp():
    lines = Path("POSCAR").read_text().splitlines()
    scale = float(lines[1])
    cell = [[scale * float(word) for word in line.split()] for line in lines[2:5]]
    symbols = [
        symbol for symbol, count in zip(lines[5].split(), lines[6].split(), strict=True) for _ in range(int(count))
    ]
    assert lines[7].strip().lower().startswith("c")
    positions = [[float(word) for word in line.split()[:3]] for line in lines[8 : 8 + len(symbols)]]
    # The first atom of the frame, a carbon, may not be the first of the file.
    fault = begin("vasp", [positions[symbols.index("C")]])
    energy, forces = energy_and_forces(positions)
    reason = "EDIFF was not reached (unconverged)" if fault else "because EDIFF is reached"
    outcar = [
        " vasp.6.4.2 20Jul23",
        "   EDIFF  = 0.1E-05   stopping-criterion for ELM",
        f"--- aborting loop {reason} ---",
    ]
    Path("OUTCAR").write_text("\n".join([*outcar, "   NBANDS=      8"]) + "\n")
    if fault == "fails":
        sys.exit(1)

    def rows(name, vectors):
        inner = "".join(f"<v> {' '.join(f'{x:.12f}' for x in vector)} </v>" for vector in vectors)
        return f'<varray name="{name}">{inner}</varray>'

    scaled = [[x / cell[axis][axis] for axis, x in enumerate(place)] for place in positions]  # the tests have cubes
    structure = f"<crystal>{rows('basis', cell)}</crystal>{rows('positions', scaled)}"
    entry = f'<i name="e_fr_energy"> {energy:.10f} </i><i name="e_0_energy"> {energy + 0.25:.10f} </i>'
    atoms = "".join(f"<rc><c>{symbol}</c><c>1</c></rc>" for symbol in symbols)
    stress = [[-x / GPA * 10 for x in row] for row in STRESS]  # kbar, positive in compression
    Path("vasprun.xml").write_text(
        '<?xml version="1.0"?><modeling><kpoints><generation><v name="divisions"> 1 1 1 </v></generation>'
        f"{rows('kpointlist', [[0, 0, 0]])}{rows('weights', [[1]])}</kpoints><parameters></parameters>"
        f'<atominfo><array name="atoms"><set>{atoms}</set></array></atominfo>'
        f'<structure name="initialpos">{structure}</structure>'
        f"<calculation><scstep><energy>{entry}</energy></scstep><structure>{structure}</structure>"
        f"{rows('forces', forces)}{rows('stress', stress)}<energy>{entry}</energy></calculation></modeling>"
    )
    Path("CONTCAR").write_text("\n".join(lines) + "\n")


def cp2k():
    """The shell: commands on the input, answers on the output."""
    heard = (line.rstrip("\n") for line in sys.stdin)

    def say(*lines):
        print(*lines, sep="\n", flush=True)

    say("* READY")
    output, energy, forces = Path(), 0.0, []
    for line in heard:
        command, *arguments = line.split()
        if command == "EXIT":
            return
        if command == "VERSION":
            say("CP2K Shell Version: 5.0")
        elif command == "WRITE_FILE":
            name, count = next(heard), int(next(heard))
            Path(name).write_text("\n".join(next(heard) for _ in range(count)))
            assert next(heard) == "*END"
        elif command == "LOAD":
            charge = re.search(r"CHARGE (-?\d+)", Path(arguments[0]).read_text())
            charge, output = float(charge.group(1)) if charge else 0.0, Path(arguments[1])
            output.write_text("CP2K| version string: CP2K version 2024.2\n")
            say("1")
        elif command == "SET_CELL":
            [next(heard) for _ in range(3)]
        elif command == "SET_POS":
            count = int(next(heard)) // 3
            positions = [[float(word) for word in next(heard).split()] for _ in range(count)]
            assert next(heard) == "*END"
            say("0.0")
        elif command == "EVAL_EF":
            fault = begin("cp2k", positions)
            energy, forces = energy_and_forces(positions, charge)
            if fault:
                with output.open("a") as file:
                    file.write(" *** WARNING in qs_scf.F:542 :: SCF run NOT converged ***\n")
            if fault == "fails":
                sys.exit(1)
        elif command == "GET_E":
            say(f"{energy:.12f}")
        elif command == "GET_F":
            say(str(3 * len(forces)), *(" ".join(f"{x:.12f}" for x in force) for force in forces), "* END")
        elif command == "GET_STRESS":
            say(" ".join(f"{-x:.12f}" for row in STRESS for x in row))
        say("* READY")


if __name__ == "__main__":
    program, log, faults, *added = sys.argv[1:]
    LOG = Path(log)
    FAULTS = {int(frame): fault for fault, _, frame in (text.partition("=") for text in faults.split(",")) if frame}
    {"orca": orca, "espresso": espresso, "vasp": vasp, "cp2k": cp2k}[program](*added)
