"""Transient errors are tried again a bounded number of times; others are raised at once."""

import errno
import http.client
import random
import socket
import ssl
import time
import urllib.error
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.http_exceptions import ContentLengthError

from loaderkit.system.retry import Retry, TransientError, is_transient

QUICK = Retry(attempts=4, wait_s=0.001)


def response_error(status: int) -> aiohttp.ClientResponseError:
    return aiohttp.ClientResponseError(None, (), status=status)  # type: ignore[arg-type]


def raised_from(cause: BaseException, error: Exception | None = None) -> Exception:
    error = error or ValueError("a shard that can't be read")
    error.__cause__ = cause
    return error


KEY = ConnectionKey("host", 443, True, True, None, None, None)
TRANSIENT = [
    *(response_error(status) for status in (408, 429, 500, 502, 503, 504)),
    TransientError("cut"),
    ConnectionResetError(),
    http.client.RemoteDisconnected(),
    http.client.IncompleteRead(b"", 3),
    TimeoutError(),
    socket.gaierror(socket.EAI_AGAIN, "try again"),
    OSError(errno.ETIMEDOUT, "timed out"),
    OSError(errno.EIO, "an NFS server is away"),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ClientPayloadError("not all of the body"),
    aiohttp.ClientConnectorError(KEY, OSError(errno.ECONNREFUSED, "refused")),
    urllib.error.HTTPError("http://x", 503, "busy", None, None),  # type: ignore[arg-type]
    raised_from(ConnectionResetError()),
    raised_from(response_error(503), FileNotFoundError("as fsspec says")),
    raised_from(ContentLengthError("not enough data"), aiohttp.ClientPayloadError()),
]
PERMANENT = [
    *(response_error(status) for status in (400, 401, 403, 404, 410, 416, 501)),
    FileNotFoundError(errno.ENOENT, "no"),
    PermissionError(errno.EACCES, "no"),
    OSError(errno.ENOSPC, "full"),
    OSError("no number"),
    socket.gaierror(socket.EAI_NONAME, "no such host"),
    ssl.SSLCertVerificationError("not trusted"),
    aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError("not trusted")),
    urllib.error.HTTPError("http://x", 404, "gone", None, None),  # type: ignore[arg-type]
    ValueError("not JSON"),
    raised_from(KeyError("x")),
    raised_from(response_error(403), OSError(errno.EIO, "as s3fs says")),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=repr)
def test_transient_errors_are_recognised(error: BaseException) -> None:
    assert is_transient(error)


@pytest.mark.parametrize("error", PERMANENT, ids=repr)
def test_permanent_errors_are_recognised(error: BaseException) -> None:
    assert not is_transient(error)


@pytest.mark.parametrize(("code", "wanted"), [("SlowDown", True), ("NoSuchKey", False)])
def test_errors_of_s3_are_told_by_their_status(code: str, wanted: bool) -> None:
    exceptions = pytest.importorskip("botocore.exceptions", reason="botocore is not installed")
    status = 503 if wanted else 404
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert is_transient(exceptions.ClientError(response, "GetObject")) is wanted
    assert is_transient(exceptions.ReadTimeoutError(endpoint_url="http://x"))
    assert not is_transient(exceptions.NoCredentialsError())


class Failing:
    """Fails with each of the errors, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_transient_errors_are_tried_again_up_to_the_bound() -> None:
    for failures in range(4):
        function = Failing(*[TimeoutError() for _ in range(failures)])
        assert QUICK.call(function) == "done"
        assert function.calls == failures + 1
    function = Failing(*[TimeoutError("slow") for _ in range(4)])
    with pytest.raises(TimeoutError, match="slow") as caught:
        QUICK.call(function)
    assert function.calls == 4
    assert "tried 4 times in 0.0 s" in caught.value.__notes__[0]


def test_permanent_errors_are_raised_at_once() -> None:
    function = Failing(TimeoutError(), FileNotFoundError("no"))
    with pytest.raises(FileNotFoundError):
        QUICK.call(function)
    assert function.calls == 2


def test_no_attempt_begins_after_the_time_is_up() -> None:
    function = Failing(*[TimeoutError() for _ in range(99)])
    with pytest.raises(TimeoutError):
        Retry(attempts=99, wait_s=0.05, longest_s=0.05, total_s=0.2).call(function)
    assert 1 <= function.calls <= 9  # on a busy machine fewer


def test_waits_double_up_to_a_bound_and_vary() -> None:
    retry = Retry(wait_s=1, longest_s=5)
    for attempt, longest in enumerate([1, 2, 4, 5, 5], start=1):
        waits = [retry.pause_s(attempt) for _ in range(50)]
        assert longest / 2 <= min(waits) < max(waits) <= longest
    assert retry.pause_s(10**6) <= 5


def test_recoveries_are_warned_of_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic() + 1000  # later than any warning of another test
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with caplog.at_level("INFO", "loaderkit"):
        for second in (0, 1, 58, 2):
            now = now + second
            QUICK.call(Failing(TimeoutError("slow")), what="a shard")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "INFO", "WARNING"]
    assert "a shard: read at attempt 2, after TimeoutError: slow" in caplog.records[0].getMessage()


def test_waiting_draws_nothing_from_the_samples_generator() -> None:
    random.seed(1)
    before = random.getstate()
    QUICK.call(Failing(TimeoutError()))
    assert random.getstate() == before


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"wait_s": -1}, {"total_s": -0.1}])
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="wanted at least 1 attempt"):
        Retry(**wrong)
