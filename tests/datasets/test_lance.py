"""Lance: the rows of one version that lance's own reader gives, with workers that are not forked."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from servers import run_s3
from shards import check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit.cli.command import main

if importlib.util.find_spec("lance") is None:
    pytest.skip("needs pylance", allow_module_level=True)

FIXTURES = Path(__file__).parents[1] / "fixtures" / "lance"
ROOT = FIXTURES / "data.lance"
VALUES: dict[str, list[dict[str, Any]]] = json.loads((FIXTURES / "values.json").read_text())
FRAGMENTS = {"1": [4, 4, 2], "2": [4, 4, 2, 5], "3": [3, 4, 2, 5, 1], "4": [3, 3, 2, 4, 1]}


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as JSON has it."""
    return {
        name: value.decode() if isinstance(value, bytes) else value.tolist() if hasattr(value, "tolist") else value
        for name, value in row.items()
    }


@pytest.mark.parametrize("version", VALUES)
def test_each_version_is_its_rows(version: str) -> None:
    data = lk.LanceDataset(ROOT, int(version))
    assert data.version == int(version)
    assert [plain(data[row]) for row in range(len(data))] == VALUES[version]
    assert data.shard_sizes.tolist() == FRAGMENTS[version]
    check_reads(data, data.__getitems__(range(len(data))))
    assert lk.LanceDataset(ROOT).version == 4


def test_values_have_the_columns_types() -> None:
    row = lk.LanceDataset(ROOT)[3]
    assert [row["n"].dtype, row["vector"].dtype, row["list"].dtype] == [np.int32, np.float32, np.int64]
    assert [type(row["text"]), type(row["content"])] == [str, bytes]


@pytest.mark.parametrize("columns", [["n"], ["content"], ["vector", "n", "text"], ["content", "list"], []])
def test_only_chosen_columns_are_read(columns: list[str]) -> None:
    data = lk.LanceDataset(ROOT, columns=columns)
    assert [plain(row) for row in data.__getitems__([11, 2, 2])] == [
        {name: VALUES["4"][row][name] for name in columns} for row in (11, 2, 2)
    ]


def test_a_batch_is_the_collate_of_its_rows() -> None:
    columns = ["vector", "text", "n"]
    data = lk.LanceDataset(ROOT, columns=columns)
    batch = next(iter(lk.Loader(data, 9, shuffle=True)))
    rows = lk.Loader(data, 9, shuffle=True).indices(0, 0)
    assert batch["text"] == [VALUES["4"][row]["text"] for row in rows]
    for name, dtype in (("vector", torch.float32), ("n", torch.int32)):
        assert torch.equal(batch[name], torch.tensor([VALUES["4"][row][name] for row in rows], dtype=dtype))


def test_the_laws_hold_with_workers_that_are_not_forked() -> None:
    numbers = [row["n"] for row in VALUES["4"]]
    check_laws(
        lambda: lk.LanceDataset(ROOT, transform=with_draws), lambda row: numbers.index(int(row["n"])), start_method=None
    )


def test_the_version_is_in_the_fingerprint() -> None:
    found = {lk.LanceDataset(ROOT, int(version)).fingerprint() for version in VALUES}
    found.add(lk.LanceDataset(ROOT, columns=["n"]).fingerprint())
    assert len(found) == 5
    assert lk.LanceDataset(str(ROOT) + "/").fingerprint() in found


def test_a_run_resumes_on_its_version_alone(tmp_path: Path) -> None:
    """After an update row 1 is another row, and the number of rows is the same."""
    lance = pytest.importorskip("lance")
    root = Path(shutil.copytree(ROOT, tmp_path / "data.lance"))
    columns = ["n", "text"]
    loader = lk.Loader(lk.LanceDataset(root, columns=columns), 3, shuffle=True)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    lance.dataset(root).update({"text": "'newer'"}, where="n = 3")
    with pytest.raises(lk.StateError, match=r"is for dataset .*version 4.*this loader has .*version 5"):
        lk.Loader(lk.LanceDataset(root, columns=columns), 3, shuffle=True).load_state_dict(state)
    again = lk.Loader(lk.LanceDataset(root, 4, columns=columns), 3, shuffle=True)
    again.load_state_dict(state)
    assert [batch["text"] for batch in again] == [batch["text"] for batch in batches]


def test_rows_are_taken_from_an_object_store(tmp_path: Path) -> None:
    with run_s3(tmp_path) as options:
        files = pytest.importorskip("fsspec").filesystem("s3", **options)
        files.mkdir("lance")
        for path in ROOT.rglob("*"):
            if path.is_file():
                files.pipe_file(f"lance/{path.relative_to(FIXTURES).as_posix()}", path.read_bytes())
        found = {"aws_endpoint": options["endpoint_url"], "aws_region": "us-east-1", "allow_http": "true"}
        found |= {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        data = lk.LanceDataset("s3://lance/data.lance", storage_options=found)
        assert list(map(plain, data.__getitems__([12, 0, 4]))) == [VALUES["4"][row] for row in (12, 0, 4)]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(lk.ShardError, match="nowhere: can't read the Lance dataset"):
        lk.LanceDataset(tmp_path / "nowhere")
    with pytest.raises(lk.ShardError, match=r"data.lance: version 99: can't read the Lance dataset"):
        lk.LanceDataset(ROOT, 99)
    with pytest.raises(lk.ShardError, match=r"has the columns \['n', .* wanted \['x'\]"):
        lk.LanceDataset(ROOT, columns=["x"])
    root = Path(shutil.copytree(ROOT, tmp_path / "data.lance"))
    pytest.importorskip("lance").dataset(root).delete("n >= 0")
    with pytest.raises(lk.ShardError, match="version 5 of the Lance dataset has no rows"):
        lk.LanceDataset(root)
    for path in (root / "data").iterdir():
        path.write_bytes(b"short")
    with pytest.raises(lk.ShardError, match=r"data.lance: version 4: can't read the Lance dataset"):
        lk.LanceDataset(root, 4)[3]


def test_preview_shows_the_first_rows_and_changes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root = Path(shutil.copytree(ROOT, tmp_path / "data.lance"))
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert main(["preview", str(root), "--samples", "2"]) == 0
    assert capsys.readouterr().out.startswith("LanceDataset: 13 samples in 5 shards\n")
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
