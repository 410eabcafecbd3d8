"""The base of streams made of several streams: chained or interleaved."""

from collections.abc import Sequence

from loaderkit.datasets.streams.dataset import StreamDataset
from loaderkit.datasets.streams.pack import Rows
from loaderkit.system.digests import digest


class Composed(StreamDataset):
    """The base of streams made of several streams with the same lanes and seed.

    Args:
        what: Name of the function that makes the stream, for messages.
        streams: The streams.

    Raises:
        ValueError: If there are no streams, one comes twice, or their lanes or seeds differ.
    """

    def __init__(self, what: str, streams: Sequence[StreamDataset]) -> None:
        for number, stream in enumerate(streams):
            if not isinstance(stream, StreamDataset):
                raise ValueError(f"{what}: stream {number} is {type(stream).__name__}, wanted a StreamDataset.")
        if not streams:
            raise ValueError(f"{what}: there are no streams, wanted at least one.")
        if len(set(streams)) < len(streams):
            raise ValueError(
                f"{what}: a stream comes twice, wanted each once. Make a second StreamDataset of its shards."
            )
        self.what = what
        self.lanes, self.seed = streams[0].lanes, streams[0].seed
        for name in ("lanes", "seed"):
            found = [getattr(stream, name) for stream in streams]
            if len(set(found)) > 1:
                raise ValueError(
                    f"{what}: the streams have {name} {found}, wanted one value: give all StreamDataset(..., {name}={found[0]})."
                )
        self.streams = list(streams)
        self.shuffled = any(stream.shuffled for stream in streams)
        self.shards = [f"{number}/{shard}" for number, stream in enumerate(streams) for shard in stream.shards]
        self._start(())

    def fingerprint(self) -> str:
        text = "\x1f".join(stream.fingerprint() for stream in self.streams)
        return f"{len(self.shards):,} shards of {len(self.streams)} streams ({digest(text)})"

    @property
    def grows(self) -> bool:
        return any(stream.grows for stream in self.streams)

    @property
    def rows(self) -> Rows | None:
        found = [stream.rows for stream in self.streams]
        return found[0] if all(rows == found[0] for rows in found) else None

    def _drawing(self) -> list[str]:
        below = ["    " + line for stream in self.streams for line in repr(stream).splitlines()]
        return [f"{self.what} of {len(self.streams)} streams:", *below]

    def orders(self) -> str:
        """Return the names of the streams' orders; a digest of them if they are longer than 200 characters."""
        text = "; ".join(stream.order() for stream in self.streams)
        return text if len(text) <= 200 else f"{len(self.streams)} streams, {digest(text)}"
