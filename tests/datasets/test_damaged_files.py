"""Damaged files of every format give the right samples or one of our errors, within a second, and never end the process."""

import bz2
import gzip
import io
import itertools
import json
import lzma
import os
import tarfile
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torchvision.io  # noqa: F401 - registers its decoders
from command_line import loaderkit
from damage import Case, changed_bytes, cuts, flips, outcomes
from images_made import encode, need_picture_decoder, picture
from PIL import Image
from png_made import KINDS, chunk, header, png, with_checksums
from tars_made import make

import loaderkit as lk
from loaderkit.datasets.images.decode import decode_picture
from loaderkit.datasets.images.decode import decode_picture as whole_picture
from loaderkit.datasets.images.decoders import PictureDecoder
from loaderkit.datasets.shards.index import index_path

_NO_PRECISION = 9  # bits a channel, which no decoder of JPEG has
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


def read_picture(content: bytes, decoder: Any = None) -> tuple[tuple[int, ...], int]:
    found = decode_picture(content, max_pixels=1 << 21, decoder=decoder)
    assert found.dtype.itemsize == 1
    return tuple(found.shape), zlib.crc32(found.contiguous().numpy().tobytes())


JPEGS = [kind for kind in PICTURES if kind.startswith("JPEG")]


@pytest.mark.parametrize(
    ("kind", "decoder"), [*((kind, None) for kind in PICTURES), *itertools.product(JPEGS, ("torchcodec", "pillow"))]
)
def test_a_damaged_picture_is_decoded_or_an_error(kind: str, decoder: Any, count: int) -> None:
    content = PICTURES[kind]
    need_picture_decoder(decoder)  # a forked process has it then
    whole = read_picture(content, decoder)
    cases = [*cuts(content), *changed_bytes(content, range(64)), *flips(content, count)]
    checked = {name for name, _ in (cases if kind.startswith("PNG") else cuts(content))}  # PNG has checksums
    if kind.startswith("PNG"):
        cases += [(f"{name}, repaired", with_checksums(damaged)) for name, damaged in cases]
    found = outcomes(partial(read_picture, decoder=decoder), cases, (ValueError,))
    assert len(found) == len(cases)
    assert sum(isinstance(result, str) for result in found.values()) > 50
    for name in checked:
        assert isinstance(found[name], str) or found[name] == whole, name


def black_png(width: int, height: int, rows: int) -> bytes:
    """Some rows of a PNG, which libpng refuses for its header."""
    pixels = chunk(b"IDAT", zlib.compress(bytes(1 + width) * rows))
    return header(width, height, packing=1) + pixels + chunk(b"IEND")


def test_libpng_refuses_the_pngs_of_these_tests() -> None:
    """By an error, so that no decoder outside reads them on."""
    content = torch.frombuffer(bytearray(black_png(8, 8, 8)), dtype=torch.uint8)
    with pytest.raises(RuntimeError, match=r"decode_png|Internal error\."):
        torch.ops.image.decode_png(content, 3, False)


@pytest.mark.parametrize("size", [(1, 2), (8, 8), (40, 3), (4000, 4000)])
def test_a_png_that_lacks_rows_is_an_error(size: tuple[int, int]) -> None:
    cases = [(f"{rows} rows", black_png(*size, rows)) for rows in (0, 1, size[1] - 1, size[1])]
    found = outcomes(decode_picture, cases[:-1], (ValueError,))
    assert all("not a picture that can be decoded: " in message for message in found.values())
    assert decode_picture(cases[-1][1]).shape == (3, size[1], size[0])


def huge(kind: str, width: int, height: int) -> bytes:
    """A small picture whose header claims another size; if it is large, other decoders refuse the header for another reason."""
    is_large = width * height > 100
    if kind == "PNG":
        return black_png(width, height, 1) if is_large else encode(Image.new("L", (width, height)), "PNG")
    content = bytearray(encode(Image.new("RGB", (9, 7)), kind))
    if kind == "JPEG":
        place = content.index(b"\xff\xc0") + 4
        bits = _NO_PRECISION if is_large else 8
        content[place : place + 5] = bytes([bits]) + height.to_bytes(2, "big") + width.to_bytes(2, "big")
    elif kind == "GIF":
        content[6:10] = width.to_bytes(2, "little") + height.to_bytes(2, "little")
    else:
        content[18:26] = width.to_bytes(4, "little") + height.to_bytes(4, "little")
    return bytes(content)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("decoder", get_args(PictureDecoder))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP"])
