"""Headers found many at once are those that a walk from one to the next finds, whatever lies in the files."""

import io
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.tar import runs as tarruns
from loaderkit.datasets.tar import walk as tarwalk
from loaderkit.datasets.tar.headers import find_run
from loaderkit.datasets.tar.walk import walk

KINDS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def archive(draw: random.Random, kind: int, members: int, inner: bytes) -> bytes:
    """Make an archive of files that look like archives themselves, with what breaks a run now and then."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as writer:
        for number in range(members):
            member = tarfile.TarInfo(f"{'d/' * draw.randrange(3)}{number:05d}.bin")
            content = draw.choice([b"", b"ustar" * 300, inner, inner[512:], b"x" * draw.randrange(1500), inner[:512]])
            member.size = len(content)
            member.mtime = draw.choice(
                [1763728000, 1763728000.25]
            )  # the second in an extended header, where there are any
            if kind != tarfile.USTAR_FORMAT and draw.random() < 0.02:
                member.name = "n" * 120 + member.name  # an extended header goes before
            if draw.random() < 0.02:
                member.type, member.size, content = tarfile.DIRTYPE, 0, b""
            writer.addfile(member, io.BytesIO(content))
    return file.getvalue()


def found_by_tarfile(path: Path) -> list[tuple[bytes, int, int]]:
    with tarfile.open(path) as reader:
        return [(member.name.encode(), member.offset_data, member.size) for member in reader if member.isfile()]


def found_by_walk(path: Path) -> list[tuple[bytes, int, int]]:
    with path.open("rb") as file:
        chunks = list(walk(file, path.stat().st_size, str(path)))  # all are kept, as for grouping
    return [found for chunk in chunks for found in chunk]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bulk", [1 << 13, 1 << 15, 1 << 21])
def test_runs_are_what_tarfile_finds(kind: str, bulk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tarruns, "_BULK", bulk)
    monkeypatch.setattr(tarwalk, "_FEW", 4)
    monkeypatch.setattr(tarwalk, "_CHUNK", 8)  # after what breaks a run, soon look for the next
    runs = []
    real = tarruns.find_run
    monkeypatch.setattr(tarruns, "find_run", lambda *found: runs.append(real(*found)) or runs[-1])
    draw = random.Random(bulk)
    inner = archive(draw, tarfile.GNU_FORMAT, 2, b"")
    for number in range(12):
        path = tmp_path / f"{number}.tar"
        path.write_bytes(archive(draw, KINDS[kind], draw.randrange(1, 400), inner))
        assert found_by_walk(path) == found_by_tarfile(path)
    assert sum(len(files) for files, _ in runs) > 300  # else nothing was found many at once


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("apart", ["bulk", "one by one"])
def test_members_of_all_sizes_are_what_tarfile_finds(
    kind: str, apart: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes around that of a block, and large; times in extended headers of each file or of none."""
    monkeypatch.setattr(tarruns, "_SMALL", 1 << 30 if apart == "bulk" else -1)
    monkeypatch.setattr(tarruns, "_BULK", 1 << 14)
    ways = []
    for name in ("_in_bulk", "_one_by_one"):
        real = getattr(tarruns.RunReader, name)
        monkeypatch.setattr(
            tarruns.RunReader, name, lambda self, *at, real=real, name=name: ways.append(name) or real(self, *at)
        )
    runs = []
    find = tarruns.find_run
    monkeypatch.setattr(tarruns, "find_run", lambda *found: runs.append(find(*found)) or runs[-1])
    draw = random.Random(1)
    for time in (1763728000, 1763728000.25):
        path = tmp_path / f"{time}.tar"
        with tarfile.open(path, "w", format=KINDS[kind]) as writer:
            for number in range(600):
                member = tarfile.TarInfo(f"{number:05d}.bin")
                member.size = draw.choice([0, 1, 511, 512, 513, 1024, 5000, 70_000])
                member.mtime = time
                writer.addfile(member, io.BytesIO(draw.choice([b"ustar\0", b"\0"]) * member.size))
        runs.clear()
        found = found_by_walk(path)
        assert len(found) == 600
        assert found == found_by_tarfile(path)
        assert sum(len(files) for files, _ in runs) > 500
    assert set(ways) == {"_in_bulk" if apart == "bulk" else "_one_by_one"}


