"""C libraries: packaged, compiled on first use, or missing."""

import logging
import os
import shutil
import subprocess

import pytest

from torchmdx.runtime import c_library
from torchmdx.runtime.c_sources import LIBRARIES, packaged_file

SOURCE = "#include <stdint.h>\nint64_t answer(void) { return 42; }\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with one library, an empty cache, and nothing loaded yet."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "small.c").write_text(SOURCE)
    monkeypatch.setitem(LIBRARIES, "small", ("small.c", "small.c"))
    monkeypatch.setattr(c_library, "PACKAGE", folder)
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path / "cache"))
    for function in (c_library.c_library, c_library._found):
        function.cache_clear()
    yield folder
    for function in (c_library.c_library, c_library._found):
        function.cache_clear()


needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")


@needs_compiler
def test_it_is_compiled_on_first_use(package):
    assert c_library.c_library("small").answer() == 42
    assert c_library.c_library_state("small") == "compiled on this machine"


@needs_compiler
def test_the_library_of_the_package_needs_no_compiler(package, monkeypatch):
    subprocess.run(
        ["cc", "-shared", "-fPIC", str(package / "small.c"), "-o", packaged_file(package, "small")], check=True
    )
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert c_library.c_library("small").answer() == 42
    assert c_library.c_library_state("small") == "compiled with the package"


@needs_compiler
def test_a_library_of_other_sources_is_not_loaded(package):
    packaged_file(package, "small").write_bytes(b"of older sources")
    (package / "small.c").write_text(SOURCE.replace("42", "43"))
    assert c_library.c_library("small").answer() == 43


@needs_compiler
def test_a_damaged_library_of_the_package_is_compiled_again(package, caplog):
    packaged_file(package, "small").write_bytes(b"no library")
    with caplog.at_level(logging.WARNING):
        assert c_library.c_library("small").answer() == 42
    assert "is compiled again: it can't be loaded" in caplog.text


def test_without_a_compiler_there_is_none_and_the_log_says_so(package, monkeypatch, caplog):
    monkeypatch.setenv("PATH", os.fspath(package))
    monkeypatch.delenv("CC", raising=False)
    with caplog.at_level(logging.WARNING):
        assert c_library.c_library("small") is None
        assert c_library.c_library("small") is None
    assert caplog.text.count("no compiler found (cc, gcc, clang or $CC)") == 1
    assert c_library.c_library_state("small") == "no compiler found (cc, gcc, clang or $CC)"


def test_a_compiler_that_fails_is_named_in_one_line(package, monkeypatch, caplog, tmp_path):
    compiler = tmp_path / "broken-cc"
    compiler.write_text("#!/bin/sh\necho 'unknown flag -O3' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with caplog.at_level(logging.WARNING):
        assert c_library.c_library("small") is None
    assert [record.message.split()[0] for record in caplog.records] == ["compiling", "the"]
    assert str(compiler) in caplog.text
    assert "unknown flag -O3" in caplog.text
    assert not list((tmp_path / "cache").glob("*"))


@needs_compiler
def test_it_is_kept_on_disk(package, monkeypatch, tmp_path):
    assert c_library.c_library("small") is not None
    (made,) = (tmp_path / "cache").glob("*")
    assert made.suffix == ".so"
    for function in (c_library.c_library, c_library._found):
        function.cache_clear()
    monkeypatch.setattr(c_library, "run_compiler", lambda *_, **__: pytest.fail("compiled again"))
    assert c_library.c_library("small").answer() == 42


@needs_compiler
def test_a_shared_cache_serves_machines_without_a_compiler(package, monkeypatch):
    assert c_library.c_library("small") is not None
    for function in (c_library.c_library, c_library._found):
        function.cache_clear()
    monkeypatch.setenv("PATH", os.fspath(package))
    monkeypatch.delenv("CC", raising=False)
    assert c_library.c_library("small").answer() == 42
    assert c_library.c_library_state("small") == "compiled on this machine"
