"""`make test-changed`: which tests a change needs."""

from pathlib import Path

import pytest
from changed import selected

FILES = {
    "loaderkit/__init__.py": "",
    "loaderkit/low/__init__.py": "",
    "loaderkit/low/a.py": "import os",
    "loaderkit/middle/__init__.py": "",
    "loaderkit/middle/b.py": "from loaderkit.low.a import name",
    "loaderkit/high/__init__.py": "",
    "loaderkit/high/c.py": "def later():\n    from loaderkit.middle import name",
    "loaderkit/aside/__init__.py": "",
    "loaderkit/aside/d.py": "import loaderkit",
    "tests/support/data/helper.py": "",
    "tests/support/runs/user.py": "import helper",
    "tests/low/test_a.py": "import user",
    "tests/middle/test_b.py": "from helper import name",
    "tests/high/test_c.py": "",
    "tests/aside/test_d.py": "",
}
WHOLE = ["tests/laws", "tests/project", "tests/testing"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        (["loaderkit/low/a.py"], ["tests/high", *WHOLE[:1], "tests/low", "tests/middle", *WHOLE[1:]]),
        (["loaderkit/middle/b.py"], ["tests/high", *WHOLE[:1], "tests/middle", *WHOLE[1:]]),
        (["loaderkit/aside/d.py"], ["tests/aside", *WHOLE]),
        (["loaderkit/low/gone.py"], [*WHOLE[:1], "tests/low", *WHOLE[1:]]),
        (["tests/support/data/helper.py"], ["tests/low/test_a.py", "tests/middle/test_b.py"]),
        (["tests/high/test_c.py", "tests/high/test_gone.py"], ["tests/high/test_c.py"]),
        (["loaderkit/high/c.py", "tests/high/test_c.py"], ["tests/high", *WHOLE]),
        (["docs/page.md"], ["tests/project"]),
        (["tests/conftest.py", "docs/page.md"], ["tests"]),
        (["pyproject.toml"], ["tests"]),
        ([], []),
    ],
    ids=str,
)
def test_a_change_needs_the_tests_of_all_that_import_it(root: Path, changed: list[str], wanted: list[str]) -> None:
    assert selected(changed, root) == wanted
