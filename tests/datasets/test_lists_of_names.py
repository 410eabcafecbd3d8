"""What is no list where a list is wanted is refused: a string's letters would be taken for the names, and a set has no order."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

import loaderkit as lk
from loaderkit.datasets.tfrecord.example import check_features

VOLUME = {"a": torch.zeros(1, 4, 4), "b": torch.zeros(1, 4, 4)}
SETTINGS: dict[str, Callable[[], object]] = {
    "CsvDataset: columns": lambda: lk.CsvDataset("a.csv", columns="ab"),
    "CsvDataset: header": lambda: lk.CsvDataset("a.csv", header="ab"),
    "MDSDataset: columns": lambda: lk.MDSDataset("a", columns="ab"),
    "PatchDataset: fields": lambda: lk.PatchDataset([VOLUME], size=(2, 2), fields="ab"),
    "PieceDataset: fields": lambda: lk.PieceDataset([VOLUME], 2, lengths=[3], fields="ab"),
    "RaggedCollate: fields": lambda: lk.RaggedCollate(fields="ab"),
    "SafetensorsDataset: columns": lambda: lk.SafetensorsDataset("a.safetensors", columns="ab"),
    "Storage: suffixes": lambda: lk.Storage().find(".", "ab"),
    "TableColumns: numeric": lambda: lk.TableColumns(numeric="ab"),
    "TableColumns: ignore": lambda: lk.TableColumns(ignore="ab"),
    "TarFormat: fields": lambda: lk.TarFormat(fields="ab"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_letters_are_not_taken_for_names(setting: str) -> None:
    with pytest.raises(ValueError, match=rf"{setting} is 'ab', wanted a list: \['ab'\]"):
        SETTINGS[setting]()


NAMES = {"a", "b"}
SETS: dict[str, Callable[[], object]] = {
    "stream: shards": lambda: lk.StreamDataset(NAMES, lambda shard, start: []),
    "dataset: urls": lambda: lk.CsvDataset(NAMES),  # type: ignore[arg-type]
    "MDSDataset: urls": lambda: lk.MDSDataset(NAMES),  # type: ignore[arg-type]
    "MDSDataset: columns": lambda: lk.MDSDataset("a", columns=NAMES),  # type: ignore[arg-type]
    "ConcatDataset: datasets": lambda: lk.ConcatDataset(NAMES),  # type: ignore[arg-type]
    "ZipDataset: datasets": lambda: lk.ZipDataset(NAMES),  # type: ignore[arg-type]
    "mix: sources": lambda: lk.Pipeline.mix(NAMES, [1, 1]),  # type: ignore[arg-type]
    "Mixture: sources": lambda: lk.Mixture(NAMES, [1, 1]),  # type: ignore[arg-type]
    "features": lambda: check_features("a TFRecord", NAMES),  # type: ignore[arg-type]
    "loader: order": lambda: lk.Loader(list(range(3)), order={1, 2}),
}


@pytest.mark.parametrize("setting", SETS)
def test_a_set_would_have_another_order_in_each_process(setting: str) -> None:
    """Strings have other hashes in each process, so ranks would read different data."""
    with pytest.raises(
        ValueError, match=rf"{setting} is a set, whose order differs from process to process; wanted a list"
    ):
        SETS[setting]()


def test_no_fields_would_repeat_whole_documents() -> None:
    with pytest.raises(ValueError, match=r"fields is empty, wanted the fields .*: \['tokens'\]"):
        lk.PieceDataset([{"tokens": [1, 2, 3]}], 2, lengths=[3], fields=[])


def test_extensions_choose_whole_endings_in_any_case(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.JPG", "c.png"):
        (tmp_path / "cat").mkdir(exist_ok=True)
        Image.new("RGB", (2, 2)).save(tmp_path / "cat" / name)
    (tmp_path / "cat" / "log").write_text("no picture")
    with pytest.raises(ValueError, match=r"ImageFolder: extensions is '.jpg', wanted a list: \['.jpg'\]"):
        lk.ImageFolder(str(tmp_path), extensions=".jpg")
    assert len(lk.ImageFolder(str(tmp_path), extensions=[".jpg"])) == 2
    assert len(lk.ImageFolder(str(tmp_path), extensions=[".JPG", ".PNG"])) == 3