def test_a_picture_that_claims_to_be_huge_is_an_error(kind: str, decoder: PictureDecoder) -> None:
    need_picture_decoder(decoder)  # a forked process has it then
    decode_picture = partial(whole_picture, decoder=decoder)
    small = huge(kind, 9, 7)
    assert decode_picture(small, max_pixels=63).shape == (3, 7, 9)
    cases = [(f"{side} pixels", huge(kind, side, side)) for side in (12_000, 20_000, 60_000)]
    found = outcomes(decode_picture, cases, (ValueError,))
    message = "its header claims 12,000 x 12,000 pixels, wanted at most max_pixels=89,478,485"
    assert message in found["12000 pixels"]
    assert all("max_pixels=" in text or "PIL.Image.MAX_IMAGE_PIXELS" in text for text in found.values())
    assert decode_picture(small, max_pixels=None).shape == (3, 7, 9)
    with pytest.raises(ValueError, match="claims 9 x 7 pixels, wanted at most max_pixels=62"):
        decode_picture(small, max_pixels=62)


def test_a_progressive_jpeg_of_very_many_scans_is_an_error() -> None:
    """By its header; decoders refuse this one for its precision."""
    content = bytearray(encode(picture(size=(60, 45)), "JPEG", progressive=True))
    assert decode_picture(bytes(content)).shape == (3, 45, 60)
    content[content.index(b"\xff\xc2") + 4] = _NO_PRECISION
    with pytest.raises(ValueError, match="not a picture that can be decoded") as refused:
        decode_picture(bytes(content))
    assert "scans" not in str(refused.value)
    with pytest.raises(ValueError, match="it has more than 100 scans, wanted at most that"):
        decode_picture(bytes(content) + b"\xff\xda" * 100)


def test_postscript_is_not_run() -> None:
    with pytest.raises(ValueError, match="it is PostScript"):
        decode_picture(encode(picture(), "EPS"))


def write_pictures(root: Path) -> None:
    """Four classes of one picture; that of class c is too large for 200 pixels."""
    for name in "abcd":
        (root / name).mkdir(parents=True)
        picture(size=(40, 9) if name == "c" else (12, 9)).save(root / name / "1.png")


def test_max_pixels_is_a_setting_whose_errors_are_skipped(tmp_path: Path) -> None:
    write_pictures(tmp_path / "train")
    folder = lk.ImageFolder(tmp_path / "train", max_pixels=200)
    with pytest.raises(ValueError, match=r"c/1\.png: .*claims 40 x 9 pixels, wanted at most max_pixels=200"):
        folder[2]
    loader = lk.Loader(folder, 2, bad_samples=lk.BadSamples("skip", max_rate=0.5))
    assert [label for _, labels in loader for label in labels.tolist()] == [0, 1, 3]
    assert "claims 40 x 9 pixels" in loader.bad_samples[0].error

    files = [(f"{name}.png", (tmp_path / "train" / name / "1.png").read_bytes()) for name in "abcd"]
    shard = make(tmp_path / "a.tar", files)
    tar = lk.TarDataset(shard, max_pixels=200)
    with pytest.raises(lk.ShardError, match=r"a\.tar, offset .*: c\.png .*max_pixels=200"):
        tar.read_columns([0, 1, 2, 3])
    assert tar[3]["png"].shape == (3, 9, 12)
    with pytest.raises(lk.ShardError, match=r"a\.tar: c\.png .*max_pixels=200"):
        list(lk.TarReader(max_pixels=200)(str(shard), 0))
    assert len(list(lk.TarReader()(str(shard), 0))) == 4

    for data in (
        lk.ImageDataModule(tmp_path, max_pixels=200),
        lk.ImageDataModule(train=shard, classes=["a"], max_pixels=200, label="png"),
    ):
        data.setup("fit")
        with pytest.raises(ValueError, match="max_pixels=200"):
            list(data.train_dataloader())
    sample = {"image": tmp_path / "train" / "c" / "1.png", "boxes": [[0, 0, 4, 4]], "labels": ["x"]}
    boxes = lk.DetectionDataModule(train=[sample], max_pixels=200)
    boxes.setup("fit")
    with pytest.raises(ValueError, match="max_pixels=200"):
        list(boxes.train_dataloader())
    for make_it in (
        lambda wrong: lk.ImageFolder(tmp_path / "train", max_pixels=wrong),
        lambda wrong: lk.TarDataset(shard, max_pixels=wrong),
        lambda wrong: lk.TarReader(max_pixels=wrong),
        lambda wrong: lk.ImageDataModule(tmp_path, max_pixels=wrong),
        lambda wrong: lk.DetectionDataModule(train=[sample], max_pixels=wrong),
    ):
        with pytest.raises(ValueError, match="max_pixels is 0, wanted a number of at least 1, or None"):
            make_it(0)


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
        index_path(str(path), None).unlink(missing_ok=True)
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
    index = index_path(str(path), None)
    fields, offsets = wrong_indexes(index.read_bytes())

    def read(damaged: bytes) -> list[Any]:
        index.write_bytes(damaged)
        return read_all(path, dataset)

    found = outcomes(read, [*fields, *offsets], (lk.ShardError,))
    assert sum(map(is_error, found.values())) > 100
    for place, _ in fields:
        assert is_error(found[place]) or found[place] == whole, place


