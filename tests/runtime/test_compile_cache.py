"""Where compiled code is kept, what is refused there, and what is compiled again."""

import hashlib
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchmdx.runtime import compile_cache
from torchmdx.runtime.compile_cache import CacheError, cache_directory, load_library, run_compiler, usable_directory

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
VARIABLES = ("TORCHMDX_CACHE", "XDG_CACHE_HOME", "HOME")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    """A home and a temporary directory of the test's own, and nothing else set."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    compile_cache._warn_once.cache_clear()


def temporary(tmp_path):
    return tmp_path / "temporary" / f"torchmdx-{os.geteuid()}"


def test_where_compiled_code_is_kept(monkeypatch, tmp_path):
    default = tmp_path / "home" / ".cache" / "torchmdx"
    assert cache_directory() == default
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("TORCHMDX_CACHE", "")
    assert cache_directory() == default
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "torchmdx"
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"
    monkeypatch.setenv("TORCHMDX_CACHE", "~/own")
    assert cache_directory() == tmp_path / "home" / "own"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHMDX_CACHE", "somewhere/else")
    assert cache_directory() == tmp_path / "somewhere" / "else"


def test_a_relative_xdg_cache_home_is_ignored_and_told(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    for _ in range(2):
        assert cache_directory() == tmp_path / "home" / ".cache" / "torchmdx"
    assert caplog.messages == ["XDG_CACHE_HOME must be an absolute path, got 'relative': it is ignored"]


@pytest.mark.parametrize("home", ["", "/no/such/home", "relative"])
def test_without_a_home_a_private_temporary_folder_serves(monkeypatch, tmp_path, home):
    monkeypatch.setattr(compile_cache.pwd, "getpwuid", lambda _: (_ for _ in ()).throw(KeyError("no such user")))
    monkeypatch.setenv("HOME", home)
    assert usable_directory() == temporary(tmp_path)
    assert stat.S_IMODE(temporary(tmp_path).stat().st_mode) == 0o700
    monkeypatch.delenv("HOME")
    assert cache_directory() == temporary(tmp_path)
    monkeypatch.setattr(compile_cache.pwd, "getpwuid", lambda _: SimpleNamespace(pw_dir=str(tmp_path / "home")))
    assert cache_directory() == tmp_path / "home" / ".cache" / "torchmdx"


def test_a_home_that_cannot_be_written_is_told_and_replaced(tmp_path, caplog):
    (tmp_path / "home" / ".cache").write_text("a file")
    for _ in range(2):
        assert usable_directory() == temporary(tmp_path)
    (told,) = caplog.messages
    assert f"{tmp_path}/home/.cache/torchmdx cannot keep compiled code: " in told
    assert told.endswith(f"using {temporary(tmp_path)} instead; $TORCHMDX_CACHE chooses another folder")


def test_a_chosen_folder_that_cannot_be_used_is_refused(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="file cannot keep compiled code: "):
        usable_directory()


@pytest.mark.parametrize("quote", ["'", '"'])
def test_quotes_around_a_chosen_folder_are_refused(monkeypatch, tmp_path, quote):
    """Some readers of files of variables keep them, and the path would be relative."""
    monkeypatch.setenv("TORCHMDX_CACHE", f"{quote}{tmp_path}{quote}")
    with pytest.raises(CacheError, match="TORCHMDX_CACHE must be a path without quotes around it, got "):
        cache_directory()


def test_quotes_inside_a_chosen_folder_are_part_of_its_name(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHMDX_CACHE", f"{tmp_path}/o'br\"ien")
    assert cache_directory() == tmp_path / "o'br\"ien"


def test_a_folder_that_everybody_may_write_is_refused(monkeypatch, tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("TORCHMDX_CACHE", str(folder))
    made = []
    with pytest.raises(CacheError, match=r"open cannot keep compiled code: it must not be world-writable, got mo"):
        load_library("x", [], made.append)
    assert not made
    folder.chmod(0o755)
    assert usable_directory() == folder


def test_folders_and_links_of_others_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path / "own"))
    usable_directory()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    mine = (tmp_path / "own").stat().st_uid
    if mine == 0:
        os.chown(tmp_path / "own", 4321, -1)
        mine = 4321
    with pytest.raises(CacheError, match=f"it must belong to user 12345 or to root, got owner {mine}"):
        usable_directory()


def test_a_link_in_the_place_of_the_temporary_folder_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/no/such/home")
    (tmp_path / "elsewhere").mkdir()
    temporary(tmp_path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheError, match="it is not a folder"):
        usable_directory()


# -- libraries -----------------------------------------------------------------------------------------------------


class Maker:
    """Compiles a library with one number in it, and counts."""

    def __init__(self, number=7):
        self.text, self.times = f"int number(void) {{ return {number}; }}\n", 0

    def __call__(self, made):
        self.times += 1
        run_compiler(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(made)], "number.c", text=self.text)

    def load(self):
        return load_library("number", [self.text], self)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@needs_compiler
def test_a_library_is_made_once_and_named_by_its_bytes(folder):
    maker = Maker()
    assert maker.load().number() == 7
    (path,) = folder.iterdir()
    assert path.stem.endswith(hashlib.sha256(path.read_bytes()).hexdigest()[:16])
    assert maker.load().number() == 7
    assert maker.times == 1
    assert Maker(8).load().number() == 8
    assert len(list(folder.iterdir())) == 2


LOADS = """
import sys
sys.path.insert(0, {tests!r})
from test_compile_cache import Maker
maker = Maker()
print(maker.load().number(), maker.times)
"""


def elsewhere():
    """The number, and how often it was compiled, in a process of its own: a library that is loaded can't be cut."""
    code = LOADS.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(map(int, done.stdout.split())), done.stderr


