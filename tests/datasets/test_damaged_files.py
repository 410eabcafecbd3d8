"""Damaged files of every format give the right samples or one of our errors, within a second, and never end the process."""

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import Case, changed_bytes, cuts, flips, outcomes
from images_made import encode, picture
from PIL import Image
from png_made import KINDS, png, with_checksums
from tars_made import make

import loaderkit as lk
from loaderkit.datasets import decode_picture

MOST = 40  # samples that are read of a damaged file


@pytest.fixture
def count(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--flips"))


def pictures() -> dict[str, bytes]:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "maker"
    image = picture(size=(60, 45))
    frames = {"save_all": True, "append_images": [picture(1, size=(60, 45))]}
    made = {f"PNG {colour} {depth}": png(colour, depth, size=(17, 12)) for colour, depth in KINDS}
    made |= {"PNG interlaced": png(2, 8, size=(9, 9), interlaced=True), "PNG see-through": png(3, 4, seen_through=True)}
    made |= {"PNG": encode(image, "PNG", exif=exif), "PNG black": encode(Image.new("L", (40, 30)), "PNG")}
    for mode in ("RGB", "L", "CMYK"):
        made[f"JPEG {mode}"] = encode(image.convert(mode), "JPEG", exif=exif)
    made["JPEG progressive"] = encode(image, "JPEG", progressive=True)
    made["JPEG restarted"] = encode(image, "JPEG", restart_marker_blocks=1)
    made |= {"WebP": encode(image, "WEBP", exif=exif), "WebP moving": encode(image, "WEBP", **frames)}
    made["WebP lossless"] = encode(image.convert("RGBA"), "WEBP", lossless=True)
    made |= {"GIF": encode(image.convert("P"), "GIF"), "GIF moving": encode(image.convert("P"), "GIF", **frames)}
    for mode in ("RGB", "P", "1"):
        made[f"BMP {mode}"] = encode(image.convert(mode), "BMP")
    for packed in ("raw", "tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits"):
        made[f"TIFF {packed}"] = encode(image, "TIFF", compression=packed)
    return made | {"PPM": encode(image, "PPM")}


PICTURES = pictures()


def read_picture(content: bytes) -> tuple[tuple[int, ...], int]:
    found = decode_picture(content, max_pixels=1 << 21)
    assert found.dtype.itemsize == 1
    return tuple(found.shape), zlib.crc32(found.contiguous().numpy().tobytes())


@pytest.mark.parametrize("kind", PICTURES)
def test_a_damaged_picture_is_decoded_or_an_error(kind: str, count: int) -> None:
    content = PICTURES[kind]
    whole = read_picture(content)
    cases = [*cuts(content), *changed_bytes(content, range(64)), *flips(content, count)]
    checked = {name for name, _ in (cases if kind.startswith("PNG") else cuts(content))}  # PNG has checksums
    if kind.startswith("PNG"):
        cases += [(f"{name}, repaired", with_checksums(damaged)) for name, damaged in cases]
    found = outcomes(read_picture, cases, (ValueError,))
    assert len(found) == len(cases)
    assert sum(isinstance(result, str) for result in found.values()) > 50
    for name in checked:
        assert isinstance(found[name], str) or found[name] == whole, name


def documents(number: int) -> dict[str, Any]:
    return {"id": number, "text": f"text {number}", "list": [number] * (number % 3)}


def write_jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps(documents(number)) + "\n" for number in range(12)))


def write_csv(path: Path) -> None:
    path.write_text("id,text\n" + "".join(f'{number},"a ""text"", {number}"\n' for number in range(12)))


def write_npy(path: Path) -> None:
    np.save(path, np.arange(60, dtype=np.int32).reshape(12, 5))


def write_tokens(path: Path) -> None:
    np.arange(100, dtype=np.uint16).tofile(path)


def write_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([documents(number) for number in range(12)]), path, row_group_size=5)


