"""Makes ethanol.xyz: 300 geometries of ethanol from dynamics at 500 K, labelled with GFN2-xTB.

    python examples/data/make_ethanol.py ethanol.xyz

The file lies here already; this is its recipe. It takes about a minute and needs `pip install 'torchmdx[label]'`.
"""

import sys

from torchmdx.commands import main as torchmdx_command

OUTPUT = sys.argv[1] if len(sys.argv) > 1 else "ethanol.xyz"

if __name__ == "__main__":  # worker processes import this file
    options = "--calculator gfn2-xtb --calculator-option accuracy=0.01 --sample md --conformers 2 --count 150"
    options += " --temperature 500 --spacing 40 --seed 1"
    sys.exit(torchmdx_command(["label", "--smiles", "CCO", "-o", OUTPUT, *options.split()]))
