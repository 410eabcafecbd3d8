"""Headers of a tar archive, many at once: which are right, and which follow each other."""

import numpy as np
import numpy.typing as npt

from loaderkit.seeding import Int64Array

BLOCK = 512

_OCTAL = 8 ** np.arange(10, -1, -1, dtype=np.int64)


def find_run(blocks: npt.NDArray[np.uint8]) -> tuple[list[bytes], Int64Array, Int64Array]:
    """Return the ordinary headers at the start of blocks (B, 512), each where the one before it says.

    Ordinary are files of the ustar and GNU formats with octal sizes, whose names stand in one field, and
    whose checksums are right. What looks like a header within a file is passed over, as
    the file's own header leads past it.

    Returns:
        Their names, offsets in bytes (N,) and sizes (N,).
    """
    found = np.flatnonzero(blocks[:, 257] == ord("u"))
    headers = blocks[found]
    digits = headers[:, 124:135].astype(np.int64) - ord("0")
    ordinary = ((digits >= 0) & (digits < 8)).all(axis=1) & (headers[:, 135] & ~np.uint8(32) == 0)
    ordinary &= (headers[:, 156] == ord("0")) | (headers[:, 156] == 0)
    ordinary &= (headers[:, 257:262] == np.frombuffer(b"ustar", dtype=np.uint8)).all(axis=1) & (headers[:, 345] == 0)
    ordinary &= have_checksums(headers)
    sizes = digits @ _OCTAL
    after = found + 1 + (sizes + BLOCK - 1) // BLOCK
    hops = np.searchsorted(found, after)
    hops[after != np.append(found, -1)[hops]] = len(found)  # nothing is known there
    hops[~ordinary] = -1
    taken = _follow(hops, starts=len(found) > 0 and found[0] == 0)
    names = headers[taken, :100].reshape(-1).view("S100").tolist()
    if b"\0" in b"".join(names):
        names = [name.partition(b"\0")[0] for name in names]
    return names, found[taken] * BLOCK, sizes[taken]


def _follow(hops: Int64Array, *, starts: bool) -> Int64Array:
    """Return the places (N,) that hops lead through from the first on, up to one of -1 or beyond the end."""
    if not starts:
        return np.empty(0, dtype=np.int64)
    step = hops == np.arange(1, len(hops) + 1)
    if step.all():
        return np.arange(len(hops))
    taken, at, table = [], 0, hops.tolist()
    while at < len(table) and table[at] >= 0:
        taken.append(at)
        at = table[at]
    return np.array(taken, dtype=np.int64)


def have_checksums(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Say which headers (N, 512) have the checksum that they name."""
    words = blocks.view(np.uint64)
    used = np.flatnonzero(np.bitwise_or.reduce(words, axis=0)) if len(words) else np.empty(0, dtype=np.int64)
    words = np.ascontiguousarray(words[:, used].T)  # most of a header is zeros
    low = np.uint64(0x00FF00FF00FF00FF)
    lanes = ((words & low) + ((words >> np.uint64(8)) & low)).sum(axis=0)  # four of 16 bits, each at most 32,640
    found = lanes.view(np.uint16).reshape(-1, 4).sum(axis=1, dtype=np.int64)
    field = blocks[:, 148:156].astype(np.int64)
    found += 8 * ord(" ") - field.sum(axis=1)  # the field itself counts as spaces
    named, digits = np.zeros(len(blocks), dtype=np.int64), np.zeros(len(blocks), dtype=np.int64)
    for column in field.T:
        digit = (column >= ord("0")) & (column < ord("8"))
        named = np.where(digit, named * 8 + column - ord("0"), named)
        digits += digit
    return np.asarray((named == found) & (digits > 0))
