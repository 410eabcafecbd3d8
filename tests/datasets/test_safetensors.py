"""safetensors files: the rows that their own reader gives, without reading the rest, and an error for whatever is damaged."""

import json
import struct
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from drawing import equal
from plain_values import plain
from remote_made import put_in_memory, remote_settings
from shards import SIZES, check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit.cli.command import main

save_file: Any = pytest.importorskip("safetensors.torch").save_file
FIXTURES = Path(__file__).parents[1] / "fixtures" / "safetensors"
VALUES: list[dict[str, Any]] = json.loads((FIXTURES / "values.json").read_text())


def as_its_reader(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(torch.view_as_real(value) if value.is_complex() else value) for name, value in sample.items()}


def test_each_row_has_the_values_that_its_own_reader_gives() -> None:
    data = lk.SafetensorsDataset(FIXTURES)
    assert len(data) == len(VALUES) == 7
    assert [as_its_reader(sample) for sample in data] == VALUES
    assert data.columns == list(VALUES[0])
    check_reads(data, list(data))
    batch = data.read_columns([6, 0, 3, 3])
    assert equal(batch, {name: torch.stack([data[row][name] for row in (6, 0, 3, 3)]) for name in batch})


def test_a_remote_folder_is_the_same(tmp_path: Path) -> None:
    wanted = list(lk.SafetensorsDataset(FIXTURES))
    url = put_in_memory(FIXTURES, "safetensors-fixture")
    for settings in remote_settings(tmp_path):
        check_reads(lk.SafetensorsDataset(url, storage=settings["storage"]), wanted)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_laws_hold(sizes: list[int], tmp_path: Path) -> None:
    start = 0
    for shard, size in enumerate(sizes):
        numbers = torch.arange(start, start + size)
        save_file({"n": numbers, "x": numbers[:, None].float() * torch.arange(5)}, tmp_path / f"{shard}.safetensors")
        start += size
    data = lk.SafetensorsDataset(tmp_path)
    check_reads(data, [{"n": torch.tensor(row), "x": row * torch.arange(5.0)} for row in range(start)])
    check_laws(lambda: lk.SafetensorsDataset(tmp_path, transform=with_draws), lambda sample: int(sample["n"]))
    [batch] = lk.Loader(data, start)
    assert equal(batch, {"n": torch.arange(start), "x": torch.arange(start)[:, None] * torch.arange(5.0)})


def test_only_the_rows_that_are_asked_for_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"x": torch.arange(400_000).reshape(1000, 400)}, tmp_path / "a.safetensors")
    url = put_in_memory(tmp_path, "safetensors-rows")
    data = lk.SafetensorsDataset(url, storage=lk.Storage(cache_dir=None))
    asked: list[int] = []
    read = fsspec.filesystem("memory").__class__.cat_file

    def noting(self: Any, path: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
        content: bytes = read(self, path, start=start, end=end, **more)
        asked.append(len(content))
        return content

    monkeypatch.setattr(fsspec.filesystem("memory").__class__, "cat_file", noting)
    rows = data.__getitems__([2, 998])
    assert [int(row["x"][0]) for row in rows] == [800, 399_200]
    assert 0 < sum(asked) < 600_000


def test_columns_are_chosen_among_tensors_of_other_lengths(tmp_path: Path) -> None:
    save_file({"a": torch.arange(3), "b": torch.arange(3.0), "c": torch.arange(4)}, tmp_path / "a.safetensors")
    with pytest.raises(lk.ShardError, match=r"first dimensions are \{'a': 3, 'b': 3, 'c': 4\}.*columns=\[\.\.\.\]"):
        lk.SafetensorsDataset(tmp_path)
    assert equal(lk.SafetensorsDataset(tmp_path, ["b", "a"])[2], {"b": torch.tensor(2.0), "a": torch.tensor(2)})
    with pytest.raises(lk.ShardError, match=r"has no tensor 'd', wanted some of \['a', 'b', 'c'\]"):
        lk.SafetensorsDataset(tmp_path, ["d"])
    with pytest.raises(ValueError, match="columns is 'a', wanted a list"):
        lk.SafetensorsDataset(tmp_path, "a")


@pytest.mark.parametrize(
    "other",
    [
        {"x": torch.zeros(2, 3)},
        {"x": torch.zeros(2, 2, dtype=torch.float64)},
        {"x": torch.zeros(2, 2), "y": torch.zeros(2)},
    ],
    ids=["shape", "dtype", "more"],
)
def test_files_with_other_columns_are_named(other: dict[str, torch.Tensor], tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2, 2)}, tmp_path / "0.safetensors")
    save_file(other, tmp_path / "1.safetensors")
    with pytest.raises(lk.ShardError, match=r"1\.safetensors: has x .*wanted x float32\[2\], as .*0\.safetensors has"):
        lk.SafetensorsDataset(tmp_path)


def headed(header: Any, content: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + content


def tensor(**changes: Any) -> dict[str, Any]:
    return {"x": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4], **changes}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a whole safetensors file"),
        (b"\1\0\0", "not a whole safetensors file"),
        (headed({}, length=1 << 40), "not a whole safetensors file"),
        (headed(b"[1]"), "not a safetensors file, or its header is damaged"),
        (headed(b'{"x'), "not a safetensors file, or its header is damaged"),
        (headed(tensor(data_offsets=[0]), bytes(4)), "its header is damaged"),
        (headed(tensor(data_offsets=[-9, 4]), bytes(4)), "its header is damaged"),
        (headed(tensor(shape=[-4]), bytes(4)), "its header is damaged"),
        (headed(tensor(shape=[5]), bytes(4)), "'x' of shape .* has 4 bytes: the file is damaged"),
        (headed(tensor(), bytes(3)), "ends at byte .*: the file is cut"),
        (headed(tensor(dtype="F4"), bytes(4)), r"'x' has dtype F4.*columns=\[\.\.\.\]"),
        (headed(tensor(shape=[], data_offsets=[0, 1]), bytes(1)), r"'x' has dtype U8 and shape \[\]"),
        (headed({}), "wanted one for all"),
    ],
    ids=range(13),
)
def test_damage_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(lk.ShardError, match=rf"a\.safetensors: .*{message}"):
        lk.SafetensorsDataset(tmp_path)


def test_the_commands_read_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(FIXTURES / "0.safetensors")]) == 0
    assert main(["preview", str(FIXTURES), "--samples", "1"]) == 0
    assert "SafetensorsDataset: 7 samples in 2 shards" in capsys.readouterr().out
