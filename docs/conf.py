"""Builds the documentation: `make docs`, or sphinx-build -W -n docs build/docs."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # signatures.py, results.py
sys.path.insert(0, str(Path(__file__).parents[1]))

import torchmdx

project = "torchmdx"
author = "The torchmdx developers"
copyright = author
version = release = torchmdx.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "signatures", "results"]
exclude_patterns = ["_build"]
root_doc = "index"

# Single backticks in docstrings enclose code. Literal blocks are code, or drawings and formulas, which get no colours.
default_role = "code"
highlight_language = "default"

napoleon_numpy_docstring = False
# As lists, since an item may explain several names.
napoleon_use_param = False
napoleon_custom_sections = [("Attributes", "params_style")]

# Headings can be linked to as on a forge: page.md#heading.
myst_heading_anchors = 3

autodoc_member_order = "bysource"
# Optional packages whose classes those of torchmdx are derived from.
autodoc_mock_imports = [name for name in ("ipi", "torch_sim") if find_spec(name) is None]
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

# Every name of torchmdx that is referred to has to be there. Types of other packages are not linked: that would take
# their indices from the network.
nitpicky = True
# Equations in docstrings are no code.
suppress_warnings = ["misc.highlighting_failure"]
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|numpy|np|ase|openmm|app|argparse|collections|pathlib|socket|typing)(\..*)?"),
    # What signatures mention and nobody makes by hand; the sections of a configuration are in training.md, key by key.
    (
        r"py:.*",
        r"torchmdx\.(checkpoints\.formats\.(reading\.Report|source\.Source)|step\.audit\.Verdict)",
    ),
    (r"py:.*", r"torchmdx\.openmm\.(evaluator\.ForceEvaluator|surroundings\.Surroundings)"),
    (r"py:.*", r"torchmdx\.runtime\.(output_lock\.OutputLock|interrupt\.Interrupts)"),
    (
        r"py:.*",
        r"(torchmdx\.datasets\.labelling\.(run\.Paths|work\.LabelWork|workers\.Workers|dask_workers\.DaskWorkers"
        r"|geometry\.UnlabelledStructure)|UnlabelledStructure)",
    ),
    (
        r"py:.*",
        r"torchmdx\.datasets\.(distributions|energy_changes)\.\w+",
    ),
    (r"py:.*", r"torchmdx\.training\.(config|data_section|loss_section)\.\w*Section"),
    (
        r"py:.*",
        r"torchmdx\.dynamics\.(motion\.Motion|particles\.Particles|log\.LogRow|restraints\.Restraint)",
    ),
    (
        r"py:.*",
        r"torchmdx\.dynamics\.run\.(files\.RunFiles|outputs\.OutputSchedule)",
    ),
    (r"py:.*", r"torchmdx\.engines\.plan\.(request\.Network|workload\.Workload|machine\.Machine)"),
    (r"py:.*", r"torchmdx\.training\.(distributed\.Group|labelled\.LabelledBatch|progress\.TrainingProgress)"),
    (r"py:.*", r"Dropout|BatchNorm"),
    (r"py:.*", r"torchmdx\.report\.predictions\.LastInputs|NoCalibration"),
    (r"py:.*", r"torchmdx\.report\.page\.PageSection|(torchmdx\.report\.view\.notebook\.)?View"),
    (r"py:.*", r"torchmdx\.dynamics\.(trajectory\.TrajectoryFrame|trajectory_formats\.TrajectoryFile)|TrajectoryFile"),
    (r"py:.*", r"torchmdx\.engines\.plan\.(machine\.Machine|request\.Network|workload\.Workload)"),
    (r"py:.*", r"(DeviceState|Motion|torchmdx\.dynamics\.(integrators\.table\.Kind|run\.outputs\.OutputSchedule))"),
    (r"py:.*", r"(Tensor|ArrayLike|NDArray|Atoms|Path|Module|StrEnum|TextIO|dict\[).*"),
    (r"py:.*", r"(torchmdx\.checkpoints\.prepare\.)?PotentialSource|Region|LinkRequest|unit\.Quantity"),
    (r"py:.*", r"torchmdx\.models\.priors\.base\.(Geometry|Lattice|OpenPairPrior|Prior)|Frame"),
    (r"py:.*", r"torchmdx\.(engines\.engine\.Engine|step\.capture_policy\.GraphPolicy|step\.results\.Frame)"),
    (r"py:.*", r"(Any|Sequence|Iterable|Iterator|Mapping|Callable).*"),
]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["measured.css"]
html_title = f"torchmdx {version}"
html_copy_source = False
html_show_sphinx = False
