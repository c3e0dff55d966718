"""What Python and C++ pass to each other has one layout."""

import re
from pathlib import Path

from torchmdx.openmm.native import build
from torchmdx.openmm.native.provider import Handles


def test_handles_have_the_order_of_the_struct():
    header = (Path(build.__file__).parent / "callbacks.h").read_text()
    struct = re.sub(r"//.*", "", header.split("struct Handles {")[1].split("};")[0])
    names = re.findall(r"\w+", struct.replace("unsigned long long", ""))
    assert [re.sub("([A-Z])", lambda found: "_" + found[0].lower(), name) for name in names] == list(
        Handles.__dataclass_fields__
    )
