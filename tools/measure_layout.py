"""Measures the layout of the package: python tools/measure_layout.py [FOLDER], by default torchmdx/ next to tools/.

Folders with Python files are counted; a module at the top of the package counts as one. A folder imports another if one
of its files does, anywhere in the file; imports for type checkers are counted apart. The level of a folder is one above
the highest of those that it imports; folders that import each other share a level.
Lines of all languages are also counted without comments, docstrings and blank lines, as lines of code.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path
from statistics import median

LONG_FILE, LONG_FUNCTION = 300, 60
OTHERS = {".c", ".h", ".cu", ".cuh", ".cpp", ".js", ".css", ".html"}
Graph = dict[str, set[str]]


def modules_of(package: Path) -> dict[str, Path]:
    """Every Python file by its dotted name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(tree: ast.Module, modules: dict[str, Path], *, types: bool) -> set[str]:
    """Modules of the package that a file imports. types: those under TYPE_CHECKING as well."""
    guards = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    left_out = set() if types else {id(node) for guard in guards for node in ast.walk(guard)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else node.module)
    return found & modules.keys()


def cycles(graph: Graph) -> list[list[str]]:
    """Groups of nodes that reach each other (Tarjan's strongly connected components of more than one)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in number:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], number[target])
        if low[node] == number[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return groups


def num_levels(graph: Graph) -> int:
    """The longest way down, a group of folders that import each other counted as one folder."""
    group_of = {folder: min(group) for group in cycles(graph) for folder in group}
    merged: Graph = {}
    for folder, targets in graph.items():
        own = group_of.get(folder, folder)
        merged.setdefault(own, set()).update({group_of.get(target, target) for target in targets} - {own})
    level: dict[str, int] = {}

    def level_of(folder: str) -> int:
        if folder not in level:
            level[folder] = 1 + max((level_of(target) for target in merged[folder]), default=0)
        return level[folder]

    return max((level_of(folder) for folder in merged), default=0)


def functions_of(tree: ast.Module) -> list[tuple[str, int, int]]:
    """(name, lines, lines of the body without its docstring) of every function."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            lines = node.end_lineno - body[0].lineno + 1 if body else 0
            found.append((node.name, node.end_lineno - node.lineno + 1, lines))
    return found


def code_lines(text: str, suffix: str) -> int:
    """Lines of code: without comments, docstrings and blank lines."""
    if suffix != ".py":
        bare = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        return sum(bool(line.strip()) and not line.strip().startswith("//") for line in bare.splitlines())
    left_out = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in left_out:
            found |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            assert docstring.end_lineno is not None
            found -= set(range(docstring.lineno, docstring.end_lineno + 1))
    return len(found)


def classes_of(tree: ast.Module) -> list[str]:
    """Names of the classes of a file."""
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def measure(package: Path) -> list[tuple[str, object]]:
    """The rows of the table."""
    modules = modules_of(package)
    trees = {name: ast.parse(path.read_text()) for name, path in modules.items()}
    lines = {name: len(path.read_text().splitlines()) for name, path in modules.items()}
    graph = {name: imports_of(tree, modules, types=False) - {name} for name, tree in trees.items()}
    typed = {name: imports_of(tree, modules, types=True) - {name} for name, tree in trees.items()}

    def folder_of(name: str) -> str:
        path = modules[name]
        is_own = path.parent == package or path.stem == "__init__"
        return name if is_own else name.rpartition(".")[0]

    # The package's __init__ only passes names on.
    folders: Graph = {folder_of(name): set() for name in modules if name != package.name}
    for name in modules:
        if name != package.name:
            folders[folder_of(name)] |= {folder_of(t) for t in graph[name] if t != package.name} - {folder_of(name)}
    functions = [(name, *function) for name, tree in trees.items() for function in functions_of(tree)]
    long = [(name, function) for name, function, whole, _ in functions if whole > LONG_FUNCTION]
    kernels = sum(".kernels." in name or ".triton." in name for name, _ in long)
    texts = {path: path.read_text() for path in package.rglob("*") if path.suffix in {".py", *OTHERS}}
    names = Counter(name for tree in trees.values() for name in classes_of(tree))
    top = [path for path in modules.values() if path.parent == package and path.stem != "__init__"]
    return [
        ("files", len(modules)),
        ("files at the top of the package", len(top)),
        ("lines of Python", sum(lines.values())),
        ("lines of all languages", sum(len(text.splitlines()) for text in texts.values())),
        ("  of those, code", sum(code_lines(text, path.suffix) for path, text in texts.items())),
        ("median lines of a file", median(lines.values())),
        (f"files over {LONG_FILE} lines", sum(count > LONG_FILE for count in lines.values())),
        ("functions", len(functions)),
        ("median lines of a function's body", median(body for *_, body in functions)),
        (f"functions over {LONG_FUNCTION} lines", len(long)),
        ("  of those, in kernels", kernels),
        ("class names that exist twice", sum(count > 1 for count in names.values())),
        ("folders", len(folders)),
        ("levels", num_levels(folders)),
        ("imports between folders", sum(map(len, folders.values()))),
        ("imports between files", sum(map(len, graph.values()))),
        ("import cycles of files", len(cycles(graph))),
        ("  with those for type checkers", len(cycles(typed))),
        ("cycles of folders", len(cycles(folders))),
    ]


def main() -> int:
    """Prints the table."""
    package = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "torchmdx"
    for what, value in measure(package.resolve()):
        print(f"{what:<36}{value:>8}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
