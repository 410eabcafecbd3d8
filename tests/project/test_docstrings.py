"""Every public name is documented with an example, and the examples run."""

import doctest
import inspect
import os
import re
import sys
from operator import attrgetter
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
# The names of each module, and the package that it needs.
INTEGRATIONS = {
    "accelerate": ("accelerate", ["prepare", "skip_first_batches"]),
    "fabric": ("lightning", ["setup", "load"]),
    "huggingface": ("transformers", ["ResumableTrainer", "last_checkpoint"]),
    "ray": ("ray.train", ["prepare"]),
    "torchtitan": ("torchtitan", ["TitanLoader"]),
}

NEEDS = {"LazyImage": ["simplejpeg"]}


def test_the_list_of_names_is_not_empty() -> None:
    assert len(DOCUMENTED) > 80


@pytest.mark.parametrize("name", DOCUMENTED)
def test_an_example_shows_how_a_public_name_is_used(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    run_examples(name, DOCUMENTED[name])


@pytest.mark.parametrize("name", [f"{module}.{name}" for module, (_, names) in INTEGRATIONS.items() for name in names])
def test_an_example_shows_how_an_integration_is_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = INTEGRATIONS[name.split(".")[0]][0]
    pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    run_examples(name, attrgetter(name)(lk.integrations))
    if accelerate := sys.modules.get("accelerate"):  # it keeps its settings for the process
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()


def test_all_integrations_are_listed() -> None:
    assert sorted(INTEGRATIONS) == sorted(lk.integrations.__all__)


def run_examples(name: str, value: Any) -> None:
    docstring = inspect.getdoc(value) or ""
    assert ">>> " in docstring, f"the docstring of {name} has no example"
    if np.__version__ < "2" and "np.int64(" in docstring:
        pytest.skip("numpy 1 shows its numbers in another way")
    names = {"lk": lk, "torch": torch, "np": np, "Path": Path, "os": os}
    test = doctest.DocTestParser().get_doctest(docstring, names, name, None, None)
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=output.append)
    assert not runner.failures, "".join(output)


@pytest.mark.parametrize("name", [name for name, value in DOCUMENTED.items() if callable(value)])
def test_a_signature_shows_no_private_type(name: str) -> None:
    """`help()` writes a union out, such as the one that is numpy's ArrayLike, and nobody can read that."""
    try:
        shown = str(inspect.signature(DOCUMENTED[name]))
    except ValueError:  # a type alias
        return
    assert not re.search(r"\b_[A-Z]\w+|\._[a-z]\w+\._", shown), shown


@pytest.mark.parametrize("name", [name for name in lk.__all__ if name != "DECODERS"])
def test_help_begins_with_a_line_that_fits_a_screen(name: str) -> None:
    """`help` puts 4 columns before it."""
    first = (inspect.getdoc(PUBLIC[name]) or "").splitlines()[0]
    assert 10 < len(first) <= 76
