"""Checks the contents of an sdist and a wheel: check_archives.py SOURCE SDIST WHEEL."""

import email
import re
import sys
import tarfile
import zipfile
from pathlib import Path

MOST_BYTES = 5_000_000  # of an included potential
# Compiled while the wheel is built; the hash is of their sources.
LIBRARY = re.compile(r"torchmdx/.*-[0-9a-f]{16}\.so")
LIBRARIES = (
    "torchmdx/engines/cpu/tensornet-",
    "torchmdx/engines/cpu/kernels-",
    "torchmdx/neighbors/backends/cell_list-",
)
NEEDED = (
    "torchmdx/py.typed",
    "torchmdx/commands/demo_run/alanine_dipeptide.pdb",
    "torchmdx/engines/cpu/kernels.c",
    "torchmdx/engines/cpu/kernels_coulomb.c",
    "torchmdx/engines/cpu/kernels_each.h",
    "torchmdx/engines/cpu/kernels_pair_forms.c",
    "torchmdx/engines/cpu/kernels_threads.c",
    "torchmdx/engines/cpu/tensornet.c",
    "torchmdx/engines/cpu/tensornet.h",
    "torchmdx/engines/cpu/tensornet2.h",
    "torchmdx/engines/cpu/tensornet2_chain.c",
    "torchmdx/engines/cpu/tensornet2_charges.c",
    "torchmdx/engines/cpu/tensornet2_gradient.c",
    "torchmdx/engines/cpu/tensornet2_memory.c",
    "torchmdx/engines/cpu/tensornet2_rows.c",
    "torchmdx/engines/cpu/tensornet_atoms.c",
    "torchmdx/engines/cpu/tensornet_chain.c",
    "torchmdx/engines/cpu/tensornet_each.h",
    "torchmdx/engines/cpu/tensornet_edges.c",
    "torchmdx/engines/cpu/tensornet_gradient.c",
    "torchmdx/engines/cpu/tensornet_head.c",
    "torchmdx/engines/cpu/tensornet_nine.c",
    "torchmdx/engines/cpu/tensornet_own.c",
    "torchmdx/engines/cpu/tensornet_product.c",
    "torchmdx/engines/cpu/tensornet_vectors.h",
    "torchmdx/neighbors/backends/cell_list.c",
    "torchmdx/neighbors/backends/cell_list_frame.h",
    "torchmdx/neighbors/backends/cell_list_near.h",
    "torchmdx/openmm/native/cuda_kernel.cpp",
    "torchmdx/openmm/native/cuda_types/cuda.h",
    "torchmdx/openmm/native/one_context.c",
    "torchmdx/checkpoints/potentials/organic-1.safetensors",
    "torchmdx/runtime/instructions.h",
    "torchmdx/report/view/viewer.js",
)


def package_files(source: Path) -> set[str]:
    """Every file of the package, by its path from the checkout."""
    return {path.relative_to(source).as_posix() for path in (source / "torchmdx").rglob("*") if path.is_file()}


def problems(wanted: set[str], sdist: set[str], wheel: dict[str, int], metadata: str) -> list[str]:
    """Problems found. wanted: files of the package; sdist: names in it; wheel: names and sizes in bytes."""
    found = [f"the checkout has no {name}" for name in NEEDED if name not in wanted]
    for kind, names in (("sdist", sdist), ("wheel", set(wheel))):
        found += [f"the {kind} lacks {name}" for name in sorted(wanted - names)]
        found += [f"the {kind} holds a test: {name}" for name in sorted(names) if "tests" in Path(name).parts]
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt"):
        found += [f"the sdist lacks {name}"] * (name not in sdist)
    info = {name for name in wheel if name.split("/")[0].endswith(".dist-info")}
    compiled = {name for name in wheel if LIBRARY.fullmatch(name)}
    found += [f"the wheel lacks the library {name}" for name in LIBRARIES if not any(name in made for made in compiled)]
    others = set(wheel) - wanted - info - compiled
    found += [f"the wheel holds what is not of the package: {name}" for name in sorted(others)]
    found += ["the wheel has no licence"] * (not any(name.endswith("/licenses/LICENSE") for name in info))
    found += ["the wheel has no command"] * (not any(name.endswith("/entry_points.txt") for name in info))
    for name, size in wheel.items():
        if name.endswith(".safetensors") and size > MOST_BYTES:
            found.append(f"{name} must be at most {MOST_BYTES:,} bytes, got {size:,}")
    fields = email.message_from_string(metadata)
    for field in ("Name", "Version", "Summary", "Requires-Python", "License-Expression", "Project-URL"):
        found += [f"the metadata lack {field}"] * (not fields[field])
    version = fields["Version"]
    found += [f"the version must be a release's, got {version}"] * (not str(version).replace(".", "").isdigit())
    extras = fields.get_all("Provides-Extra") or []
    found += [f"the metadata lack the extra {name}" for name in ("openmm", "train", "label") if name not in extras]
    return found


def main() -> int:
    """Prints the problems; returns the exit status."""
    source, sdist, wheel = map(Path, sys.argv[1:])
    with tarfile.open(sdist) as archive:  # every name begins with that of the directory
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {entry.filename: entry.file_size for entry in archive.infolist()}
        metadata = archive.read(next(name for name in in_wheel if name.endswith(".dist-info/METADATA"))).decode()
    found = problems(package_files(source), in_sdist, in_wheel, metadata)
    for problem in found:
        print(f"check_archives: {problem}", file=sys.stderr)
    if not found:
        print(f"{sdist.name}: {len(in_sdist)} entries; {wheel.name}: {len(in_wheel)}, {wheel.stat().st_size:,} bytes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
