"""Tar shards: the samples that webdataset reads, by seeking; and an error for whatever is no whole, plain archive."""

import gzip
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from drawing import equal
from images_made import encode, picture, pixels
from shards import SIZES, check_laws, check_reads, with_draws
from tars_made import make, member, read_by_webdataset

import loaderkit as lk


def sample(number: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "__key__": f"part/{number:05d}",
        "cls": str(number).encode(),
        "txt": b"x" * (number * 97 % 1500),
    }
    if number % 3 == 0:
        found["Seg.json"] = json.dumps({"number": number}).encode()
    return found


def write(path: Path, numbers: Sequence[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path), encoder=False) as writer:
        for number in numbers:
            writer.write(sample(number))


def write_shards(folder: Path, sizes: Sequence[int]) -> list[int]:
    start = 0
    for shard, size in enumerate(sizes):
        write(folder / f"{shard:03d}.tar", range(start, start + size))
        start += size
    return list(range(start))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_samples_are_those_of_webdataset(sizes: list[int], tmp_path: Path) -> None:
    numbers = write_shards(tmp_path, sizes)
    wanted = [entry for path in sorted(tmp_path.glob("*.tar")) for entry in read_by_webdataset(path)]
    assert [int(entry["cls"]) for entry in wanted] == numbers
    for _ in range(2):  # the second time by the index files
        check_reads(lk.TarDataset(tmp_path, decode=None), wanted)


def test_shard_writer_round_trips(tmp_path: Path) -> None:
    with webdataset.ShardWriter(str(tmp_path / "%03d.tar"), maxcount=4, verbose=0) as writer:
        for number in range(10):
            entry = {"__key__": f"{number:03d}", "png": np.array(picture(number)), "cls": number}
            writer.write(entry | {"json": {"a": [number]}, "npy": np.arange(number), "txt": "é" * number})
    data = lk.TarDataset(tmp_path)
    assert data.shard_sizes.tolist() == [4, 4, 2]
    for number in range(10):
        wanted = {"__key__": f"{number:03d}", "png": pixels(picture(number)), "cls": number}
        wanted |= {"json": {"a": [number]}, "npy": np.arange(number), "txt": "é" * number}
        found = data[number]
        assert found.keys() == wanted.keys()
        assert equal(found, {name: wanted[name] for name in found})  # webdataset sorts them


LONG = "long-" * 30
DEEP = "/".join(["deep" * 10] * 6)


