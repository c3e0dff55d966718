import html
import re

import pytest
from ase import Atoms
from ase.build import bulk, molecule

import torchmdx

pytest.importorskip("plotly")


def test_a_view_is_a_page_that_fetches_nothing(tmp_path):
    shown = torchmdx.view([bulk("Cu", cubic=True)] * 2)
    text = shown._repr_html_()
    page = html.unescape(re.fullmatch(r'<iframe srcdoc="([^"]*)" [^>]*></iframe>', text).group(1))
    shown.save(tmp_path / "p.html")
    assert page == (tmp_path / "p.html").read_text()
    assert "default-src 'none'" in page
    assert "<title>Cu4</title>" in page
    assert repr(shown).startswith("View(Cu4: Cu4, 4 atoms, 2 frames; torchmdx")
    assert "<title>Water</title>" in torchmdx.view(molecule("H2O"), title="Water")._repr_html_().replace(
        "&lt;", "<"
    ).replace("&gt;", ">")


def test_structures_without_atoms():
    with pytest.raises(ValueError, match="a view needs at least one structure, got none"):
        torchmdx.view([])
    with pytest.raises(ValueError, match="atoms in every frame"):
        torchmdx.view(Atoms())
    with pytest.raises(TypeError, match="a view needs structures of ASE, got str; `torchmdx view` shows files"):
        torchmdx.view("crystal.cif")
