"""A tar shard has the files that Python's tarfile lists, and the samples that its names say."""

import io
import random
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tars_made import make, member

import loaderkit as lk
from loaderkit.datasets.shards.index import index_path

KINDS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def read(path: Path) -> list[dict[str, Any]]:
    """Read all samples undecoded, without an earlier index."""
    index_path(str(path), None).unlink(missing_ok=True)
    return list(lk.TarDataset(path, decode=None))


def files_in(path: Path) -> list[tuple[str, bytes]]:
    return [
        (f"{sample['__key__']}.{name}", sample[name]) for sample in read(path) for name in sample if name != "__key__"
    ]


def listed_by_tarfile(path: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as reader:
        return [(member.name, file.read()) for member in reader if (file := reader.extractfile(member))]


def archive(draw: random.Random, kind: int, members: int, inner: bytes) -> bytes:
    """Make an archive of files that look like archives, of several sizes, with some directories and long names."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as writer:
        for number in range(members):
            info = tarfile.TarInfo(f"{'d/' * draw.randrange(3)}{number:05d}.bin")
            more = b"x" * draw.randrange(1500)
            content = draw.choice([b"", b"ustar" * 300, inner, inner[512:], more, inner[:512], bytes(70_000)])
            info.size = len(content)
            info.mtime = draw.choice([1763728000, 1763728000.25])  # the second needs an extended header in PAX
            if kind != tarfile.USTAR_FORMAT and draw.random() < 0.05:
                info.name = "n" * 120 + info.name  # needs an extended header
            if draw.random() < 0.02:
                info.type, info.size, content = tarfile.DIRTYPE, 0, b""
            writer.addfile(info, io.BytesIO(content))
    return file.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_members_are_what_tarfile_lists(kind: str, tmp_path: Path) -> None:
    draw = random.Random(0)
    inner = archive(draw, tarfile.GNU_FORMAT, 2, b"")
    path = tmp_path / "x.tar"
    for _ in range(10):
        path.write_bytes(archive(draw, KINDS[kind], draw.randrange(20, 200), inner))
        found = files_in(path)
        assert len(found) > 15
        assert found == listed_by_tarfile(path)


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (b"16 path=b/n.cls\n", "b/n.cls"),
        (b"15 path==a.cls\n", "=a.cls"),
        (b"12 mtime=12\n", "0.cls"),
        (b"13 mtimes=12\n", "0.cls"),
    ],
)
def test_an_extended_header_may_set_the_name(record: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(member("pax", record, tarfile.XHDTYPE) + member("0.cls", b"1") + bytes(1024))
    assert files_in(path) == listed_by_tarfile(path) == [(name, b"1")]


def with_fields(content: bytes, offset: int, size: bytes, checksum: str = "%06o\0 ") -> bytes:
    """Replace the size in a header, and its checksum."""
    header = bytearray(content[offset : offset + 512])
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = (checksum % sum(header)).encode()
    return content[:offset] + bytes(header) + content[offset + 512 :]


@pytest.mark.parametrize("size", ["%011o\0", "%011o ", "%012o", "%11o\0"])
@pytest.mark.parametrize("checksum", ["%06o\0 ", "%06o \0", "%07o\0", "%07o ", "%08o", "%6o\0 "])
def test_numbers_are_read_in_each_form(size: str, checksum: str, tmp_path: Path) -> None:
    path = make(tmp_path / "x.tar", [("0.a", b"x" * 700), ("0.b", b"\xff"), ("1.\xff", b"")])
    files, content = listed_by_tarfile(path), path.read_bytes()
    with tarfile.open(path) as reader:
        for info in reader:
            content = with_fields(content, info.offset, (size % info.size).encode(), checksum)
    path.write_bytes(content)
    assert files_in(path) == listed_by_tarfile(path) == files


EXTENSIONS = ["cls", "jpg", "TXT", "seg.png", "x" * 9, "é", "txt"]
STRAYS = ["README", ".hidden.cls", "d/.x.y", "a.", "noext", "__meta__/a.json", "__info__"]
REFUSED = ["/a.cls", "a/../b.cls", "..", "../README", "0.cls", "q.__key__"]


def names(draw: random.Random) -> list[str]:
    """Make the names of a shard: samples, often with files that belong to no sample, sometimes with a refused name."""
    found = []
    extensions = draw.sample(EXTENSIONS, draw.randrange(1, len(EXTENSIONS)))
    folders = draw.choice([[""], ["./"], ["", "a/b.c/", "long" * 20 + "/"]])
    for number in range(draw.randrange(30)):
        key = f"{draw.choice(folders)}{number}"
        mine = draw.sample(extensions, draw.randrange(1, len(extensions) + 1)) if draw.random() < 0.2 else extensions
        found += [f"{key}.{extension}" for extension in mine]
        if draw.random() < 0.1:
            found.append(draw.choice(STRAYS))
    if draw.random() < 0.3:
        found.insert(draw.randrange(len(found) + 1), draw.choice(REFUSED))
    return found


def samples_of(names: Sequence[str]) -> dict[str, list[str]] | None:
    """Group names in the obvious way; None where a name must be refused."""
    samples: dict[str, list[str]] = {}
    for name in names:
        folder, slash, base = name.rpartition("/")
        stem, _, extension = base.partition(".")
        if name.startswith("/") or ".." in name.split("/"):
            return None
        if not stem or not extension or (name.startswith("__") and name.split("/")[0].endswith("__")):
            continue
        key = folder + slash + stem
        if key in samples and key != next(reversed(samples)):
            return None
        if extension.lower() in [*samples.get(key, []), "__key__"]:
            return None
        samples.setdefault(key, []).append(extension.lower())
    return samples or (None if names else {})


def test_samples_are_the_files_of_a_key(tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    draw = random.Random(0)
    for number in range(300):
        made = names(draw)
        path = make(tmp_path / f"{number}.tar", [(name, b"") for name in made])
        wanted = samples_of(made)
        outcomes["error" if wanted is None else "samples"] += 1
        if wanted is None:
            with pytest.raises(lk.ShardError, match=rf"{number}\.tar, offset "):
                read(path)
            continue
        assert {sample["__key__"]: list(sample)[1:] for sample in read(path)} == wanted
    assert outcomes["error"] > 50
    assert outcomes["samples"] > 150


def test_the_first_fault_is_the_one_named(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    damaged = member("c.cls", b"1")[:50] + b"?" + bytes(1000)
    for second, offset, says in (
        ("b.cls", 2048, "no tar header"),
        ("a.CLS", 1536, "already"),
        ("/b", 1536, "absolute"),
    ):
        path.write_bytes(member("a.cls", b"1") + member(second, b"1") + damaged)
        with pytest.raises(lk.ShardError, match=rf"x\.tar, offset {offset:,}: .*{says}"):
            read(path)
