"""Print the tests that a change may break, one a line: `python tests/support/checks/changed.py [BASE]`.

A file of the package stands for the folders of tests of all packages that import it, directly or through others. A helper
stands for the test files that import it. `tests/laws` and `tests/project` look at the whole package.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE, TESTS, SUPPORT = "loaderkit", "tests", "tests/support"
WHOLE = ["tests/laws", "tests/project", "tests/testing"]  # they see every package
TEXTS = ("docs/", "examples/", "benchmarks/", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "mkdocs.yml")


def selected(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the test files and folders that the changed files need, or the folder of all tests."""
    found: set[str] = set()
    for name in changed:
        if name.startswith(f"{PACKAGE}/"):
            found |= {*WHOLE, *_folders(_users(name, _graph(root, PACKAGE)), root)}
        elif name.startswith(f"{SUPPORT}/"):
            found |= {user for user in _users(name, _graph(root, TESTS)) if Path(user).name.startswith("test_")}
        elif name.startswith(f"{TESTS}/") and Path(name).name.startswith("test_"):
            found |= {name} if (root / name).exists() else set()
        elif name.startswith(TEXTS):
            found.add("tests/project")
        else:  # what sets the tests up, or the dependencies
            return [TESTS]
    inside = {name for name in found if any(str(folder) in found for folder in Path(name).parents)}
    return sorted(found - inside)


def _folders(names: Iterable[str], root: Path) -> set[str]:
    """Return the folders of tests of the packages that files belong to."""
    packages = {Path(name).parts[1] for name in names}
    return {f"{TESTS}/{package}" for package in packages if (root / TESTS / package).is_dir()}


def _graph(root: Path, folder: str) -> dict[str, set[str]]:
    """Return the modules that each file in a folder imports, by any name that they may have."""
    return {str(file.relative_to(root)): _imported(file) for file in (root / folder).rglob("*.py")}


def _imported(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _users(name: str, graph: dict[str, set[str]]) -> set[str]:
    """Return a file and all that import it, directly or through others."""
    found, waiting = {name}, [name]
    while waiting:
        modules = _modules(waiting.pop())
        users = {file for file, imported in graph.items() if modules & imported} - found
        found |= users
        waiting += users
    return found


def _modules(name: str) -> set[str]:
    """Return the names by which a file is imported."""
    if name.startswith(f"{SUPPORT}/"):
        return {Path(name).stem}
    parts = Path(name).with_suffix("").parts
    depth = len(parts) - (parts[-1] == "__init__")
    return {".".join(parts[:end]) for end in range(2, depth + 1)}  # a package may give a module's names as its own


def _changed_since(base: str) -> list[str]:
    def git(*command: str) -> list[str]:
        return subprocess.run(
            ["git", *command], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    return [*git("diff", "--name-only", "--merge-base", base), *git("ls-files", "--others", "--exclude-standard")]


if __name__ == "__main__":
    print(*selected(_changed_since(sys.argv[1] if len(sys.argv) > 1 else "origin/main")), sep="\n")
