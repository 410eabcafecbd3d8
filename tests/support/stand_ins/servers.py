"""Servers on loopback for tests of remote shards: nginx, an S3 API, and one that fails as it is told; all are stopped."""

import contextlib
import http.client
import http.server
import itertools
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  log_format requests '$request_method $uri $status "$http_range" $body_bytes_sent';
  access_log {folder}/access.log requests;
  server {{
    listen 127.0.0.1:{port}; root {root}; autoindex on;
    location /secret/ {{ return 403; }}
  }}
}}
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[None]:
    """Run a server until it is no longer needed; ready when its port answers."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"{command[0]} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait(10)


class Nginx:
    """A running nginx over a folder."""

    def __init__(self, url: str, root: Path, log: Path) -> None:
        self.url, self.root, self._log = url, root, log

    def requests(self, method: str = "GET") -> list[str]:
        """Return the lines of its log so far: method, path, status, range, bytes."""
        time.sleep(0.1)  # it writes a line after the answer
        return [line for line in self._log.read_text().splitlines() if line.startswith(method)]


@contextlib.contextmanager
def run_nginx(folder: Path) -> Iterator[Nginx]:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    root, port = folder / "root", free_port()
    root.mkdir()
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, root=root, port=port))
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with running(command, port, folder / "output.log"):
        yield Nginx(f"http://127.0.0.1:{port}", root, folder / "access.log")


@contextlib.contextmanager
def run_s3(folder: Path) -> Iterator[dict[str, Any]]:
    """Run moto's S3 server; yields the options of a file system."""
    for package in ("moto", "s3fs", "flask", "flask_cors"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install '.[test]'")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, port, folder / "moto.log"):
        yield {"key": "test", "secret": "test", "endpoint_url": f"http://127.0.0.1:{port}"}


AZURE_ACCOUNT = "devstoreaccount1"  # of Azurite, with a key that its documentation gives
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextlib.contextmanager
def run_azure(folder: Path) -> Iterator[int]:
    """Run Azurite, Microsoft's emulator of Azure Blob Storage; yields its port."""
    installed = Path(__file__).parents[3] / ".azurite" / "node_modules" / ".bin"
    program = shutil.which("azurite-blob") or shutil.which("azurite-blob", path=str(installed))
    if program is None:
        pytest.skip("Azurite is not installed: npm install --prefix .azurite azurite")
    port = free_port()
    where = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    with running(
        [program, *where, "--silent", "--skipApiVersionCheck", "--disableTelemetry"], port, folder / "azurite.log"
    ):
        yield port


class SlowStore:
    """A running store of `object_store.py` over a folder, whose subfolders are buckets."""

    def __init__(self, root: Path, port: int) -> None:
        self.root, self.url = root, f"http://127.0.0.1:{port}"
        self.options = {"key": "test", "secret": "test", "endpoint_url": self.url}

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests since `reset`: method (also LIST), path, range and bytes sent."""
        with urllib.request.urlopen(f"{self.url}/__stats", timeout=10) as answer:
            return list(json.load(answer))

    def reset(self) -> None:
        urllib.request.urlopen(f"{self.url}/__reset", timeout=10).close()

    def set(self, **limits: float) -> None:
        """Change `total` or `connection`, in bytes a second."""
        given = "&".join(f"{name}={value}" for name, value in limits.items())
        urllib.request.urlopen(f"{self.url}/__set?{given}", timeout=10).close()


@contextlib.contextmanager
def run_store(folder: Path, latency_s: float = 0.0, connection: float = 1e9, total: float = 1e9) -> Iterator[SlowStore]:
    pytest.importorskip("s3fs")
    root, port = folder / "buckets", free_port()
    root.mkdir()
    program = Path(__file__).with_name("object_store.py")
    limits = ["--latency", str(latency_s), str(latency_s), "--connection", str(connection), "--total", str(total)]
    with running([sys.executable, str(program), str(port), str(root), *limits], port, folder / "store.log"):
        yield SlowStore(root, port)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


class Served:
    """A server of this process."""

    def serve(self, handler: type[_Handler], path: str = "") -> None:
        """Answer requests, on a port of its own, until it is closed."""
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{path}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class Faulty(Served):
    """A server that answers GETs with the faults it is given, one after another, then properly.

    The fault "late" answers when the server closes. It refuses requests without the headers that it `wants`.
    """

    def __init__(self, content: bytes, wants: Mapping[str, str] | None = None) -> None:
        self.content, self.etag = content, '"1"'
        self.faults: list[str] = []
        self.gets: list[str] = []
        self._closes = threading.Event()
        faulty = self

        class Handler(_Handler):
            def do_HEAD(self) -> None:
                self.answer(200 if self.is_allowed() else 403, faulty.content, body=False)

            def do_GET(self) -> None:
                if self.path.endswith("/folder.lkindex"):  # there is one file
                    self.answer(404, b"")
                    return
                given = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
                faulty.gets.append(self.headers.get("Range") or "")
                fault = faulty.faults.pop(0) if faulty.faults else ""
                if fault == "late":
                    faulty._closes.wait(100)
                part = faulty.content[int(given[1]) : int(given[2]) + 1] if given else faulty.content
                if fault.isdigit() or not self.is_allowed():
                    self.answer(int(fault or 403), b"a fault")
                elif fault == "no ranges":
                    self.answer(200, faulty.content)
                else:
                    self.answer(206 if given else 200, part, fault=fault)

            def is_allowed(self) -> bool:
                return all(self.headers.get(name) == value for name, value in (wants or {}).items())

            def answer(self, status: int, content: bytes, *, body: bool = True, fault: str = "") -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("ETag", faulty.etag)
                self.end_headers()
                if fault == "stall":
                    time.sleep(1.5)
                if body:
                    self.wfile.write(content[: len(content) // 2] if fault else content)
                if fault:
                    self.close_connection = True
                if fault == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

        self.serve(Handler, "/data.jsonl")

    def close(self) -> None:
        self._closes.set()
        super().close()


class TokenServer(Served):
    """A server of this process that gives a new access token for each request, as Google's does to service accounts."""

    def __init__(self, lasts_s: int) -> None:
        numbers = itertools.count(1)

        class Handler(_Handler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                token = {"access_token": f"token-{next(numbers)}", "expires_in": lasts_s, "token_type": "Bearer"}
                content = json.dumps(token).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self.serve(Handler, "/token")


class FaultyProxy(Served):
    """Stands before a server, and answers what is asked of objects with the faults it is given, one after another."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.faults: list[str] = []
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []  # of what was asked
        proxy = self

        class Handler(_Handler):
            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = urllib.parse.unquote(self.path.partition("?")[0])
                of_object = "." in path and not path.endswith("/folder.lkindex")  # else it lists a bucket
                fault = proxy.faults.pop(0) if of_object and proxy.faults else ""
                if of_object:
                    proxy.asked.append(f"{self.command} {fault}")
                    proxy.headers.append(dict(self.headers))
                if fault == "drop":
                    self.close_connection = True
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    return
                if fault and fault != "truncate":
                    status, code = fault.split()
                    error = f"<Error><Code>{code}</Code><Message>as it was told</Message></Error>".encode()
                    self.answer(int(status), {"Content-Type": "application/xml"}, error)
                    return
                with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
                    connection.request(self.command, self.path, body or None, dict(self.headers))
                    found = connection.getresponse()
                    status, headers, content = found.status, dict(found.getheaders()), found.read()
                with contextlib.suppress(ConnectionError):  # some clients ask for two things, and take the first
                    self.answer(status, headers, content, cut=fault == "truncate")

            do_HEAD = do_GET = do_PUT = do_POST = forward  # noqa: N815

            def answer(self, status: int, headers: dict[str, str], content: bytes, *, cut: bool = False) -> None:
                self.send_response_only(status)
                headers = {"content-length": str(len(content))} | {name.lower(): headers[name] for name in headers}
                for name, value in headers.items():  # the length of a HEAD: what a GET would give
                    if name not in ("transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content[: len(content) // 2] if cut else content)
                self.close_connection = cut

        self.serve(Handler)
