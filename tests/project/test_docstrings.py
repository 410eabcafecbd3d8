"""Every public name is documented with an example, and the examples run."""

import doctest
import inspect
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import loaderkit as lk

PUBLIC: dict[str, Any] = {name: getattr(lk, name) for name in lk.__all__}
DOCUMENTED = {
    **{name: value for name, value in PUBLIC.items() if not isinstance(value, ModuleType | dict)},
    **{f"testing.{name}": getattr(lk.testing, name) for name in lk.testing.__all__},
}


def test_the_list_of_names_is_not_empty() -> None:
    assert len(DOCUMENTED) > 80


@pytest.mark.parametrize("name", DOCUMENTED)
def test_an_example_shows_how_a_public_name_is_used(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docstring = inspect.getdoc(DOCUMENTED[name]) or ""
    assert ">>> " in docstring, f"the docstring of {name} has no example"
    monkeypatch.chdir(tmp_path)
    names = {"lk": lk, "torch": torch, "np": np, "Path": Path, "os": os}
    test = doctest.DocTestParser().get_doctest(docstring, names, name, None, None)
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=output.append)
    assert not runner.failures, "".join(output)
