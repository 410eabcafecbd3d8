"""`loaderkit preview` shows what is in the first samples of anything that a Loader reads."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import loaderkit as lk
from loaderkit.cli.command import main


class Pair(NamedTuple):
    picture: torch.Tensor
    label: int


class Pictures:
    classes = ("cat", "dog")

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Pair:
        return Pair(torch.full((3, 16, 24), index, dtype=torch.uint8), index % 2)


def loader() -> lk.Loader:
    return lk.Loader(lk.ArrayDataset({"x": np.zeros((40, 8, 8), np.float32), "y": np.arange(40)}), 16)


def data_module() -> lk.DataModule:
    return lk.DataModule(Pictures(), loader=lk.LoaderConfig(batch_size=4))


def samples_of(shard: str) -> Iterator[dict[str, Any]]:
    return iter([{"name": shard, "ids": list(range(9)), "box": {"low": [1, 2], "mask": np.array([True, False] * 8)}}])


def stream() -> lk.StreamDataset:
    return lk.StreamDataset(["a", "b"], lk.from_start(samples_of))


def empty() -> list[int]:
    return []


def number() -> int:
    return 3


def raises() -> None:
    raise KeyError("no such table")


def run(name: str, *arguments: object) -> int:
    return main(["preview", name if "." in name else f"{__name__}:{name}", *map(str, arguments)])


def test_fields_have_type_dtype_shape_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("Pictures", "--samples", 2) == 0
    text = capsys.readouterr().out
    assert text.startswith("Pictures: 40 samples\n\nsample 0 ")
    rows = [line.split("  ") for line in text.splitlines() if line.startswith(("picture", "label"))]
    assert [[cell.strip() for cell in row if cell] for row in rows] == [
        ["picture", "Tensor", "uint8", "(3, 16, 24)", "0 to 0"],
        ["label", "int", "0"],
        ["picture", "Tensor", "uint8", "(3, 16, 24)", "1 to 1"],
        ["label", "int", "1"],
    ]


def test_files_are_read_by_their_suffix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": "a" * row}) + "\n" for row in range(100, 105)))
    assert run(str(path)) == 0
    text = capsys.readouterr().out
    assert text.startswith("JsonlDataset: 5 samples in 1 shard\n")
    assert text.count("\nsample ") == 3
    assert "102 characters  'aaaa" in text
    assert max(map(len, text.splitlines())) < 120


def test_a_stream_and_nested_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("stream") == 0
    text = capsys.readouterr().out
    assert text.startswith("StreamDataset: a stream, of unknown length")
    assert text.count("\nsample ") == 2
    for field in ("name ", "ids ", "box.low.0 ", "box.mask "):
        assert f"\n{field}" in text
    assert "50% True" in text


@pytest.mark.parametrize(("name", "shape"), [("loader", "(16, 8, 8)"), ("data_module", "(4, 3, 16, 24)")])
def test_a_loader_shows_batches(name: str, shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = tmp_path / "sheet.png"
    assert run(name, "--samples", 1, "--plot", sheet) == 0
    text = capsys.readouterr().out
    assert "batch 0 " in text
    assert shape in text
    assert sheet.read_bytes().startswith(b"\x89PNG")


def test_a_folder_of_pictures_becomes_a_contact_sheet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / "photos.d" / name).mkdir(parents=True)
        image.new("RGB", (20, 10), (name == "cat" and "red") or "blue").save(tmp_path / "photos.d" / name / "0.png")
    assert run(str(tmp_path / "photos.d"), "--plot", tmp_path / "sheet.png") == 0
    assert "(3, 10, 20)" in capsys.readouterr().out
    sheet = np.asarray(image.open(tmp_path / "sheet.png").convert("RGB")).reshape(-1, 3).tolist()
    assert [255, 0, 0] in sheet
    assert [0, 0, 255] in sheet


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("empty",), "the source (list) has no samples."),
        (("number",), "the source is of type int, wanted a dataset, a Loader or a DataModule."),
        (("raises",), "KeyError: 'no such table'"),
        (("stream", "--plot", "sheet.png"), "no pictures to draw"),
        (("Pictures", "--plot", "nowhere/sheet.png"), "no folder for --plot"),
    ],
)
def test_what_fails_is_said(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 1
    found = capsys.readouterr().err
    assert found.startswith("loaderkit preview: ")
    assert message in found
    assert not list(tmp_path.iterdir())


def test_a_contact_sheet_shows_samples_of_the_whole_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first ones of a folder are all of one class."""
    image = pytest.importorskip("PIL.Image")
    colours = {"a": (255, 0, 0), "b": (0, 255, 0), "c": (0, 0, 255), "d": (255, 255, 0)}
    for name, colour in colours.items():
        (tmp_path / "photos.d" / name).mkdir(parents=True)
        for number in range(9):
            image.new("RGB", (20, 20), colour).save(tmp_path / "photos.d" / name / f"{number}.png")
    assert run(str(tmp_path / "photos.d"), "--plot", tmp_path / "sheet.png", "--pictures", 8) == 0
    assert capsys.readouterr().out.count("sample ") == 3  # these are the first ones
    sheet = set(map(tuple, np.asarray(image.open(tmp_path / "sheet.png").convert("RGB")).reshape(-1, 3).tolist()))
    assert set(colours.values()) <= sheet
