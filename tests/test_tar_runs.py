"""Headers found many at once are those that a walk from one to the next finds, whatever lies in the files."""

import io
import random
import tarfile
from pathlib import Path

import pytest

from loaderkit.datasets import ShardError, tarwalk
from loaderkit.datasets.tarwalk import walk

KINDS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def archive(draw: random.Random, kind: int, members: int, inner: bytes) -> bytes:
    """Make an archive of files that look like archives themselves, with what breaks a run now and then."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as writer:
        for number in range(members):
            member = tarfile.TarInfo(f"{'d/' * draw.randrange(3)}{number:05d}.bin")
            content = draw.choice([b"", b"ustar" * 300, inner, inner[512:], b"x" * draw.randrange(1500), inner[:512]])
            member.size = len(content)
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
        return [found for chunk in walk(file, path.stat().st_size, str(path)) for found in chunk]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bulk", [1 << 13, 1 << 15, 1 << 21])
def test_runs_are_what_tarfile_finds(kind: str, bulk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tarwalk, "_BULK", bulk)
    monkeypatch.setattr(tarwalk, "_FEW", 4)
    monkeypatch.setattr(tarwalk, "_CHUNK", 8)  # after what breaks a run, soon look for the next
    runs = []
    real = tarwalk.find_run
    monkeypatch.setattr(tarwalk, "find_run", lambda blocks: runs.append(real(blocks)) or runs[-1])
    draw = random.Random(bulk)
    inner = archive(draw, tarfile.GNU_FORMAT, 2, b"")
    for number in range(12):
        path = tmp_path / f"{number}.tar"
        path.write_bytes(archive(draw, KINDS[kind], draw.randrange(1, 400), inner))
        assert found_by_walk(path) == found_by_tarfile(path)
    assert sum(len(names) for names, _, _ in runs) > 300  # else nothing was found many at once


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