@pytest.mark.nightly
@needs_compiler
@pytest.mark.parametrize("left", [0, 100, 0.5, 0.99])
def test_a_file_that_was_cut_short_is_compiled_again_once(folder, left):
    assert elsewhere()[0] == (7, 1)
    (path,) = folder.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content)) if left < 1 else left])
    found, told = elsewhere()
    assert found == (7, 1)
    assert f"{path} is compiled again: it is damaged, its bytes don't have the SHA-256 in its name" in told
    assert elsewhere() == ((7, 0), "")


@needs_compiler
def test_whole_files_that_are_no_library_are_compiled_again(folder, caplog):
    maker = Maker()
    digest = hashlib.sha256(maker.text.encode()).hexdigest()[:16]
    folder.mkdir(mode=0o700)
    path = folder / f"number-{digest}-{hashlib.sha256(b'text').hexdigest()[:16]}.so"
    path.write_bytes(b"text")
    assert maker.load().number() == 7
    told, compiling = caplog.messages
    assert compiling.startswith("compiling number, once for this machine")
    assert told.startswith(f"{path} is compiled again: it can't be loaded (")
    assert not path.exists()


@needs_compiler
@pytest.mark.parametrize("kind", ["foreign", "open", "link"])
def test_files_that_others_could_have_made_are_not_loaded(folder, caplog, monkeypatch, tmp_path, kind):
    maker = Maker()
    maker.load()
    (path,) = folder.iterdir()
    if kind == "open":
        path.chmod(0o666)
    elif kind == "link":
        shutil.move(path, tmp_path / "there.so")
        path.symlink_to(tmp_path / "there.so")
    else:
        check = compile_cache._not_ours
        foreign = path.stat().st_ino
        monkeypatch.setattr(
            compile_cache, "_not_ours",
            lambda found: "it must belong to user 1" if found.st_ino == foreign else check(found),
        )  # fmt: skip
    assert maker.load().number() == 7
    assert maker.times == 2
    reason = {
        "foreign": "it must belong to user",
        "open": "it must not be world-writable",
        "link": "it is not a regular file",
    }
    assert f"{path} is compiled again: {reason[kind]}" in caplog.text


@needs_compiler
def test_bytes_reach_the_disk_before_the_name(folder, monkeypatch):
    order = []
    flush, replace = compile_cache._flush, os.replace
    monkeypatch.setattr(compile_cache, "_flush", lambda path: (order.append(Path(path).name), flush(path)))
    monkeypatch.setattr(os, "replace", lambda old, new: (order.append("replace"), replace(old, new)))
    Maker().load()
    assert order == ["library.so", "replace", "cache"]


def test_a_compiler_that_fails_leaves_nothing(folder, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(compile_cache.CompileError, match=r"^/no/such/cc could not compile x\.c: .*No such file"):
        load_library("x", [], lambda made: run_compiler(["/no/such/cc"], "x.c"))
    assert list(folder.iterdir()) == []
