"""The file of a StepLog: records that are appended, each with its own checksum.

The file begins with a line of text. A record is a byte that names its kind, the content, and a CRC-32 of both:

| kind | content |
|---|---|
| `H` | the length (4 bytes) of a JSON text, and that text: the settings of the steps that follow |
| `S` | step, epoch, batches (4 bytes each) and samples (8 bytes): the position before a batch of the step |

All numbers are little-endian. A step record has 25 bytes. A process that is killed while it writes leaves a part of a
record, which readers ignore and the next writer cuts off.
"""

import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loaderkit.system.types import Array

START = b"loaderkit steps 1\n"
_STEP = struct.Struct("<cIIIQI")
_LENGTH = struct.Struct("<cI")
_FIELDS = np.dtype(
    [("kind", "S1"), ("step", "<u4"), ("epoch", "<u4"), ("batches", "<u4"), ("samples", "<u8"), ("crc", "<u4")]
)
MOST_STEPS = 2**32


class Record(NamedTuple):
    """The position before a batch, and the number of the step that was trained on the batch."""

    step: int
    epoch: int
    batches: int
    samples: int


@dataclass(slots=True)
class Section:
    """Steps that were trained under the same settings, one after another.

    Attributes:
        settings: See `StepLog`.
        rows: The records (N,) by ascending step, as a structured array.
    """

    settings: Mapping[str, Any]
    rows: Array

    def find(self, step: int) -> list[Record]:
        """Return the records of a step."""
        first, last = np.searchsorted(self.rows["step"], [step, step + 1])
        return [Record(*row[1:-1]) for row in self.rows[first:last].tolist()]


class Content(NamedTuple):
    """What a file of steps holds.

    Attributes:
        sections: The sections that have steps. If steps were repeated after a resume, only the last record of each
            counts.
        end: The offset in bytes after the last whole record.
    """

    sections: list[Section]
    end: int


def pack_settings(settings: Mapping[str, object]) -> bytes:
    """Return the record that begins a section."""
    text = json.dumps(settings, sort_keys=True).encode()
    return _sealed(_LENGTH.pack(b"H", len(text)) + text)


def pack_step(record: Record) -> bytes:
    """Return the record of a step's batch."""
    content = _STEP.pack(b"S", *record, 0)[:-4]
    return _sealed(content)


def is_step_log(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a log of steps; raise a FileNotFoundError if there is none."""
    path = Path(path)
    if path.is_dir():
        return False
    with path.open("rb") as file:
        return file.read(len(START)) == START


def read_steps(path: str | os.PathLike[str]) -> Content:
    """Return what a file of steps holds.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a log of steps, or is damaged before its last record.
    """
    content = Path(path).read_bytes()
    if not content.startswith(START):
        if START.startswith(content):  # killed in the first write
            return Content([], 0)
        raise ValueError(f"StepLog: {path} begins with {content[:24]!r}, wanted {START!r}. It is no log of steps.")
    sections: list[Section] = []
    at, size, length = len(START), len(content), 0
    while at < size:
        if content[at : at + 1] == b"H" and at + _LENGTH.size <= size:
            length = _LENGTH.size + _LENGTH.unpack_from(content, at)[1] + 4
            if not _is_whole(content, at, length):
                break
            sections.append(Section(json.loads(content[at + _LENGTH.size : at + length - 4]), np.empty(0, _FIELDS)))
            at += length
            continue
        start, length = at, _STEP.size
        while content[at : at + 1] == b"S" and _is_whole(content, at, length):
            at += length
        if at == start:
            break
        if not sections:
            raise ValueError(f"StepLog: {path} has a step before any settings. It is damaged.")
        rows = np.frombuffer(content, _FIELDS, (at - start) // length, start)
        for section in sections:  # the run may have gone back, and repeat their last steps
            section.rows = section.rows[: np.searchsorted(section.rows["step"], rows["step"][0])]
        sections[-1].rows = rows
    if at < size:
        _check_is_torn(path, content, at, length)
    return Content([section for section in sections if len(section.rows)], at)


def _check_is_torn(path: object, content: bytes, at: int, length: int) -> None:
    """Raise a ValueError unless the rest of the file may come from a write that was cut short."""
    rest = content[at:]
    if rest[:1] in (b"H", b"S") and at + length >= len(content):
        return
    if not rest.strip(b"\0"):  # a file that grew, and whose content a power failure lost
        return
    raise ValueError(
        f"StepLog: {path} is damaged at byte {at:,} of {len(content):,}, before its last record. Move it away and begin another "
        f"log, or keep the steps before that place: truncate -s {at} {path}"
    )


def _sealed(content: bytes) -> bytes:
    return content + zlib.crc32(content).to_bytes(4, "little")


def _is_whole(content: bytes, start: int, length: int) -> bool:
    stop = start + length
    return stop <= len(content) and zlib.crc32(content[start : stop - 4]) == int.from_bytes(
        content[stop - 4 : stop], "little"
    )
