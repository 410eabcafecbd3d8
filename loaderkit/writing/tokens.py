"""Write documents to flat files of tokens, for TokenDataset and DocumentDataset."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal

import numpy as np

from loaderkit.datasets.shards.documents import ENDS_SUFFIX
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.system.types import Array, DType
from loaderkit.writing.format import Sample, Settings, WriteError, Written, to_array


def encode_bytes(text: str) -> Sequence[int]:
    """Return the UTF-8 bytes of a text as tokens 0 to 255."""
    return np.frombuffer(text.encode(), dtype=np.uint8)  # type: ignore[return-value]  # an array of integers is such a sequence


@dataclass(frozen=True, kw_only=True)
class TokenFormat:
    """Write documents' tokens one after another, and where each one ends.

    Tokens are little-endian. The ends, counted in tokens (uint64), go to SHARD.index, as datatrove does.
    `lk.TokenDataset("DEST/*.bin", length=..., dtype=...)` reads windows of tokens. `lk.DocumentDataset("DEST/*.bin",
    dtype=...)` reads documents. A sample is a document: text, tokens (a list, array or tensor (T,)), or a dict with one
    of these.

    Args:
        dtype: "uint16" or "uint32".
        end_token: The token to append to each document; None appends none.
        tokenizer: From text to tokens. Default: the UTF-8 bytes.
        field: Name of the field to write, for dict samples with several fields.

    Examples:
        >>> manifest = lk.write_shards(["ab", "c"], "shards", format=lk.TokenFormat(end_token=256))
        >>> lk.DocumentDataset("shards/*.bin")[1].tolist()
        [99, 256]
    """

    name: ClassVar[str] = "tokens"
    suffix: ClassVar[str] = ".bin"
    dtype: Literal["uint16", "uint32"] = "uint16"
    end_token: int | None = None
    tokenizer: Callable[[str], Sequence[int]] = encode_bytes
    field: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in ("uint16", "uint32"):
            raise ValueError(f"TokenFormat: dtype is {self.dtype!r}, wanted 'uint16' or 'uint32'.")
        if self.end_token is not None and not 0 <= self.end_token <= np.iinfo(self.dtype).max:
            raise ValueError(f"TokenFormat: end_token is {self.end_token}, which {self.dtype} can't hold.")

    def settings(self) -> Settings:
        own = self.tokenizer
        name = f"{getattr(own, '__module__', '')}.{getattr(own, '__qualname__', type(own).__qualname__)}"
        return {"dtype": self.dtype, "end_token": self.end_token, "tokenizer": name, "field": self.field}

    def learn(self, samples: Sequence[Sample]) -> None:
        self._tokens(*samples[0])

    def write(self, file: BinaryIO, samples: Iterable[Sample], learned: object) -> Written:
        ends: list[int] = []
        tokens = 0
        end = b"" if self.end_token is None else np.array([self.end_token], dtype=self._disk).tobytes()
        for index, sample in samples:
            document = self._tokens(index, sample)
            file.write(document.astype(self._disk).tobytes() + end)
            tokens += len(document) + bool(end)
            ends.append(tokens)
        sides = {ENDS_SUFFIX: np.array(ends, dtype="<u8").tobytes()}
        return Written(counts={"samples": len(ends), "tokens": tokens}, sides=sides)

    def index(self, shard: Path, written: Written) -> ShardIndex | None:
        return None  # TokenDataset needs none

    @property
    def _disk(self) -> DType:
        return np.dtype(self.dtype).newbyteorder("<")

    def _tokens(self, index: int, sample: object) -> Array:
        where = f"sample {index}"
        if isinstance(sample, Mapping):
            names = [name for name in sample if name != "__key__"] if self.field is None else [self.field]
            if len(names) != 1 or names[0] not in sample:
                raise WriteError(
                    f"{where}: has the fields {', '.join(map(str, sample))}, wanted one. Name it with TokenFormat(field=...)."
                )
            where += f", field {names[0]!r}"
            sample = sample[names[0]]
        if isinstance(sample, bytes):
            try:
                sample = sample.decode()
            except UnicodeDecodeError as error:
                raise WriteError(f"{where}: {error}; wanted UTF-8 text or tokens.") from error
        if isinstance(sample, str):
            try:
                sample = self.tokenizer(sample)
            except Exception as error:
                raise WriteError(f"{where}: the tokenizer raised {type(error).__name__}: {error}") from error
        try:
            found = np.asarray(to_array(sample))
        except (ValueError, TypeError, OverflowError) as error:
            raise WriteError(f"{where}: not tokens: {error}") from error
        if found.ndim == 1 and not found.size:
            return found.astype(np.int64)
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise WriteError(f"{where}: {found.dtype} of shape {found.shape}, wanted text or whole numbers (T,).")
        least, most, limit = int(found.min()), int(found.max()), int(np.iinfo(self.dtype).max)
        if least < 0 or most > limit:
            wrong = least if least < 0 else most
            raise WriteError(
                f"{where}: the token {wrong:,} does not fit {self.dtype}, which holds 0 to {limit:,}. dtype='uint32' holds more."
            )
        return found