def test_the_index_command_mends_wrong_offsets(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl(path)
    whole = read_all(path, lk.JsonlDataset)
    index = index_path(str(path), None)
    index.write_bytes(rewritten(index.read_bytes(), lambda header: header | {"count": 99}))
    with pytest.raises(
        lk.ShardError, match=r"not a whole index file \(its offsets .*\)\. Delete it, or run `loaderkit"
    ):
        lk.JsonlDataset(path)
    assert loaderkit("index", path).returncode == 0
    assert read_all(path, lk.JsonlDataset) == whole


@pytest.mark.parametrize("what", ["a named pipe", "a folder"])
def test_an_index_that_is_no_file_is_refused(what: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl")
    index = tmp_path / "a.jsonl.lkindex"  # as `loaderkit index --beside` writes it
    os.mkfifo(index) if what == "a named pipe" else index.mkdir()
    found = outcomes(lambda _: len(lk.JsonlDataset(tmp_path / "a.jsonl")), [(what, b"")], (lk.ShardError,))
    assert "a.jsonl.lkindex: not a whole index file (not a regular file)" in found[what]


READ_A_PATH: dict[str, Callable[[Path], Any]] = {
    "a picture": lambda path: lk.ImageFolder(path.parent.parent)[0],
    "a picture with boxes": lambda path: next(iter(boxes_at(path).train_dataloader())),
    "a stream": lambda path: list(lk.LineReader()(str(path), 0)),
    "a shard": lambda path: lk.JsonlDataset([str(path)])[0],
    "a manifest": lambda path: lk.split(range(4), {"a": 1.0}, keep=path),
    "lengths": lambda path: lk.measure_lengths(["a"], len, cache=path),
}


def boxes_at(path: Path) -> lk.DetectionDataModule:
    data = lk.DetectionDataModule([{"image": path, "boxes": [[0, 0, 1, 1]], "labels": ["cat"]}])
    data.setup("fit")
    return data


@pytest.mark.parametrize("what", READ_A_PATH)
def test_a_named_pipe_is_refused_and_not_waited_for(what: str, tmp_path: Path) -> None:
    path = tmp_path / "class" / "x.jpg"
    path.parent.mkdir()
    os.mkfifo(path)
    found = outcomes(lambda _: READ_A_PATH[what](path), [(what, b"")], (ValueError, FileNotFoundError))
    wanted = "no shards at" if what == "a shard" else "x.jpg: a named pipe, wanted a regular file"
    assert wanted in found[what]


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": lambda content: gzip.compress(content, mtime=0),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


@pytest.mark.each_value
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