def write_arrow(path: Path) -> None:
    table = pa.Table.from_pylist([documents(number) for number in range(12)])
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=5)


def write_tar(path: Path) -> None:
    array = encode_npy()
    files = [
        file
        for number in range(3)
        for file in (
            (f"dir/{number}.cls", b"%d" % number),
            (f"dir/{number}.json", json.dumps(documents(number)).encode()),
            (f"dir/{number}.npy", array),
            (f"dir/{number}.png", encode(picture(number))),
        )
    ]
    make(path, files)


def encode_npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(5))
    return file.getvalue()


FORMATS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "a.jsonl": (write_jsonl, lk.JsonlDataset),
    "a.csv": (write_csv, lambda path: lk.CsvDataset(path, ["id", "text"], types={"id": int})),
    "a.npy": (write_npy, lk.NpyDataset),
    "a.bin": (write_tokens, lambda path: lk.TokenDataset(path, length=8, dtype="uint16", remainder="keep")),
    "a.parquet": (write_parquet, lk.ParquetDataset),
    "a.arrow": (write_arrow, lk.ParquetDataset),
    "a.tar": (write_tar, lk.TarDataset),
}


def plain(value: Any) -> Any:
    """Return values that can be compared."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return (str(value.dtype), value.tolist()) if hasattr(value, "tolist") else value


def read_all(path: Path, dataset: Callable[[Path], Any]) -> list[Any]:
    """Read the first samples: each is a value, or the text of a ShardError."""
    found: list[Any] = []
    with warnings.catch_warnings(action="ignore"):  # a shard that changed, tokens that are too few
        data = dataset(path)
    indices = range(min(len(data), MOST))
    for index in indices:
        try:
            found.append(plain(data[index]))
        except lk.ShardError as error:
            found.append(f"ShardError: {error}")
    for name in ("read_batch", "read_columns"):
        if (read := getattr(data, name, None)) is not None and indices:
            try:
                read(np.arange(len(indices)))
            except ValueError:  # ShardError, or types that a batch cannot hold
                continue
    data.close()
    return found


def is_error(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("ShardError")


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_gives_its_samples_or_an_error(name: str, count: int, tmp_path: Path) -> None:
    write, dataset = FORMATS[name]
    path = tmp_path / name
    write(path)
    content, whole = path.read_bytes(), read_all(path, dataset)
    assert len(whole) >= 3
    assert not any(map(is_error, whole))

    def read(damaged: bytes) -> list[Any]:
        path.write_bytes(damaged)
        Path(f"{path}.lkindex").unlink(missing_ok=True)
        return read_all(path, dataset)

    header = range(0, 512, 9) if name == "a.tar" else range(0, min(64, len(content)), 4)
    footer = range(max(0, len(content) - 40), len(content), 2) if name in ("a.parquet", "a.arrow") else ()
    cases = [*cuts(content), *changed_bytes(content, {*header, *footer}), *flips(content, count)]
    found = outcomes(read, cases, (lk.ShardError, FileNotFoundError))
    assert len(found) == len(cases)
    assert any(is_error(result) or any(map(is_error, result)) for result in found.values())
    for place, _ in cuts(content):
        samples = found[place]
        if isinstance(samples, str):
            continue
        right = [is_error(sample) or sample == whole[index] for index, sample in enumerate(samples)]
        # The last window of tokens is shorter, and the last record of CSV may lack some characters.
        assert all(right[:-1] if name in ("a.csv", "a.bin") else right), place


def rewritten(content: bytes, change: Callable[[dict[str, Any]], Any] | None, body: bytes | None = None) -> bytes:
    """Change an index file, and give it the checksum of what it holds then."""
    magic, line, old = content[:-4].split(b"\n", 2)
    header = line if change is None else json.dumps(change(json.loads(line))).encode()
    content = b"\n".join([magic, header, old if body is None else body])
    return content + zlib.crc32(content).to_bytes(4, "little")


def wrong_indexes(content: bytes) -> tuple[list[Case], list[Case]]:
    """Return indexes with other fields, and with other offsets."""
    fields, offsets = [], []
    magic, line, body = content[:-4].split(b"\n", 2)
    values = [
        None,
        True,
        -1,
        0,
        1,
        7,
        1.5,
        2**40,
        2**63,
        10**30,
        "",
        "x",
        [],
        [1],
        [-1],
        [-1, 2],
        [[1]],
        [2**40, 2],
        {},
    ]
    for name in json.loads(line):
        fields.append((f"no {name}", rewritten(content, lambda header, name=name: header.pop(name) and header)))
        for value in values:
            changed = rewritten(content, lambda header, name=name, value=value: header | {name: value})
            fields.append((f"{name} = {value!r}", changed))
    for text in (b"", b"[]", b"1", b"null", b"{}", b"not JSON", b"\xff", b"[" * 100_000):
        whole = magic + b"\n" + text + b"\n" + body
        fields.append((f"header {text[:9]!r}", whole + zlib.crc32(whole).to_bytes(4, "little")))
    for what, cut in (("no", b""), ("fewer", body[:-8]), ("odd", body[:-3]), ("more", body + bytes(8))):
        fields.append((f"{what} offsets", rewritten(content, None, cut)))
    words = np.frombuffer(body, "<i8")
    for place in range(min(len(words), 60)):
        for value in sorted({-1, 0, 1, 2**40, 2**62, -(2**63), int(words[place]) + 1} - {int(words[place])}):
            wrong = words.copy()
            wrong[place] = value
            offsets.append((f"offset {place} = {value}", rewritten(content, None, wrong.tobytes())))
    return fields, offsets


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.arrow", "a.tar"])
def test_an_index_with_wrong_fields_is_refused_or_made_again(name: str, tmp_path: Path) -> None:
    write, dataset = FORMATS[name]
    path = tmp_path / name
    write(path)
    whole = read_all(path, dataset)
    index = Path(f"{path}.lkindex")
    fields, offsets = wrong_indexes(index.read_bytes())

    def read(damaged: bytes) -> list[Any]:
        index.write_bytes(damaged)
        return read_all(path, dataset)

    found = outcomes(read, [*fields, *offsets], (lk.ShardError,))
    assert sum(map(is_error, found.values())) > 100
    for place, _ in fields:
        assert is_error(found[place]) or found[place] == whole, place


@pytest.mark.parametrize("what", ["a named pipe", "a folder"])
def test_an_index_that_is_no_file_is_refused(what: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl")
    index = tmp_path / "a.jsonl.lkindex"
    os.mkfifo(index) if what == "a named pipe" else index.mkdir()
    found = outcomes(lambda _: len(lk.JsonlDataset(tmp_path / "a.jsonl")), [(what, b"")], (lk.ShardError,))
    assert "a.jsonl.lkindex: not a whole index file (not a regular file)" in found[what]


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": lambda content: gzip.compress(content, mtime=0),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.tar"])
def test_a_damaged_stream_gives_its_samples_or_a_documented_error(
    name: str, packer: str, count: int, tmp_path: Path
) -> None:
    path = tmp_path / name
    reader: Any = lk.LineReader() if name == "a.jsonl" else lk.TarReader()
    FORMATS[name][0](path)
    content = PACKERS[packer](path.read_bytes())

    def read(damaged: bytes) -> list[Any]:
        path.write_bytes(damaged)
        return [plain(sample) for _, sample in zip(range(MOST), reader(str(path), 0), strict=False)]

    whole = read(content)
    assert len(whole) >= 3
    cases = [*cuts(content), *changed_bytes(content, range(32)), *flips(content, count)]
    errors = (ValueError, EOFError, OSError, tarfile.ReadError, lzma.LZMAError, zlib.error)
    found = outcomes(read, cases, errors)
    for place, _ in cuts(content):
        assert isinstance(found[place], str) or found[place] == whole[: len(found[place])], place
