"""A mistake on the command line ends in one line that says what was wanted."""

import inspect
import json
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

from loaderkit import __version__
from loaderkit.cli.command import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "texts.jsonl").write_text(
        "".join(json.dumps({"text": "a" * row, "id": row}) + "\n" for row in range(50))
    )
    np.zeros(100, np.uint16).tofile(tmp_path / "a.tokens")
    (tmp_path / "given_here.py").write_text(
        "def broken():\n    raise RuntimeError('a bug')\n\n\ndef nothing():\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "given_here", raising=False)
    return tmp_path


def missing_length() -> str:
    """Return this Python version's message."""
    with pytest.raises(TypeError, match=r"missing a required .*: 'length'") as caught:
        inspect.signature(lambda *, length: length).bind()
    return str(caught.value)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("shard given_here:broken out", "loaderkit shard: RuntimeError: a bug\n"),
        ("shard given_here:nothing out", "loaderkit shard: loader: NoneType has no __len__"),
        ("shard nowhere out", "no shards at 'nowhere' (no such file or folder)"),
        ("lengths texts.jsonl", "samples have the fields text, id: say which one counts, --column FIELD"),
        ("lengths texts.jsonl --column txt", "wanted one of text, id (--column). Did you mean 'text'?"),
        ("lengths texts.jsonl --column text --plot nowhere/a.png", "no folder for --plot nowhere/a.png"),
        ("lengths a.tokens", f"TokenDataset: {missing_length()}. Its settings: --option"),
        ("lengths a.tokens --option lenght=3", "Did you mean 'length'? Its settings: --option"),
    ],
)
def test_a_mistake_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str], command: str, said: str) -> None:
    assert main(command.split()) == 1
    found = capsys.readouterr()
    assert said in found.err
    assert "Traceback" not in found.err
    assert not found.out


def test_an_error_of_ones_own_code_says_where(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shard", "given_here:broken", "out"]) == 1
    assert f"{folder / 'given_here.py'}, line 2, in broken" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("index a --jobs x", "--jobs: 'x', wanted a whole number"),
        ("index a --jobs 0", "--jobs: 0, wanted at least 1"),
        ("doctor --workers -2", "--workers: -2, wanted at least 0"),
        ("lengths a --epoch -1", "--epoch: -1, wanted at least 0"),
        ("bench a --seconds long", "--seconds: 'long', wanted a number above 0"),
        ("bench a --seconds 0", "--seconds: '0', wanted a number above 0"),
        ("bench a --workers -1", "'-1', wanted numbers of workers such as 0,2,4"),
        ("bench a --workers a", "'a', wanted numbers of workers such as 0,2,4"),
        ("bench a --engines rnig", "'rnig', wanted some of inline,torch,ring,threads,auto. Did you mean 'ring'?"),
    ],
)
def test_numbers_out_of_range_are_refused(capsys: pytest.CaptureFixture[str], command: str, said: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(command.split())
    assert said in capsys.readouterr().err


def test_no_batches_have_no_padding(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lengths", "texts.jsonl", "--column", "text", "--ranks", "200"]) == 0
    assert "nan" not in capsys.readouterr().out


def test_the_installed_script_shows_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    scripts = entry_points(group="console_scripts", name="loaderkit")
    if not scripts:
        pytest.skip("loaderkit is not installed: the tests run on a checkout")
    [script] = scripts
    with pytest.raises(SystemExit, match="0"):
        script.load()(["--version"])
    assert capsys.readouterr().out == f"loaderkit {__version__}\n"
