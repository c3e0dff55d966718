"""The release checklist: tools/check_release.py runs every check and prints whether it passes.

Checks that torchmdx/__init__.py, CHANGELOG.md and CITATION.cff have the same version, that the changelog has a date for
it, that the commit has the tag vVERSION and no file is changed, that README.md shows the records of
benchmarks/results/, that the wheel works in an empty environment and that the documentation builds.
--quick leaves out the last two, which take minutes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def version_of(source: str) -> str:
    """The version that the text of torchmdx/__init__.py assigns."""
    found = re.search(r'^__version__ = "(.*)"$', source, re.MULTILINE)
    return found[1] if found else ""


def changelog_problem(version: str, changelog: str) -> str:
    """Problem with the first heading of a changelog for a release of this version; empty without one."""
    found = re.search(r"^## (.*)$", changelog, re.MULTILINE)
    if not found or not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", found[1]):
        return f"the first heading must be {version} (YYYY-MM-DD), got {found[1] if found else 'none'}"
    return ""


def citation_problem(version: str, changelog: str, citation: str) -> str:
    """Whether CITATION.cff has this version, and the date that the changelog has for it."""
    heading = re.search(rf"^## {re.escape(version)} \((\S+)\)$", changelog, re.MULTILINE)
    fields = dict(re.findall(r'^(version|date-released): "?([^"\n]*)"?$', citation, re.MULTILINE))
    wanted = {"version": version, "date-released": heading[1] if heading else "the changelog's"}
    wrong = [f"{key} must be {value}, got {fields.get(key, 'none')}" for key, value in wanted.items()]
    return "; ".join(text for text, (key, value) in zip(wrong, wanted.items(), strict=True) if fields.get(key) != value)


def tag_problem(version: str, tags: list[str], changes: str) -> str:
    """tags: those of the commit checked out. changes: what git status prints."""
    if f"v{version}" not in tags:
        return f"the commit must have the tag v{version}, got {', '.join(tags) or 'none'}"
    return f"the checkout must be clean, got {len(changes.splitlines())} changed files" if changes else ""


def command_problem(*command: str) -> str:
    """Runs a command in the checkout; returns the end of its output if it failed."""
    done = subprocess.run(command, cwd=ROOT, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return "" if done.returncode == 0 else f"exit status {done.returncode}\n{done.stdout[-2000:]}".rstrip()


def output_of(*command: str) -> str:
    """The output of a command."""
    return subprocess.run(command, cwd=ROOT, check=True, text=True, capture_output=True).stdout.strip()


def checks(quick: bool) -> dict[str, Callable[[], str]]:
    """The checks by name; each returns its problem, or an empty text."""
    version = version_of((ROOT / "torchmdx" / "__init__.py").read_text())
    changelog = (ROOT / "CHANGELOG.md").read_text()
    found: dict[str, Callable[[], str]] = {
        "changelog": lambda: changelog_problem(version, changelog),
        "citation": lambda: citation_problem(version, changelog, (ROOT / "CITATION.cff").read_text()),
        "tag": lambda: tag_problem(
            version, output_of("git", "tag", "--points-at", "HEAD").split(), output_of("git", "status", "--porcelain")
        ),
        "numbers": lambda: command_problem(sys.executable, "tools/write_readme.py", "--check"),
    }
    if not quick:
        found["wheel"] = lambda: command_problem("tools/check_wheel.sh")
        found["documentation"] = lambda: command_problem("make", "docs")
    return found


def run(found: dict[str, Callable[[], str]]) -> int:
    """Prints one line per check; returns the number of failures."""
    failed = 0
    for name, check in found.items():
        problem = check()
        failed += bool(problem)
        print(f"{'FAIL' if problem else 'pass'}  {name}" + (f": {problem}" if problem else ""), flush=True)
    return failed


def main() -> int:
    """Runs the checks; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out wheel and documentation")
    return 1 if run(checks(parser.parse_args().quick)) else 0


if __name__ == "__main__":
    sys.exit(main())
