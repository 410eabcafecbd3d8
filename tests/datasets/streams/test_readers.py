"""Readers of typical sources, each over real files, processes and servers: all samples, from any start, and what is wrong named."""

import bz2
import gzip
import io
import itertools
import json
import lzma
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from servers import Faulty

import loaderkit as lk

LINES = b'{"id": 0}\n{"id": 1}\n\n{"id": 2}\r\n{"id": 3}'


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress], ids=["plain", "gz", "bz2", "xz"])
@pytest.mark.parametrize("start", range(5))
def test_lines_are_read_from_any_start(pack: Any, start: int, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(pack(LINES))
    assert list(lk.LineReader()(str(path), start)) == [{"id": number} for number in range(start, 4)]
    assert len(list(lk.LineReader(parse=bytes.decode)(str(path), 0))) == 4
    with pytest.raises(ValueError, match="has 4 samples, 7 of it were read before"):
        list(lk.LineReader()(str(path), 7))


def test_readers_reach_files_through_their_storage(tmp_path: Path) -> None:
    """Its options go with the reader to the workers, and do not count for the state."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for number in range(4):
            info = tarfile.TarInfo(f"{number}.cls")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"%d" % number))
    for reader, content in ((lk.LineReader, gzip.compress(LINES)), (lk.TarReader, archive.getvalue())):
        server = Faulty(content, wants={"X-Key": "secret"})
        try:
            storage = lk.Storage({"headers": {"X-Key": "secret"}}, cache_dir=tmp_path, retry=lk.Retry(attempts=1))
            stream = lk.StreamDataset([server.url], reader(storage=storage), lanes=1)
            loader = lk.Loader(stream, None, num_workers=1, world=lk.World())
            assert len(list(loader)) == 4
            loader.close()
            assert "secret" not in repr(reader(storage=storage))
            with pytest.raises(PermissionError):
                list(
                    reader(storage=lk.Storage(cache_dir=tmp_path / "other", retry=lk.Retry(attempts=1)))(server.url, 0)
                )
        finally:
            server.close()


def test_a_cut_or_broken_file_is_named_with_the_sample(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(json.dumps({"id": number}).encode() + b"\n" for number in range(2000)), mtime=0)
    for content, wanted in ((whole[: len(whole) // 2], EOFError), (b'{"id": 0}\n{"id":\n', json.JSONDecodeError)):
        path = tmp_path / "cut"
        path.write_bytes(content)
        with pytest.raises(wanted) as caught:
            list(lk.Loader(lk.StreamDataset([str(path)], lk.LineReader(), lanes=1), 4, world=lk.World()))
        assert "while reading sample" in caught.value.__notes__[-1]
        assert str(path) in caught.value.__notes__[-1]


@pytest.mark.parametrize("reader", [lk.LineReader(), lk.LogReader()])
def test_lines_that_are_not_json_are_shown_with_the_way_out(reader: Any, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"GET /index.html\n")
    with pytest.raises(json.JSONDecodeError) as caught:
        list(reader(str(path), 0))
    (note,) = caught.value.__notes__
    assert "the line is b'GET /index.html\\n', wanted JSON. For other lines give parse=" in note


def write_tar(path: Path, mode: str, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, mode) as archive:
        folder = tarfile.TarInfo("data")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


MEMBERS = [(f"data/{row:03}.{ending}", b"%d" % row) for row in range(7) for ending in ("cls", "txt")]


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("start", [0, 1, 6, 7])
def test_packed_tar_is_read_from_any_start(mode: str, start: int, tmp_path: Path) -> None:
    """As TarDataset reads the plain archive."""
    path = tmp_path / "shard.tar"
    write_tar(path, mode, [*MEMBERS[:4], ("data/.hidden", b""), ("__meta__/a.json", b"{}"), *MEMBERS[4:]])
    plain = tmp_path / "plain.tar"
    write_tar(plain, "w", MEMBERS)
    wanted = list(lk.TarDataset(plain))
    assert len(wanted) == 7
    assert list(lk.TarReader()(str(path), start)) == wanted[start:]
    assert list(lk.TarReader(decode=None)(str(path), 6)) == [{"__key__": "data/006", "cls": b"6", "txt": b"6"}]


@pytest.mark.parametrize("name", ["/etc/a.txt", "data/../../a.txt"])
def test_a_hostile_tar_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "shard.tar.gz"
    write_tar(path, "w:gz", [(name, b"x")])
    with pytest.raises(ValueError, match="leads out of the archive"):
        list(lk.TarReader()(str(path), 0))
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("a.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(ValueError, match=r"'a.txt' is a link"):
        list(lk.TarReader()(str(path), 0))
    write_tar(path, "w:gz", [("a.txt", b"x"), ("a.TXT", b"y")])
    with pytest.raises(ValueError, match="its key has a file with this extension already"):
        list(lk.TarReader()(str(path), 0))
    write_tar(path, "w:gz", MEMBERS)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises((EOFError, tarfile.ReadError)):
        list(lk.TarReader()(str(path), 0))


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("start", [0, 3])
def test_a_sample_that_comes_in_two_halves_is_refused(mode: str, start: int, tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    write_tar(path, mode, [*MEMBERS, ("data/001.json", b"{}"), ("data/007.txt", b"7")])
    read = lk.TarReader()(str(path), start)
    assert [sample["__key__"] for sample in itertools.islice(read, 7 - start)] == [
        f"data/{n:03}" for n in range(start, 7)
    ]
    with pytest.raises(ValueError, match=r"'data/001.json': its key came before.*wanted a sample's files in sequence"):
        next(read)
    loader = lk.Loader(lk.StreamDataset([path], lk.TarReader()), 1, world=lk.World(), bad_samples=lk.BadSamples("skip"))
    with pytest.raises(
        lk.BadSamplesError, match=r"sample 7 of shard '.*' can't be read \(ValueError: .*its key came before"
    ):
        list(loader)


def test_a_plain_tar_that_is_cut_or_damaged_anywhere_is_refused(tmp_path: Path) -> None:
    """At a header as well, which tarfile takes for the archive's end."""
    path = tmp_path / "shard.tar"
    write_tar(path, "w", MEMBERS)
    content = path.read_bytes()
    end = 512 + len(MEMBERS) * 1024  # a directory's header, then a header and a block for each file
    assert content[end:] == bytes(len(content) - end)
    for size in [*range(0, end, 512), 700, 1023, end - 1, end]:
        path.write_bytes(content[:size])
        with pytest.raises(tarfile.ReadError):
            list(lk.TarReader()(str(path), 0))
        if size % 1024 == 512 and size < end:
            path.write_bytes(content[:size] + b"damaged" + content[size + 7 :])
            with pytest.raises(tarfile.ReadError, match="damaged"):
                list(lk.TarReader()(str(path), 0))
    path.write_bytes(content[: end + 512])  # the first half of the end mark, as other readers take it
    assert len(list(lk.TarReader()(str(path), 0))) == 7


def test_a_packed_tar_without_a_stream_names_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar.gz"
    write_tar(path, "w:gz", MEMBERS)
    with pytest.raises(lk.ShardError, match=r"lk.StreamDataset\(paths, lk.TarReader\(\)\)"):
        len(lk.TarDataset(path))
    lines = tmp_path / "lines.jsonl.gz"
    lines.write_bytes(gzip.compress(LINES))
    with pytest.raises(lk.ShardError, match=r"lk.StreamDataset\(paths, lk.LineReader\(\)\)"):
        len(lk.JsonlDataset(lines))


@pytest.mark.parametrize("size", [1, 4, 5])
@pytest.mark.parametrize("count", [0, 1, 8, 9, 20])
def test_pages_are_read_from_any_start_and_each_once(size: int, count: int) -> None:
    asked: list[int] = []

    def fetch(shard: str, page: int) -> list[int]:
        asked.append(page)
        return list(range(count))[page * size : (page + 1) * size]

    for start in range(count + 1):
        asked.clear()
        assert list(lk.PageReader(fetch, size)("a", start)) == list(range(start, count))
        assert asked == list(range(start // size, count // size + 1))
    with pytest.raises(ValueError, match="page 0 of 'a' has 3 samples, wanted at most size=2"):
        list(lk.PageReader(lambda shard, page: [1, 2, 3], 2)("a", 0))


def test_pages_are_shared_by_lanes() -> None:
    def fetch(shard: str, page: int) -> range:
        return range(103)[page * 5 : page * 5 + 5]

    stream = lk.StreamDataset(["a"], lk.PageReader(fetch, 5), lanes=4, share=4, block=5)
    assert sorted(stream) == list(range(103))


APPEND = """
import sys, time
with open(sys.argv[1], "ab", buffering=0) as log:
    for number in range(int(sys.argv[2]), int(sys.argv[3])):
        log.write(b'{"id": ')
        time.sleep(0.01)
        log.write(b'%d}\\n' % number)
"""


def ids_of(stream_of: lk.LogReader, path: Path, start: int = 0) -> list[int]:
    return [sample["id"] for sample in stream_of(str(path), start)]


def test_a_log_ends_at_what_was_there_and_half_lines_wait(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"id": 0}\n{"id": 1}\n{"id": 2')
    reading = lk.LogReader()(str(path), 0)
    assert next(reading) == {"id": 0}
    with path.open("ab") as log:
        log.write(b'2}\n{"id": 3}\n')
    with pytest.warns(UserWarning, match=r"LogReader: .*log ends in 8 bytes without a line end, which are left out"):
        assert [sample["id"] for sample in reading] == [1]  # the half line was one when the epoch began
    assert ids_of(lk.LogReader(), path, 2) == [22, 3]
    with pytest.raises(ValueError, match="has 4 samples, 9 of it were read before"):
        list(lk.LogReader()(str(path), 9))


def test_a_growing_log_is_followed_and_resumed_after_what_was_used(tmp_path: Path) -> None:
    """A process writes lines in halves; the reader never takes half a line, and ends when nothing comes."""
    path = tmp_path / "log"
    path.touch()
    writer = subprocess.Popen([sys.executable, "-c", APPEND, str(path), "0", "60"])
    try:

        def make() -> Any:
            stream = lk.StreamDataset([str(path)], lk.LogReader(idle_s=2), lanes=1)
            return lk.Loader(stream, 7, world=lk.World(), collate_fn=lambda batch: [each["id"] for each in batch])

        iterator = iter(first := make())
        head = [value for _ in range(4) for value in next(iterator)]
        assert head == list(range(28))
        then = make()
        then.load_state_dict(json.loads(json.dumps(first.state_dict())))
        rest = [value for batch in then for value in batch]
        assert head + rest == list(range(60))
        assert writer.wait(60) == 0
    finally:
        writer.kill()
        writer.wait()


def test_a_quiet_log_ends_after_its_time(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"id": 0}\n{"id"')
    begun = time.monotonic()
    with pytest.warns(UserWarning, match="ends in 5 bytes without a line end"):
        assert ids_of(lk.LogReader(idle_s=0.3), path) == [0]
    assert time.monotonic() - begun >= 0.3
    adding = threading.Timer(0.2, lambda: path.write_bytes(b'{"id": 0}\n{"id": 1}\n'))
    adding.start()
    assert ids_of(lk.LogReader(idle_s=2), path) == [0, 1]
    adding.join()


def test_what_grows_is_not_shuffled() -> None:
    with pytest.raises(ValueError, match=r"shuffle=True, and the reader LogReader.* reads files that grow"):
        lk.StreamDataset(["a"], lk.LogReader(), shuffle=True)
    for reader in (lk.LineReader(), lk.TarReader(), lk.LogReader()):
        with pytest.raises(ValueError, match="can't skip"):
            lk.StreamDataset(["a"], reader, share=2)
