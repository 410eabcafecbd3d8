"""Where a dataset keeps a sample: what lies at the place that it names is the sample."""

import csv
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import loaderkit as lk
from loaderkit.datasets.places import Place, place_of

SIZES = (3, 0, 5, 1)
TOTAL = sum(SIZES)


def texts(folder: Path) -> lk.JsonlDataset:
    for part, size in enumerate(SIZES):
        lines = [json.dumps({"part": part, "row": row, "text": "é" * row}, ensure_ascii=False) for row in range(size)]
        (folder / f"{part}.jsonl").write_text("\n\n".join(lines))
    return lk.JsonlDataset(folder)


def test_a_line_begins_at_its_byte(tmp_path: Path) -> None:
    data = texts(tmp_path)
    found = [place_of(data, index) for index in range(TOTAL)]
    for place, sample in zip(found, (data[index] for index in range(TOTAL)), strict=True):
        assert place is not None
        with Path(place.file).open("rb") as file:
            file.seek(place.start or 0)
            assert json.loads(file.readline()) == sample
        assert (place.file, place.row) == (str(tmp_path / f"{sample['part']}.jsonl"), sample["row"])
    assert place_of(data, -1) == found[-1]
    with pytest.raises(IndexError):
        place_of(data, TOTAL)


def test_indices_of_concatenations_count_from_the_end_too(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    data = lk.ConcatDataset([texts(tmp_path / "a"), lk.RecordDataset([1, 2])])
    assert [place_of(data, index - len(data)) for index in range(len(data))] == [
        place_of(data, index) for index in range(len(data))
    ]
    assert place_of(data, -1) is None
    for index in (len(data), -len(data) - 1):
        with pytest.raises(IndexError):
            place_of(data, index)


def test_a_csv_record_begins_at_its_byte(tmp_path: Path) -> None:
    with (path := tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["x", "y"], [1, "two\nlines"], [2, "three"]])
    place = place_of(lk.CsvDataset(path), 1)
    assert place is not None
    assert path.read_bytes()[place.start or 0 :] == b"2,three\r\n"


def test_a_tar_sample_has_its_first_files_byte_and_key(tmp_path: Path) -> None:
    with tarfile.open(path := tmp_path / "a.tar", "w") as file:
        for number in range(3):
            for kind, content in (("cls", b"%d" % number), ("txt", b"text %d" % number)):
                info = tarfile.TarInfo(f"s{number}.{kind}")
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    data = lk.TarDataset(path)
    for number in range(3):
        place = place_of(data, number)
        assert place is not None
        assert (place.row, place.key) == (number, f"s{number}")
        assert path.read_bytes()[place.start :].startswith(b"%d" % number)
    assert str(place_of(data, 2)) == f"{path}, sample 2, byte 4,608, 's2'"


def test_other_formats_have_the_shard_and_the_row(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(4))
    np.save(tmp_path / "b.npy", np.arange(3))
    assert place_of(lk.NpyDataset(tmp_path), 5) == Place(str(tmp_path / "b.npy"), 1)


def test_a_picture_is_a_file(tmp_path: Path) -> None:
    for name in ("cat/a.png", "dog/b.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    data = lk.ImageFolder(tmp_path)
    assert [str(place_of(data, index)) for index in range(2)] == [str(data.path(index)) for index in range(2)]


def test_parts_and_wholes_pass_the_question_on(tmp_path: Path) -> None:
    data = texts(tmp_path)
    where = [place_of(data, index) for index in range(TOTAL)]
    other = lk.ArrayDataset(torch.arange(TOTAL))
    made: list[tuple[Any, list[Place | None]]] = [
        (lk.SubsetDataset(data, [4, 0]), [where[4], where[0]]),
        (lk.MapDataset(data, str), where),
        (lk.CachedDataset(data, max_bytes=1 << 20), where),
        (lk.ZipDataset([data, other]), where),
        (lk.ConcatDataset([other, data]), [None] * TOTAL + where),
        (
            lk.split(data, {"a": 0.5, "b": 0.5})["a"],
            [where[index] for index in lk.split(data, {"a": 0.5, "b": 0.5}).indices("a")],
        ),
        (other, [None] * TOTAL),
        (torch.utils.data.Subset(data, [3]), [None]),  # nobody knows what a foreign wrapper does
    ]
    for dataset, wanted in made:
        assert [place_of(dataset, index) for index in range(len(dataset))] == wanted


def test_a_dataset_of_your_own_may_say_it() -> None:
    class Rows:
        def place(self, index: int) -> str:
            return f"table rows, row {index}"

    assert place_of(Rows(), 3) == "table rows, row 3"
