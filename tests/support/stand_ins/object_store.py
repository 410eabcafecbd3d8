"""A slow object store on loopback, for benchmarks and tests: a subset of the APIs of S3, Google and Azure, over a folder.

    python tests/support/stand_ins/object_store.py PORT ROOT --latency 0.03 0.08 --slow 0.01 2 --connection 15e6 --total 60e6

Paths are /BUCKET/KEY, buckets are folders of ROOT. It answers GET (with one range), HEAD, PUT and ListObjectsV2 with up to 1,000 keys a
page. Google's XML API reads objects as S3 does; of the JSON API (/storage/v1/b/BUCKET/o/KEY) it answers what gcsfs asks to list, read
and write small objects. Of Azure it answers the reading of blobs, /ACCOUNT/CONTAINER/BLOB, where the account is a folder of ROOT.

Each answer waits for a latency between two bounds, in seconds, and a share of the requests for objects longer (`--slow`). `--connection` and `--total` limit bytes a second of a connection and of
all together. GET /__stats returns the requests since the last /__reset, and /__set?total=... changes a limit.
"""

import argparse
import asyncio
import contextlib
import email.utils
import hashlib
import json
import os
import random
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_CHUNK = 1 << 18  # bytes sent before the limits are looked at again
_PAGE = 1000  # keys
_AHEAD_S = 0.02  # that a connection may be early
_JSON_API = re.compile(r"/((?P<download>download)/|upload/)?storage/v1/b/(?P<bucket>[^/]+)/o(/(?P<key>.+))?")


@dataclass
class Limits:
    latency_s: tuple[float, float]
    connection: float  # bytes a second
    total: float
    slow: tuple[float, float] = (0.0, 0.0)  # share of the GETs of objects, and seconds that they wait longer


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes


@dataclass
class ObjectStore:
    """The store's folder, limits and statistics."""

    root: Path
    limits: Limits
    requests: list[dict[str, Any]] = field(default_factory=list)
    _free_at: float = 0.0  # when all bytes that were let go have passed the common line
    _random: random.Random = field(default_factory=lambda: random.Random(1))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection, one after another."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._answer(await _read(reader, writer), writer)
                await writer.drain()
        with contextlib.suppress(Exception):
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if request.path.startswith("/__"):
            _send(writer, request, "200 OK", self._control(request))
            return
        await asyncio.sleep(self._random.uniform(*self.limits.latency_s))
        google = _JSON_API.fullmatch(request.path)
        bucket, _, key = request.path.strip("/").partition("/")
        if google is not None:
            bucket, key = google["bucket"], google["key"] or ""
        content = request.body
        if request.method == "POST":
            key, content = _uploaded(request)
        noted = {"method": request.method, "path": request.path, "range": request.headers.get("range", ""), "bytes": 0}
        noted["begun_s"] = time.monotonic()
        self.requests.append(noted)
        if not key:
            noted["method"] = "LIST"
            if google is None:
                _send(writer, request, "200 OK", self._listing(bucket, request.query))
            elif (self.root / bucket).is_dir():
                _send(writer, request, "200 OK", self._json_listing(bucket, request.query))
            else:
                _send(writer, request, "404 Not Found", b"{}")
            return
        path = self.root / bucket / key
        if request.method in ("PUT", "POST"):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.part")
            part.write_bytes(content)
            part.replace(path)
            answer = b"" if google is None else json.dumps(_resource(bucket, key, path)).encode()
            _send(writer, request, "200 OK", answer, {"ETag": _etag(path, path.stat())})
        elif not path.is_file():
            _send(
                writer, request, "404 Not Found", b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>"
            )
        elif google is not None and not google["download"]:
            _send(writer, request, "200 OK", json.dumps(_resource(bucket, key, path)).encode())
        else:
            share, longer_s = self.limits.slow
            if request.method == "GET" and self._random.random() < share:
                await asyncio.sleep(longer_s)
            await self._send_object(writer, request, path, noted)

    async def _send_object(
        self, writer: asyncio.StreamWriter, request: Request, path: Path, noted: dict[str, Any]
    ) -> None:
        found = path.stat()
        size, etag = found.st_size, _etag(path, found)
        headers = {"ETag": etag, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        headers["Last-Modified"] = email.utils.formatdate(int(found.st_mtime), usegmt=True)
        if request.headers.get("if-match", etag).strip('"') != etag.strip('"'):
            _send(writer, request, "412 Precondition Failed", b"")
            return
        start, stop, status = 0, size, "200 OK"
        wanted = request.headers.get("range") or request.headers.get("x-ms-range", "")
        if wanted and request.method == "GET":
            first, _, last = wanted.partition("=")[2].partition("-")
            start = int(first) if first else max(0, size - int(last))
            stop = min(size, int(last) + 1) if first and last else size
            if start >= size:
                _send(writer, request, "416 Range Not Satisfiable", b"")
                return
            status = "206 Partial Content"
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        _send_head(writer, status, headers | {"Content-Length": str(stop - start)})
        if request.method == "HEAD":
            return
        own = time.monotonic()
        with path.open("rb") as file:
            file.seek(start)
            while start < stop:
                content = file.read(min(_CHUNK, stop - start))
                early = time.monotonic() - _AHEAD_S
                self._free_at = max(self._free_at, early) + len(content) / self.limits.total
                own = max(own, early) + len(content) / self.limits.connection
                if (wait := max(own, self._free_at) - time.monotonic()) > 0.002:
                    await asyncio.sleep(wait)
                writer.write(content)
                noted["bytes"] += len(content)
                start += len(content)
                await writer.drain()
        noted["ended_s"] = time.monotonic()

    def _control(self, request: Request) -> bytes:
        if request.path == "/__stats":
            return json.dumps(self.requests).encode()
        if request.path == "/__reset":
            self.requests.clear()
        elif request.path == "/__set":
            for name in ("connection", "total"):
                if name in request.query:
                    setattr(self.limits, name, float(request.query[name][0]))
            for name in ("latency_s", "slow"):
                if name in request.query:
                    first, second = map(float, request.query[name][0].split(","))
                    setattr(self.limits, name, (first, second))
        return b"{}"

    def _page(self, bucket: str, prefix: str, delimiter: str, after: str) -> tuple[list[str], list[str], bool]:
        """Return keys, folders, and whether more keys follow."""
        root = self.root / bucket
        files = (Path(folder, name) for folder, _, names in os.walk(root) for name in names if not name.startswith("."))
        keys = sorted(key for path in files if (key := str(path)[len(str(root)) + 1 :]).startswith(prefix))
        folders = {key: _folder(key, prefix, delimiter) for key in keys}
        found = [key for key in keys if not folders[key] and key > after]
        return found[:_PAGE], [] if after else sorted(set(folders.values()) - {""}), len(found) > _PAGE

    def _json_listing(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        prefix, delimiter, after = (query.get(name, [""])[0] for name in ("prefix", "delimiter", "pageToken"))
        page, folders, more = self._page(bucket, prefix, delimiter, after)
        items = [_resource(bucket, key, self.root / bucket / key) for key in page]
        found = {"kind": "storage#objects", "items": items, "prefixes": folders}
        return json.dumps(found | ({"nextPageToken": page[-1]} if more else {})).encode()

    def _listing(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        prefix, delimiter, after = (query.get(name, [""])[0] for name in ("prefix", "delimiter", "continuation-token"))
        page, folders, more = self._page(bucket, prefix, delimiter, after)
        lines = [f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"]
        lines.append(f"<MaxKeys>{_PAGE}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>")
        lines += [f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"] if more else []
        for key in page:
            path = self.root / bucket / key
            found = path.stat()
            lines.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{_changed(found)}</LastModified><ETag>{escape(_etag(path, found))}"
                f"</ETag><Size>{found.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            )
        lines += [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders]
        names = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
        return f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult {names}>{"".join(lines)}</ListBucketResult>'.encode()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
    method, target, _ = lines[0].split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    if "expect" in headers:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    size = int(headers.get("content-length", 0))
    body = await reader.readexactly(size) if size else b""
    parts = urlsplit(target)
    return Request(method, unquote(parts.path), parse_qs(parts.query, keep_blank_values=True), headers, body)


def _send_head(writer: asyncio.StreamWriter, status: str, headers: dict[str, str]) -> None:
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    writer.write("\r\n".join(lines).encode())


def _send(
    writer: asyncio.StreamWriter, request: Request, status: str, content: bytes, headers: dict[str, str] | None = None
) -> None:
    _send_head(
        writer, status, {"Content-Type": "application/xml", "Content-Length": str(len(content)), **(headers or {})}
    )
    if request.method != "HEAD":
        writer.write(content)


def _folder(key: str, prefix: str, delimiter: str) -> str:
    """Return the folder after the prefix that a key is in, with the delimiter at its end; empty if it is in none."""
    inside = key[len(prefix) :]
    return prefix + inside.partition(delimiter)[0] + delimiter if delimiter and delimiter in inside else ""


def _uploaded(request: Request) -> tuple[str, bytes]:
    """Return the key and the content of Google's multipart upload: a part of JSON, and then the content."""
    edge = b"\n--" + request.headers["content-type"].partition("boundary=")[2].strip('"').encode()
    described, content = request.body.removesuffix(edge + b"--").split(edge, 1)
    return json.loads(described.partition(b"\n\n")[2])["name"], content.partition(b"\n\n")[2]


def _resource(bucket: str, key: str, path: Path) -> dict[str, str]:
    """Return what Google's JSON API says of an object. Its entity tags are not those of the XML API."""
    found = path.stat()
    named = {"kind": "storage#object", "bucket": bucket, "name": key, "size": str(found.st_size)}
    times = {"updated": _changed(found), "timeCreated": _changed(found)}
    return named | times | {"etag": "json" + _etag(path, found).strip('"')}


def _changed(found: os.stat_result) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(int(found.st_mtime)))


def _etag(path: Path, found: os.stat_result) -> str:
    return '"' + hashlib.md5(f"{path.name} {found.st_mtime_ns} {found.st_size}".encode()).hexdigest() + '"'


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("root", type=Path)
    parser.add_argument("--latency", type=float, nargs=2, default=(0.03, 0.08), metavar="SECONDS")
    parser.add_argument("--slow", type=float, nargs=2, default=(0.0, 0.0), metavar=("SHARE", "SECONDS"))
    parser.add_argument("--connection", type=float, default=50e6, metavar="BYTES", help="a second, for each")
    parser.add_argument("--total", type=float, default=200e6, metavar="BYTES", help="a second, for all together")
    given = parser.parse_args()
    store = ObjectStore(given.root, Limits(tuple(given.latency), given.connection, given.total, tuple(given.slow)))
    server = await asyncio.start_server(store.serve, "127.0.0.1", given.port, limit=1 << 22, backlog=512)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