@pytest.mark.parametrize("form", ["gnu", "posix", "ustar", "v7", "oldgnu"])
@pytest.mark.parametrize("blocking", [1, 20])
def test_gnu_tar_archives(form: str, blocking: int, tmp_path: Path) -> None:
    keys = ["a/0", "a/0-1", "a/ü b", "a/c.d/e"]
    if form != "v7":
        keys.append("a/" + "n" * 95)
    if form in ("gnu", "posix", "oldgnu"):
        keys += [f"a/{LONG}", f"a/{DEEP}/f"]
    elif form == "ustar":
        keys.append("a/" + "/".join(["p" * 40] * 3) + "/f")
    for number, key in enumerate(keys):
        for extension, content in (("bin", bytes(range(256)) * number), ("cls", str(number).encode())):
            path = tmp_path / "tree" / f"{key}.{extension}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    shard = tmp_path / "x.tar"
    run = ["tar", f"--format={form}", f"--blocking-factor={blocking}", "--sort=name", "-cf", str(shard), "-C"]
    subprocess.run([*run, str(tmp_path / "tree"), "."], check=True)
    data = lk.TarDataset(shard)
    wanted = {f"./{key}": {"bin": bytes(range(256)) * number, "cls": number} for number, key in enumerate(keys)}
    assert {entry.pop("__key__"): entry for entry in (data[index] for index in range(len(data)))} == wanted
    assert [entry["__key__"] for entry in read_by_webdataset(shard)] == [
        data[row]["__key__"] for row in range(len(data))
    ]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_belongs_to_no_sample_is_skipped(kind: int, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    names = ["__meta__/a.json", "__info__", "README", "a.cls", ".hidden.cls", "d/._a.cls", "a.TXT", "b.cls", "d/b."]
    names.append("b.seg.x")
    make(path, [(name, b"1") for name in names], kind)
    with tarfile.open(path, "a", format=kind) as archive:
        folder = tarfile.TarInfo("d.e/")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    data = lk.TarDataset(path, decode=None)
    assert [list(entry) for entry in data.__getitems__([0, 1])] == [
        ["__key__", "cls", "txt"],
        ["__key__", "cls", "seg.x"],
    ]


def test_a_file_of_many_gigabytes_is_placed_right(tmp_path: Path) -> None:
    size = 9 << 30
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tmp_path / f"{form}.tar"
        big, small = tarfile.TarInfo("a.bin"), tarfile.TarInfo("b.cls")
        big.size, small.size = size, 1
        head = big.tobuf(form)
        with path.open("wb") as file:  # a file with a hole
            file.write(head)
            file.seek(len(head) + size)
            file.write(small.tobuf(form) + b"7".ljust(512, b"\0") + bytes(1024))
        data = lk.TarDataset(path)
        assert len(data) == 2
        assert data[1] == {"__key__": "b", "cls": 7}


def test_decoders_go_by_extension(tmp_path: Path) -> None:
    image = picture()
    path = make(
        tmp_path / "x.tar",
        [("a.seg.png", encode(image)), ("a.jpg.x", b"1"), ("a.pyd", b"cos\nsystem\n"), ("a.cls", b"4\n")],
    )
    found = lk.TarDataset(path)[0]
    assert torch.equal(found["seg.png"], pixels(image))
    assert found["jpg.x"] == b"1"
    assert found["pyd"] == b"cos\nsystem\n"  # never unpickled
    assert found["cls"] == 4
    own: dict[str, Callable[[bytes], Any]] = {**lk.DECODERS, "seg.png": len, "x": bytes.hex}
    found = lk.TarDataset(path, decode=own)[0]
    assert found["seg.png"] == len(encode(image))
    assert (found["jpg.x"], found["cls"]) == ("31", 4)
    assert lk.TarDataset(path, decode={"cls": float})[0]["cls"] == 4.0


def number_of(entry: dict[str, Any]) -> int:
    return int(entry["cls"])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_laws_hold(sizes: list[int], tmp_path: Path) -> None:
    write_shards(tmp_path, sizes)
    check_laws(lambda: lk.TarDataset(tmp_path, transform=with_draws), number_of)


# Hostile archives.


def with_checksum(header: bytes) -> bytes:
    total = sum(header[:148]) + 8 * ord(" ") + sum(header[156:512])
    return header[:148] + b"%06o\0 " % total + header[156:]


def with_size(header: bytes, field: bytes) -> bytes:
    return with_checksum(header[:124] + field.ljust(12, b"\0") + header[136:])


def pax(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return member("pax", records, kind)


GOOD, END = member("0.cls", b"1"), bytes(1024)
HOSTILE: dict[str, tuple[bytes, int, str]] = {
    "zero bytes": (b"", 0, "the file is empty"),
    "text": (b"some text\n" * 200, 0, "not a tar archive"),
    "random": (np.random.default_rng(0).bytes(5000), 0, "not a tar archive"),
    "short": (b"abc", 0, "the archive ends without its end mark"),
    "gzip": (gzip.compress(GOOD + END), 0, "compressed with gzip.*Unpack it"),
    "no end": (GOOD, 1024, "the archive ends without its end mark"),
    "cut header": (GOOD + GOOD[:300], 1024, "the archive ends without its end mark"),
    "cut content": (
        GOOD + member("1.txt", b"x" * 2000)[:1500],
        1024,
        "'1.txt' has 2,000 bytes, the archive ends after 988",
    ),
    "cut padding": (GOOD[:600], 1024, "the archive ends without its end mark"),
    "damaged header": (GOOD + GOOD[:50] + b"?" + GOOD[51:] + END, 1024, "no tar header here"),
    "damaged size": (GOOD[:130] + b"7" + GOOD[131:] + END, 0, "not a tar archive"),
    "joined by cat": (GOOD + END + member("1.cls", b"1") + END, 2048, "more data after the archive's end at 1,024"),
    "absolute": (GOOD + member("/etc/1.cls", b"1") + END, 1536, "an absolute name"),
    "outside": (GOOD + member("a/../../1.cls", b"1") + END, 1536, "leads out of the archive"),
    "hard link": (GOOD + member("1.cls", b"", tarfile.LNKTYPE, "0.cls") + END, 1024, "a hard link.*--hard-dereference"),
    "link": (GOOD + member("1.cls", b"", tarfile.SYMTYPE, "/etc/passwd") + END, 1024, "a symbolic link.*--dereference"),
    "character device": (member("1.cls", b"", tarfile.CHRTYPE) + END, 0, "a character device"),
    "block device": (member("1.cls", b"", tarfile.BLKTYPE) + END, 0, "a block device"),
    "pipe": (member("1.cls", b"", tarfile.FIFOTYPE) + END, 0, "a named pipe"),
    "sparse": (member("1.cls", b"", tarfile.GNUTYPE_SPARSE) + END, 0, "a sparse file"),
    "PAX sparse": (pax(b"22 GNU.sparse.major=1\n") + GOOD + END, 0, "a sparse file"),
    "unknown type": (member("1.cls", b"", b"Z") + END, 0, "of type b'Z'"),
    "extension twice": (GOOD + member("0.CLS", b"2") + END, 1536, "has a file with this extension already"),
    "key split": (GOOD + member("1.cls", b"1") + member("0.txt", b"1") + END, 2560, "its key came before.*--sort=name"),
    "key twice": (GOOD + member("1.cls", b"1") + GOOD + END, 2560, "its key came before"),
    "no sample": (member("README", b"1") + END, 512, "neither this nor any other file belongs to a sample"),
    "reserved": (member("a.__key__", b"1") + END, 512, "the key's own field"),
    "negative size": (with_size(GOOD, b"-0000001000") + END, 0, "with the size b'-0000001000"),
    "negative base-256": (with_size(GOOD, b"\xff" * 12) + END, 0, "with the size"),
    "size with a sign": (with_size(GOOD, b"+0000000010") + END, 0, "with the size"),
    "size with an underscore": (with_size(GOOD, b"0000000_010") + END, 0, "with the size"),
    "size no octal": (with_size(GOOD, b"00000000999") + END, 0, "with the size"),
    "huge size": (with_size(GOOD, b"\x80" + b"\xff" * 11) + END, 0, "the archive ends after"),
    "PAX of length 0": (pax(b"0 path=a\n") + GOOD + END, 0, "a damaged PAX header"),
    "PAX too long": (pax(b"99 path=a\n") + GOOD + END, 0, "a damaged PAX header"),
    "PAX no number": (pax(b"path=a\n") + GOOD + END, 0, "a damaged PAX header"),
    "PAX outside": (pax(b"17 path=../a.cls\n") + GOOD + END, 1536, "leads out of the archive"),
    "PAX zero byte": (pax(b"14 path=a.\0cls\n"[:14] + b"\n") + GOOD + END, 0, "PAX"),
    "PAX size": (pax(b"13 size=3000\n") + GOOD + END, 1024, "'0.cls' has 3,000 bytes"),
    "PAX size no number": (pax(b"11 size=-9\n") + GOOD + END, 0, "with the size b'-9'"),
    "PAX for all": (pax(b"14 path=a.cls\n", tarfile.XGLTYPE) + GOOD + END, 0, "a global header"),
    "PAX and no file": (pax(b"14 path=a.cls\n") + END, 1024, "ends after an extended header"),
    "cut PAX": (pax(b"14 path=a.cls\n")[:520], 0, "an extended header of 14 bytes is cut"),
    "two long names": (
        member("x", b"a.cls", tarfile.GNUTYPE_LONGNAME) * 2 + GOOD + END,
        1024,
        "a second extended header",
    ),
    "huge long name": (member("x", b"a" * (2 << 20), tarfile.GNUTYPE_LONGNAME) + GOOD + END, 0, "above 1,048,576"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archives_are_errors_that_name_shard_and_offset(case: str, tmp_path: Path) -> None:
    content, offset, message = HOSTILE[case]
    path = tmp_path / "in" / "x.tar"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(lk.ShardError, match=rf"(?s)x\.tar, offset {offset:,}: .*({message})"):
        lk.TarDataset(path)
    assert [found.name for found in tmp_path.rglob("*")] == ["in", "x.tar"]  # nothing was written


def test_any_cut_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    write(path, range(4))
    content = path.read_bytes()
    end = len(content.rstrip(b"\0"))
    end += -end % 512
    for size in [*range(0, end, 97), *range(0, end + 512, 512), end + 511]:
        path.write_bytes(content[:size])
        with pytest.raises(lk.ShardError, match=r"x\.tar, offset"):
            lk.TarDataset(path)
    path.write_bytes(content[: end + 512])  # one block of zeros: nothing is lost
    assert len(lk.TarDataset(path)) == 4


def test_any_flipped_bit_of_a_header_is_an_error(tmp_path: Path) -> None:
    path = make(tmp_path / "x.tar", [("a.cls", b"1"), ("b.cls", b"2")])
    content = path.read_bytes()
    for at in [*range(0, 148, 7), *range(156, 512, 13)]:
        for bit in (0, 6):
            damaged = bytearray(content)
            damaged[1024 + at] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(lk.ShardError, match=r"offset 1,024: no tar header here"):
                lk.TarDataset(path)


@pytest.mark.parametrize("bits", [b"x", b"3.5", b""])
def test_what_can_not_be_decoded_is_named(bits: bytes, tmp_path: Path) -> None:
    data = lk.TarDataset(make(tmp_path / "x.tar", [("a.cls", b"1"), ("b.cls", bits)]))
    assert data[0]["cls"] == 1
    with pytest.raises(lk.ShardError, match=r"x\.tar, offset 1,536: b\.cls can't be decoded, ValueError"):
        data[1]


def test_arrays_of_objects_are_not_unpickled(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(lk.ShardError, match=r"a\.npy can't be decoded"):
        lk.TarDataset(make(tmp_path / "x.tar", [("a.npy", file.getvalue())]))[0]


def test_a_shard_that_changes_later_gives_no_wrong_sample(tmp_path: Path) -> None:
    data = lk.TarDataset(make(tmp_path / "y.tar", [("a.cls", b"1"), ("b.txt", b"x" * (1 << 20)), ("c.cls", b"2")]))
    assert data[0]["cls"] == 1
    with (tmp_path / "y.tar").open("r+b") as file:
        file.truncate(1200)  # while it is open
    with pytest.raises(lk.ShardError, match=r"y\.tar: ends at byte 1200, the index has samples up to 1050625"):
        data[2]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 15, 16, 50])
def test_pictures_are_the_same_whatever_the_number_of_threads(
    threads: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoded side by side in the loader's own process; a broken one is named as without threads."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    pixels = [np.full((8, 9, 3), number, dtype=np.uint8) for number in range(count)]
    lk.write_shards([{"png": picture} for picture in pixels], tmp_path / "whole", format=lk.TarFormat(), jobs=1)
    (batch,) = lk.Loader(lk.TarDataset(tmp_path / "whole"), count)
    assert batch["png"][:, 0, 0, 0].tolist() == list(range(count))
    bad = [{"png": b"\xff\xd8\xff no picture" if number == count // 2 else b""} for number in range(count)]
    lk.write_shards(bad, tmp_path / "bad", format=lk.TarFormat(), jobs=1)
    with pytest.raises(lk.ShardError, match=r"png can't be decoded"):
        next(iter(lk.Loader(lk.TarDataset(tmp_path / "bad"), count)))
