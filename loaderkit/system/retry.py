"""Which errors are temporary, and how often and when a read that fails with one is tried again."""

import errno
import logging
import random
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})  # of HTTP, RFC 9110 and 6585
_TRANSIENT_ERRNO = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,  # s3fs raises it for SlowDown and 503
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.EINTR,
        errno.EIO,  # s3fs raises it for InternalError and 500
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.EPIPE,
        errno.ESTALE,  # the server of a network file system restarted
        errno.ETIMEDOUT,
    }
)
_logger = logging.getLogger("loaderkit")
_SYSTEM_RANDOM = random.SystemRandom()  # the global generator belongs to the sample


class _Warned:
    until = 0.0  # time.monotonic(); recoveries before it are logged as info


class TransientError(OSError):
    """A temporary error: the same operation may succeed later."""


def is_transient(error: BaseException) -> bool:
    """Return whether a failed operation may succeed if it is tried again.

    Timeouts, dropped and refused connections, bodies that end early, and the HTTP statuses 408, 425, 429, 500, 502, 503
    and 504 are transient. So is an error that was raised `from` a transient one.
    """
    chain: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and seen not in chain:
        chain.append(seen)
        seen = seen.__cause__
    if any(isinstance(found, TransientError) for found in chain):
        return True
    # The status decides if there is one: fsspec may raise FileNotFoundError for a 503.
    statuses = [status for found in chain if (status := http_status(found)) is not None]
    return statuses[-1] in TRANSIENT_STATUS if statuses else any(map(_is_transient, chain))


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status of an error of aiohttp, botocore, gcsfs, requests or urllib, if it has one."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    elif isinstance(error, _of("aiohttp", "ClientResponseError")):
        status = error.status
    elif isinstance(error, _of("urllib.error", "HTTPError") + _of("gcsfs.retry", "HttpError")):
        status = error.code
    else:
        status = getattr(response, "status_code", None)
    return status if isinstance(status, int) and status >= 400 else None


@dataclass(frozen=True, kw_only=True)  # no slots: jsonargparse reads vars() of a default
class Retry:
    """How often to try again after a transient error, and how long to wait.

    The wait before attempt n + 1 is random, between half and all of `wait_s * 2 ** (n - 1)`, and at most `longest_s`.

    Args:
        attempts: The largest number of attempts; 1 means that nothing is tried again.
        wait_s: Seconds before the second attempt.
        longest_s: The longest wait in seconds.
        total_s: No attempt begins later than this many seconds after the first.

    Raises:
        ValueError: If attempts is less than 1, or a time is negative.

    Examples:
        >>> patient = lk.Retry(attempts=10, longest_s=60, total_s=600)
        >>> storage, bad_samples = lk.Storage(retry=patient), lk.BadSamples("skip", retry=patient)
        >>> answers = iter([TimeoutError(), "content"])
        >>> def read():
        ...     answer = next(answers)
        ...     if isinstance(answer, Exception):
        ...         raise answer
        ...     return answer
        >>> lk.Retry(wait_s=0).call(read)
        'content'
    """

    attempts: int = 5
    wait_s: float = 0.25
    longest_s: float = 10.0
    total_s: float = 120.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.wait_s, self.longest_s, self.total_s) < 0:
            raise ValueError(f"{self}: wanted at least 1 attempt and no negative time.")

    def call(
        self,
        function: Callable[[], T],
        *,
        transient: Callable[[BaseException], bool] = is_transient,
        what: str | None = None,
    ) -> T:
        """Call a function until it succeeds, and return its result.

        Args:
            function: The operation.
            transient: Returns whether an error is temporary.
            what: Names the operation in the log when it succeeds after a failure.

        Raises:
            Exception: The function's error if it is not transient, or its last one, with a note about the attempts.
        """
        start = time.monotonic()
        last = ""
        for attempt in range(1, self.attempts + 1):
            try:
                result = function()
                if attempt > 1:
                    _log_recovery(what or "a read", attempt, last)
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
        """Return a random wait in seconds after this many failed attempts."""
        longest = min(self.longest_s, self.wait_s * 2.0 ** min(attempt - 1, 60))
        return longest * (0.5 + 0.5 * _SYSTEM_RANDOM.random())


def _log_recovery(what: str, attempts: int, error: str) -> None:
    """Log a success after failures: as a warning at most once a minute in each process, otherwise as info."""
    now = time.monotonic()
    level = logging.INFO if now < _Warned.until else logging.WARNING
    if level == logging.WARNING:
        _Warned.until = now + 60
    _logger.log(level, "%s: read at attempt %d, after %s (at most one such warning a minute)", what, attempts, error)


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
    """Return classes of a module; none if it is not loaded, since then no error can be one of them."""
    found = sys.modules.get(module)
    return tuple(getattr(found, name) for name in names if hasattr(found, name))
