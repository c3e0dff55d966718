"""What openmm-ml's arguments become: by hand, from the meaning that openmm-ml gives them."""

import pytest
from openmm import unit

from torchmdx.openmm.openmmml_options import require_units, translated


def options(**args):
    return translated(args, is_periodic=True, has_coulomb=True, cut_by_default=False)


FIELD = {"coulomb": "reaction_field"}
VACUUM = {"coulomb": "reaction_field_everywhere"}


@pytest.mark.parametrize(
    ("periodic", "args", "wanted"),
    [
        (True, {}, {}),
        (True, dict(coulomb_cutoff=0.9), {"coulomb_cutoff": 9.0}),
        (True, dict(coulomb_cutoff=9 * unit.angstrom), {"coulomb_cutoff": 9.0}),
        (True, dict(useCoulombCutoff=True), FIELD | {"coulomb_cutoff": 12.0}),
        (True, dict(useCoulombCutoff=True, coulomb_cutoff=1.0 * unit.nanometer), FIELD | {"coulomb_cutoff": 10.0}),
        (False, dict(useCoulombCutoff=True), VACUUM | {"coulomb_cutoff": 12.0}),
        (True, dict(useCoulombCutoff=False, coulomb_cutoff=1.0), {"coulomb": "ewald"}),
        (True, dict(peer=True), FIELD | {"coulomb_cutoff": 12.0}),
        (False, dict(peer=True), {"coulomb": "ewald"}),
        (True, dict(peer=True, coulomb_cutoff=0.9), FIELD | {"coulomb_cutoff": 9.0}),
        (True, dict(peer=True, coulomb="ewald"), {"coulomb": "ewald"}),
        (True, dict(peer=True, has_none=True), {}),
        (True, dict(useCoulombCutoff=False, has_none=True), {}),
    ],
)
def test_coulomb_cutoffs(periodic, args, wanted) -> None:
    args = dict(args)
    has, peer = not args.pop("has_none", False), args.pop("peer", False)
    found = translated(args, is_periodic=periodic, has_coulomb=has, cut_by_default=peer)
    assert found == {
        name: pytest.approx(value) if name == "coulomb_cutoff" else value for name, value in wanted.items()
    }


def test_kinds_of_energy() -> None:
    assert options(returnEnergyType="energy", remove_ref_energy=True) == {}
    assert options(returnEnergyType="interaction_energy") == {"energy_offset": "atoms"}
    assert options(remove_ref_energy=False) == {"energy_offset": "total"}
    assert options(remove_ref_energy=False, energy_offset=0.0) == {"energy_offset": "total"}
    message = "returnEnergyType='interaction_energy' and remove_ref_energy=False exclude each other"
    with pytest.raises(ValueError, match=message):
        options(returnEnergyType="interaction_energy", remove_ref_energy=False)


def test_options_without_effect_are_checked() -> None:
    assert options(multiplicity=1, max_num_neighbors=64, charge=1, precision=None) == {"charge": 1}
    for args, message in (
        (dict(multiplicity=3), "multiplicity must be 1: potentials do not depend on spin, got 3"),
        (dict(max_num_neighbors=0), "max_num_neighbors must be >= 1, got 0"),
        (dict(batch=[0, 0]), "no option batch: a System is one structure"),
        (dict(cudaGraphs=True), "no option cudaGraphs: .* mode='eager'"),
        (dict(returnEnergyType="node_energy"), "returnEnergyType must be 'energy' or 'interaction_energy', got 'node"),
        (dict(remove_ref_energy="yes"), "remove_ref_energy must be True or False, got 'yes'"),
        (dict(useCoulombCutoff=1.2), "useCoulombCutoff must be True, False or None, got 1.2"),
        (dict(useCoulombCutoff=True, coulomb="ewald"), "exclude each other, got True and 'ewald'"),
        (dict(coulomb_cutoff=4.5), "coulomb_cutoff must be > 0 and <= 3.0 nm, .* got 4.5"),
        (dict(coulomb_cutoff=-1), "coulomb_cutoff must be > 0"),
        (dict(cutof=1), "options of this potential are charge, .* got cutof"),
    ):
        with pytest.raises(ValueError, match=message):
            options(**args)


def test_units_of_models() -> None:
    require_units()
    require_units(lengthScale=0.1, energyScale=96.4916)  # openmm-ml's defaults
    with pytest.raises(ValueError, match=r"energyScale must be that of eV, 96\.4853, .* got 4\.184"):
        require_units(energyScale=4.184)
    with pytest.raises(ValueError, match=r"lengthScale must be that of Å, 0\.1, .* got 0\.0529"):
        require_units(lengthScale=0.0529)