def test_what_else_an_extended_header_says_is_not_passed_over(tmp_path: Path) -> None:
    """Records that are no time, also damaged ones, are read one by one, within a run of those that are."""
    for number, record in enumerate(
        (b"15 path=b/name\n", b"12 mtime=12\n", b"99 mtime=12\n", b"12 path==ab\n", b"13 mtimes=12\n")
    ):
        path = tmp_path / f"{number}.tar"
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as writer:
            for place in range(300):
                if place == 200:
                    extended = tarfile.TarInfo("pax")
                    extended.type, extended.size = tarfile.XHDTYPE, len(record)
                    writer.addfile(extended, io.BytesIO(record))
                member = tarfile.TarInfo(f"{place:05d}.cls")
                member.mtime = 1.5
                writer.addfile(member)
        if record.startswith(b"99"):
            with pytest.raises(ShardError, match="a damaged PAX header"):
                found_by_walk(path)
        else:
            assert [name for name, _, _ in found_by_walk(path)][200] == {0: b"b/name", 3: b"=ab"}.get(
                number, b"00200.cls"
            )
            assert found_by_walk(path) == found_by_tarfile(path)


@pytest.mark.parametrize(
    ("size", "checksum", "quick"),
    [
        ("%011o\0", "%06o\0 ", True),
        ("%011o ", "%06o \0", True),
        ("%011o\0", "%07o\0", True),
        ("%011o\0", "%07o ", True),
        ("%012o", "%06o\0 ", False),
        ("%11o\0", "%06o\0 ", False),
        ("%011o\0", "%08o", False),
        ("%011o\0", "%6o\0 ", False),
    ],
)
def test_numbers_are_read_in_each_way_of_writing_them(size: str, checksum: str, quick: bool, tmp_path: Path) -> None:
    """The usual ways many at once, the others one by one."""
    content = bytearray(archive(random.Random(0), tarfile.USTAR_FORMAT, 300, b"inner" * 300))
    path = tmp_path / "x.tar"
    path.write_bytes(content)
    members = found_by_tarfile(path)
    assert len(members) > 250
    for _, place, found in members:
        header = bytearray(content[place - 512 : place])
        header[124:136] = (size % found).encode()
        header[148:156] = b" " * 8
        header[148:156] = (checksum % sum(header)).encode()
        content[place - 512 : place] = header
    path.write_bytes(content)
    assert found_by_tarfile(path) == found_by_walk(path) == members
    rows = np.frombuffer(b"".join(content[place - 512 : place] for _, place, _ in members), dtype=np.uint8)
    nothing, at = np.empty((0, 512), dtype=np.uint8), np.zeros(1, dtype=np.int64)
    for row in rows.reshape(-1, 1, 512):
        assert len(find_run(row, nothing, at)[0]) == quick


@pytest.mark.parametrize("field", [b"-0000001000", b"-0000002000", b"0000000_010", b"+0000000010", b"99999999999"])
@pytest.mark.parametrize("apart", [1 << 30, -1])
def test_sizes_that_are_none_end_a_run(
    field: bytes, apart: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tarruns, "_SMALL", apart)
    content = bytearray(archive(random.Random(0), tarfile.USTAR_FORMAT, 300, b""))
    path = tmp_path / "x.tar"
    path.write_bytes(content)
    offset = found_by_tarfile(path)[150][1] - 512
    header = content[offset : offset + 124] + field + content[offset + 135 : offset + 512]
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content[offset : offset + 512] = header
    path.write_bytes(content)
    with pytest.raises(ShardError, match=f"x.tar, offset {offset:,}: a header with the size"):
        found_by_walk(path)


@pytest.mark.parametrize("place", [5, 60, 150, 299])
def test_damage_within_a_run_is_an_error_at_its_offset(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tarwalk, "_FEW", 4)
    path = tmp_path / "x.tar"
    content = archive(random.Random(0), tarfile.USTAR_FORMAT, 300, b"")
    path.write_bytes(content)
    members = found_by_tarfile(path)
    offset = members[min(place, len(members) - 1)][1] - 512
    for at in (0, 100, 126, 148, 156, 257, 345, 500):
        damaged = bytearray(content)
        damaged[offset + at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ShardError, match=f"x.tar, offset {offset:,}: "):
            found_by_walk(path)
    for size in (offset + 100, offset + 512 + max(0, members[min(place, len(members) - 1)][2] - 1)):
        path.write_bytes(content[:size])
        with pytest.raises(ShardError, match=r"x\.tar, offset"):
            found_by_walk(path)


