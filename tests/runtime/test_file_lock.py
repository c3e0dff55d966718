"""One process does a piece of work while others wait."""

import subprocess
import sys
import time
from pathlib import Path

COMPILES = """
import ctypes, logging, sys, time
from pathlib import Path
from torchmdx.runtime.compile_cache import library_file, run_compiler, find_compiler

def make(path):
    Path(sys.argv[1]).open("a").write("made\\n")
    time.sleep(1.5)
    command = [find_compiler("CC", "cc", "gcc"), "-x", "c", "-shared", "-fPIC", "-o", str(path), "-"]
    run_compiler(command, "a test", text="int one(void) { return 1; }")

print(ctypes.CDLL(str(library_file("a-test", ("key",), make))).one())
"""


def test_one_process_compiles_and_the_others_wait_and_say_so(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    command = [sys.executable, "-c", COMPILES, str(tmp_path / "times")]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = subprocess.Popen(command, **pipes)
    while not (tmp_path / "times").exists() and first.poll() is None:
        time.sleep(0.01)
    others = [subprocess.Popen(command, **pipes) for _ in range(2)]
    said = [process.communicate(timeout=60) for process in (first, *others)]
    assert [out for out, _ in said] == ["1\n"] * 3
    assert (tmp_path / "times").read_text() == "made\n"
    assert f"compiling a-test, once for this machine and version; it is kept in {tmp_path / 'cache'}" in said[0][1]
    for _, error in said[1:]:
        assert error.count("waiting for another process, which compiles a-test") == 1
        assert "compiling a-test" not in error
    again = subprocess.run(command, check=True, **pipes)
    assert again.stderr == ""
