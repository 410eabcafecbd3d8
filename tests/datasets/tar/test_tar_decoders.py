"""What WebDataset writes into tar files comes back as its own reader gives it, and nothing is unpickled."""

import gzip
import io
import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from drawing import equal
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from images_made import encode, picture
from plain_values import plain
from remote_made import put_in_memory, remote_settings
from shards import check_laws, check_reads, with_draws
from tars_made import make

import loaderkit as lk

FIXTURES = Path(__file__).parents[2] / "fixtures" / "webdataset"
WANTED: list[dict[str, Any]] = json.loads((FIXTURES / "values.json").read_text())
UNPICKLED = "pyd"  # by webdataset


def without(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in plain(sample).items() if name != UNPICKLED}


def test_each_field_has_the_value_that_its_own_reader_gives() -> None:
    data = lk.TarDataset(FIXTURES)
    assert len(data) == len(WANTED) == 4
    assert [without(sample) for sample in data] == [without(sample) for sample in WANTED]
    check_reads(data, list(data))
    columns = data.read_columns([3, 0])
    assert isinstance(columns, dict)
    assert [plain(columns[name]) for name in WANTED[0] if name != UNPICKLED] == [
        [WANTED[3][name], WANTED[0][name]] for name in WANTED[0] if name != UNPICKLED
    ]


def test_pickles_stay_bytes() -> None:
    for number, sample in enumerate(lk.TarDataset(FIXTURES)):
        assert pickle.loads(sample[UNPICKLED]) == WANTED[number][UNPICKLED]


def test_the_laws_hold() -> None:
    check_laws(lambda: lk.TarDataset(FIXTURES, transform=with_draws), lambda sample: int(sample["cls"]))


def test_a_remote_folder_is_the_same(tmp_path: Path) -> None:
    url = put_in_memory(FIXTURES, "webdataset-fixture")
    for settings in remote_settings(tmp_path):
        for urls in (url, f"{url}/shard-{{000..001}}.tar"):
            data = lk.TarDataset(urls, **settings)
            assert [without(sample) for sample in data] == [without(sample) for sample in WANTED]


def test_arrays_can_be_written_to() -> None:
    sample = lk.TarDataset(FIXTURES)[2]
    for array in (*sample["ten"], *sample["deep.npz"].values(), sample["npy.gz"]):
        array[...] = 1


def written(folder: Path, name: str, content: bytes) -> Path:
    return make(folder / "a.tar", [("0.cls", b"0"), (f"0.{name}", content)])


class Opened:
    """An object that runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("import sys; sys._was_unpickled = True",)


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def npz(**values: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **values)
    return file.getvalue()


OPENED = np.array([Opened()], dtype=object)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pyd", pickle.dumps(Opened()), None),
        ("pkl", pickle.dumps(Opened()), None),
        ("pickle", pickle.dumps(Opened()), None),
        ("pth", saved(Opened()), r"not tensors and plain values alone \(.*lk\.DECODERS \| \{'pth': mine\}"),
        ("pth", pickle.dumps(Opened(), 2), "not tensors and plain values alone"),
        ("npz", npz(x=OPENED), "the array holds objects"),
    ],
    ids=["pyd", "pkl", "pickle", "pth", "old pth", "npz"],
)
def test_nothing_is_unpickled(name: str, content: bytes, message: str | None, packed: bool, tmp_path: Path) -> None:
    name, content = (f"{name}.gz", gzip.compress(content)) if packed else (name, content)
    data = lk.TarDataset(written(tmp_path, name, content))
    if message is None:
        assert data[0][name] == (gzip.decompress(content) if packed else content)
    else:
        with pytest.raises(lk.ShardError, match=rf"a\.tar, offset [\d,]+: 0\.{name} can't be decoded.*{message}"):
            data[0]
    assert not hasattr(sys, "_was_unpickled")


def contents() -> dict[str, bytes]:
    [one, *_] = lk.TarDataset(FIXTURES, decode=None)
    return {name: one[name] for name in ("deep.npz", "json.gz", "mp", "pth", "ten", "txt.gz")}


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
@pytest.mark.parametrize("name", contents())
def test_a_damaged_file_is_named(name: str, damage: str, tmp_path: Path) -> None:
    content = contents()[name]
    broken = {"cut": content[: len(content) * 2 // 3], "empty": b"", "other": b"\xc1" + content[1:]}[damage]
    if (name, damage) in (("ten", "empty"), ("txt.gz", "empty"), ("json.gz", "empty")):
        return  # no arrays; and no members, which gzip reads as nothing
    data = lk.TarDataset(written(tmp_path, name, broken))
    with pytest.raises(lk.ShardError, match=rf"a\.tar, offset 1,536: 0\.{re.escape(name)} can't be decoded"):
        data[0]


def test_the_damaged_file_of_a_batch_is_named(tmp_path: Path) -> None:
    packed = [gzip.compress(b"[]"), gzip.compress(b"[]"), b"\x1f\x8b no gzip"]
    make(tmp_path / "a.tar", [(f"{number}.json.gz", content) for number, content in enumerate(packed)])
    with pytest.raises(lk.ShardError, match=r"2\.json\.gz can't be decoded"):
        lk.TarDataset(tmp_path).read_columns([0, 1, 2])


def test_own_decoders_count(tmp_path: Path) -> None:
    """Of the whole extension, of what is packed, and of all that ends in .gz."""
    path = written(tmp_path, "json.gz", packed := gzip.compress(b"[1]"))
    for decode, wanted in (
        (lk.DECODERS, [1]),
        (lk.DECODERS | {"json": len}, 3),
        (lk.DECODERS | {"json.gz": len}, len(packed)),
        (lk.DECODERS | {"gz": len}, len(packed)),
        ({"json": len}, packed),
        (None, packed),
    ):
        assert lk.TarDataset(path, decode=decode)[0]["json.gz"] == wanted


def test_packed_pictures_keep_their_limit(tmp_path: Path) -> None:
    content = gzip.compress(encode(picture(0), "png"))
    path = written(tmp_path, "png.gz", content)
    whole = lk.TarDataset(path)[0]["png.gz"]
    assert equal(whole, lk.DECODERS["png"](gzip.decompress(content)))
    with pytest.raises(lk.ShardError, match=r"0\.png\.gz can't be decoded.*pixels"):
        lk.TarDataset(path, max_pixels=whole[0].numel() - 1)[0]


@given(
    st.lists(
        arrays.arrays(
            st.sampled_from(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u8"]),
            arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5),
        )
    )
)
def test_tensors_are_those_of_webdataset(values: list[Any]) -> None:
    content = bytes(webdataset.tenbin.encode_buffer(values))
    found = lk.DECODERS["ten"](content)
    wanted = webdataset.tenbin.decode_buffer(content)
    for each in (values, wanted):
        assert [(one.dtype, one.shape, one.tobytes()) for one in found] == [
            (one.dtype, one.shape, one.tobytes()) for one in each
        ]