def test_more_headers_than_were_looked_for_are_taken_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty files behind large ones lie closer than those before let expect; a directory breaks the run."""
    monkeypatch.setattr(tarruns, "_MOST", 64)
    monkeypatch.setattr(tarruns, "_BULK", 1 << 15)
    monkeypatch.setattr(tarwalk, "_FEW", 4)
    monkeypatch.setattr(tarwalk, "_CHUNK", 4)
    counts = []
    real = tarruns.RunReader._in_bulk
    monkeypatch.setattr(
        tarruns.RunReader, "_in_bulk", lambda *given: counts.append(len((found := real(*given))[2])) or found
    )
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as writer:
        for empty in (64, 130):
            for number in range(30 + empty + 1):
                member = tarfile.TarInfo(f"{empty}-{number:05d}.bin")
                member.size = 4000 if number < 30 else 0
                member.type = tarfile.DIRTYPE if number == 30 + empty else tarfile.REGTYPE
                writer.addfile(member, io.BytesIO(bytes(member.size)))
    found = found_by_walk(path)
    assert len(found) == 30 + 64 + 30 + 130
    assert found == found_by_tarfile(path)
    assert max(counts) > 64


def test_a_large_file_alone_among_small_ones_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read later goes to the same memory."""
    monkeypatch.setattr(tarwalk, "_FEW", 4)
    monkeypatch.setattr(tarruns, "_LEAST", 4)
    monkeypatch.setattr(tarruns, "_MOST", 16)
    runs = []
    find = tarruns.find_run
    monkeypatch.setattr(tarruns, "find_run", lambda *found: runs.append(find(*found)) or runs[-1])
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as writer:
        for number in range(1000):
            member = tarfile.TarInfo(f"{number:05d}.bin")
            member.size = 300_000 if number % 37 == 36 else 1
            writer.addfile(member, io.BytesIO(bytes(member.size)))
    assert found_by_walk(path) == found_by_tarfile(path)
    assert sum(len(files) == 1 for files, _ in runs) > 5  # else the law above is about nothing


def pictures(path: Path, odd: dict[int, int], time: float, kind: int) -> None:
    """Write pairs of a class and a picture; the classes of odd ones have other sizes."""
    draw = random.Random(0)
    with tarfile.open(path, "w", format=kind) as writer:
        for number in range(400):
            for extension, size in (("cls", odd.get(number, 1)), ("jpg", draw.randrange(9_000, 30_000))):
                member = tarfile.TarInfo(f"{number:05d}.{extension}")
                member.size, member.mtime = size, time
                writer.addfile(member, io.BytesIO(b"ustar\0" * (size // 6 + 1)))


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many headers each run of windows that were taken to be like others gave."""
    monkeypatch.setattr(tarwalk, "_FEW", 4)
    found: list[int] = []
    find = tarruns.RunReader._alike

    def note(self, *given):
        headers, contents, places = find(self, *given)
        found.append(len(headers))
        return headers, contents, places

    monkeypatch.setattr(tarruns.RunReader, "_alike", note)
    return found


@pytest.mark.parametrize("odd", [{}, {200: 0}, {200: 513}, {120: 600, 121: 5000, 300: 70_000}, {399: 600}])
@pytest.mark.parametrize("time", [0, 1.5])
def test_files_that_lie_alike_are_what_tarfile_finds(
    odd: dict[int, int], time: float, tmp_path: Path, alike: list[int]
) -> None:
    path = tmp_path / "x.tar"
    pictures(path, odd, time, tarfile.PAX_FORMAT)
    found = found_by_walk(path)
    assert len(found) == 800
    assert found == found_by_tarfile(path)
    assert sum(alike) > 150  # else few were looked for in this way


@pytest.mark.parametrize("field", [b"-0000001000", b"-7777777777", b"0000002_010", b"+0000020010", b"77777777777"])
@pytest.mark.parametrize("member", [600, 601])
def test_sizes_that_are_none_are_named_among_files_that_lie_alike(
    field: bytes, member: int, tmp_path: Path, alike: list[int]
) -> None:
    path = tmp_path / "x.tar"
    pictures(path, {}, 0, tarfile.USTAR_FORMAT)
    offset = found_by_tarfile(path)[member][1] - 512
    content = bytearray(path.read_bytes())
    header = content[offset : offset + 124] + field + content[offset + 135 : offset + 512]
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content[offset : offset + 512] = header
    path.write_bytes(content)
    with pytest.raises(ShardError, match=rf"x\.tar, offset {offset:,}: "):
        found_by_walk(path)
    assert sum(alike) > 250


def test_damage_among_files_that_lie_alike_is_an_error_at_its_offset(tmp_path: Path, alike: list[int]) -> None:
    path = tmp_path / "x.tar"
    pictures(path, {}, 0, tarfile.USTAR_FORMAT)
    content, members = path.read_bytes(), found_by_tarfile(path)
    for member in (300, 601, 799):
        offset = members[member][1] - 512
        for at in (0, 126, 148, 156, 257, 345, 500):
            damaged = bytearray(content)
            damaged[offset + at] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(ShardError, match=rf"x\.tar, offset {offset:,}: "):
                found_by_walk(path)
        path.write_bytes(content[: offset + 512 + members[member][2] - 1])
        with pytest.raises(ShardError, match=rf"x\.tar, offset {offset:,}: "):
            found_by_walk(path)
    assert sum(alike) > 250
