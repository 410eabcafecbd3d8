"""Which errors of reading pass by themselves, and how often and how long they are waited for."""

import errno
import logging
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})  # of HTTP, RFC 9110 and 6585
_TRANSIENT_ERRNO = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,  # also what s3fs makes of SlowDown and 503
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.EINTR,
        errno.EIO,  # also what s3fs makes of InternalError and 500
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.EPIPE,
        errno.ESTALE,  # a network file system's server came back
        errno.ETIMEDOUT,
    }
)
_logger = logging.getLogger("loaderkit")
_SYSTEM_RANDOM = random.SystemRandom()  # the global generator is the sample's


class _Recovered:
    """Logs what succeeded when it was tried again: a warning at most once a minute, so that many don't fill the log."""

    def __init__(self) -> None:
        self._quiet_until, self._since = 0.0, 0
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._unlock)  # the thread that holds it is not in the child

    def log(self, what: str, attempts: int, error: str) -> None:
        """Log that it did, after so many attempts."""
        with self._lock:
            self._since += 1
            now, since = time.monotonic(), self._since
            quiet = now < self._quiet_until
            if not quiet:
                self._quiet_until, self._since = now + 60, 0
        if quiet:
            _logger.info("%s: read at attempt %d, after %s", what, attempts, error)
            return
        _logger.warning(
            "%s: read at attempt %d, after %s (%d such reads in this process since the last warning; at most one a minute)",
            what,
            attempts,
            error,
            since,
        )

    def _unlock(self) -> None:
        self._lock = threading.Lock()


_recovered = _Recovered()


class TransientError(OSError):
    """An error that may pass: what raises it is tried again."""


def is_transient(error: BaseException) -> bool:
    """Say whether what failed may succeed when it is tried again.

    Timeouts, dropped and refused connections, bodies that end early, and the HTTP
    statuses 408, 425, 429, 500, 502, 503 and 504 are transient. So is an error raised `from` a transient one.
    """
    chain: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and seen not in chain:
        chain.append(seen)
        seen = seen.__cause__
    if any(isinstance(found, TransientError) for found in chain):
        return True
    # A status says more than what a library made of it: fsspec's FileNotFoundError may be a 503.
    statuses = [status for found in chain if (status := http_status(found)) is not None]
    return statuses[-1] in TRANSIENT_STATUS if statuses else any(map(_is_transient, chain))


def http_status(error: Any) -> int | None:
    """Return the HTTP status of an error of aiohttp, botocore, requests or urllib, if it has one."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    elif isinstance(error, _of("aiohttp", "ClientResponseError")):
        status = error.status
    elif isinstance(error, _of("urllib.error", "HTTPError")):
        status = error.code
    else:
        status = getattr(response, "status_code", None)
    return status if isinstance(status, int) and status >= 400 else None


@dataclass(frozen=True, kw_only=True)  # no slots: jsonargparse reads vars() of a default
class Retry:
    """How often something is tried that fails with a transient error.

    The wait before attempt n + 1 is drawn between half and all of `wait_s * 2 ** (n - 1)`, at most `longest_s`.

    Args:
        attempts: How often at most; 1 is never again.
        wait_s: Before the second attempt.
        longest_s: No wait is longer.
        total_s: No attempt begins later than this after the first.

    Raises:
        ValueError: If attempts is less than 1, or a time is negative.
    """

    attempts: int = 5
    wait_s: float = 0.25
    longest_s: float = 10.0
    total_s: float = 120.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.wait_s, self.longest_s, self.total_s) < 0:
            raise ValueError(f"{self}: wanted at least 1 attempt, and no negative times.")

    def call(
        self,
        function: Callable[[], T],
        *,
        transient: Callable[[BaseException], bool] = is_transient,
        what: str | None = None,
    ) -> T:
        """Return what the function returns.

        Args:
            function: What is tried.
            transient: Says which of its errors may pass.
            what: Names it in the log, where it has succeeded after it had failed.

        Raises:
            Exception: Its error, where that is not transient, or, with a note, that of the last attempt.
        """
        start = time.monotonic()
        last = ""
        for attempt in range(1, self.attempts + 1):
            try:
                result = function()
                if attempt > 1:
                    _recovered.log(what or "a read", attempt, last)
                return result
            except Exception as error:
                if not transient(error):
                    raise
                wait_s = self.pause_s(attempt)
                spent_s = time.monotonic() - start
                if attempt == self.attempts or spent_s + wait_s > self.total_s:
                    if attempt > 1:
                        error.add_note(f"loaderkit: tried {attempt} times in {spent_s:.1f} s.")
                    raise
                last = f"{type(error).__name__}: {error}"
                time.sleep(wait_s)
        raise RuntimeError("unreachable")

    def pause_s(self, attempt: int) -> float:
        """Draw how long to wait after that many failed attempts."""
        longest = min(self.longest_s, self.wait_s * 2.0 ** min(attempt - 1, 60))
        return longest * (0.5 + 0.5 * _SYSTEM_RANDOM.random())


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, (ConnectionError, TimeoutError, *_of("http.client", "IncompleteRead"))):
        return True
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_AGAIN
    refused = _of("ssl", "SSLCertVerificationError") + _of("aiohttp", "ClientSSLError", "InvalidURL")
    if isinstance(error, refused + _of("botocore.exceptions", "SSLError")):
        return False
    dropped = _of("aiohttp", "ClientConnectionError", "ClientPayloadError")
    dropped += _of("botocore.exceptions", "HTTPClientError", "ResponseStreamingError", "IncompleteReadError")
    dropped += _of("requests.exceptions", "ConnectionError", "Timeout", "ChunkedEncodingError")
    return isinstance(error, dropped) or (isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO)


def _of(module: str, *names: str) -> tuple[type[Any], ...]:
    """Return classes of a module that is loaded: else no error is one of them."""
    found = sys.modules.get(module)
    return tuple(getattr(found, name) for name in names if hasattr(found, name))
