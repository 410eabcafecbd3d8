"""`StreamDataset`: data without an index, read from named shards in sequence, from any sample on."""

import copy
import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from loaderkit.datasets.base import Collate, Predicate, Transform
from loaderkit.datasets.streams.balanced import Balanced
from loaderkit.datasets.streams.batch import Batches
from loaderkit.datasets.streams.deal import Deal
from loaderkit.datasets.streams.lane import Lane, LaneReader, LaneSpec, Place
from loaderkit.datasets.streams.laned import LanedStream
from loaderkit.datasets.streams.pack import Rows, TooLong, batches_cannot_be_packed
from loaderkit.datasets.streams.samples import Step
from loaderkit.datasets.streams.shuffle import Windows
from loaderkit.datasets.streams.take import Part
from loaderkit.datasets.streams.verb import Verb
from loaderkit.sampling.by_length.balance import Cost
from loaderkit.sampling.fingerprint import fingerprint_of_reader
from loaderkit.system.checks import check_ordered, plain_integer
from loaderkit.system.digests import digest, shortened
from loaderkit.system.stack import stack

Read = Callable[[str, int], Iterable[object]]


class StreamDataset(LanedStream):
    """Samples of named shards whose lengths are unknown.

    Shards may be logs, pages of a service, or compressed files. Each epoch deals the shards to lanes. A lane is a part
    of the stream that one worker reads in sequence; ranks and workers share the lanes. Samples come in the shards'
    order, or shuffled within windows. A run that resumes within a window reads that window again. So a shard must give
    the same samples each time it is read in an epoch.

    A `Loader` makes batches of a StreamDataset, each from samples of one lane. It resumes exactly, even on another
    number of ranks. The Loader has no `len()` without `steps`. Any other IterableDataset must split itself over ranks
    and workers, and resumes only on the same number of them. A plain `torch.utils.data.DataLoader` yields a
    StreamDataset's single samples, each once over ranks and workers; call `set_epoch` before each epoch there.

    Args:
        shards: The names of the shards: paths, URLs, page numbers, dates.
        read: Called with a shard's name and a number `start`. It returns an iterable of the shard's samples from sample
            `start` on. Random numbers that it draws come from the seed of the sample that is read next. See
            `LineReader`, `TarReader`, `PageReader`, `LogReader`, and `from_start` for a function that cannot skip.
        transform: Called with each sample, under the sample's own seed: the first `map`.
        lanes: How many shards are read together, over all ranks and workers. Give at least ranks x workers. The order
            depends on it.
        window: How many samples of a lane are shuffled together, and held in memory.
        shuffle: Shuffle the shards, and the samples within windows.
        seed: Determines the order, and the random numbers of transforms.
        share: How many lanes share a shard, each reading every share-th block of it. Use it if there are fewer shards
            than lanes, or a huge shard. `read` is called for each block: it must skip to the block without reading the
            samples before it, and must give no samples if the start is beyond the shard's end. The order depends on it.
        block: Number of samples in such a block.

    Raises:
        ValueError: If there are no shards, two have the same name, or a number is out of range. Also if shards are to be
            shared and the reader cannot skip, or samples are to be shuffled and the reader reads files that grow.

    Examples:
        A batch has samples of one lane; the lanes take turns.

        >>> def read(day, start):
        ...     return [{"day": day, "hour": hour} for hour in range(start, 3)]
        >>> stream = lk.StreamDataset(["monday", "friday"], read, lanes=2)
        >>> batch = next(iter(lk.Loader(stream, batch_size=2)))
        >>> batch["day"], batch["hour"].dtype
        (['monday', 'monday'], torch.int64)
        >>> late = stream.filter(lambda sample: sample["hour"] > 1).map(lambda sample: sample["day"])
        >>> list(lk.Loader(late, batch_size=None))
        ['monday', 'friday']
    """

    def __init__(
        self,
        shards: Iterable[str],
        read: Read,
        *,
        transform: Transform | None = None,
        lanes: int = 16,
        window: int = 1024,
        shuffle: bool = False,
        seed: int = 0,
        share: int = 1,
        block: int = 256,
    ) -> None:
        if isinstance(shards, str):
            raise ValueError(
                f"stream: shards is the string {shards!r}, wanted a list of names. For a glob give sorted(glob.glob(...))."
            )
        if not isinstance(shards, Iterable) or not callable(read):
            raise TypeError(
                f"stream: shards is of type {type(shards).__name__}, read of type {type(read).__name__}; wanted a list of names, "
                "and a function read(shard, start)."
            )
        check_ordered("stream", "shards", shards)
        _check_read(read)
        lanes, window, seed, share, block = map(plain_integer, (lanes, window, seed, share, block))
        names = [str(shard) for shard in shards]
        self.deal = Deal(
            shards=names, lanes=lanes, window=window, shuffled=shuffle, seed=seed, share=share, block=block
        )
        self.read, self.shards = read, names
        self.lanes, self.shuffled, self.seed = lanes, shuffle, seed
        if share > 1 and not getattr(read, "skips", True):
            raise ValueError(
                f"stream: share={share}, and the reader {read!r} can't skip: for each block it would read everything before. "
                "Leave share out, write more shards, or give a reader that skips: read(shard, start)."
            )
        if shuffle and self.grows:
            raise _grows(read)
        self._start(() if transform is None else (Step(transform),))

    @property
    def shares(self) -> int:
        """How many lanes can have something to read."""
        return self.deal.shares

    @property
    def grows(self) -> bool:
        """Whether the stream reads files that grow, and so cannot be shuffled."""
        return bool(getattr(self.read, "grows", False))

    @property
    def rows(self) -> Rows | None:
        """The settings of packed rows, if the samples are such rows; else None."""
        rows = getattr(self.read, "rows", None)
        return rows if isinstance(rows, Rows) else None

    def map(self, function: Transform) -> Self:
        """Return a stream that applies a function to each sample, under the sample's own seed.

        A state does not name the function, so a resume with another one is accepted.
        """
        return self._with(Step(function))

    def filter(self, predicate: Predicate) -> Self:
        """Return a stream without the samples for which a predicate is false.

        The predicate gets a sample after the preceding maps, and may draw random numbers under the sample's own seed. A
        resume does not read dropped samples again. A state does not name the predicate: a resume with another one is
        accepted, and applies it to the samples that were not read yet.
        """
        return self._with(Step(predicate, is_filter=True))

    def take(self, count: int) -> "StreamDataset":
        """Return a stream of the first samples, or of all if there are fewer.

        Each lane that has a shard gives an equal part, so the samples do not depend on ranks and workers. If a lane has
        fewer samples than its part, the stream has fewer than `count`. A bad sample counts.
        """
        return DerivedStream(self, Part(count, skips=False))

    def skip(self, count: int) -> "StreamDataset":
        """Return a stream without the samples that `take` gives: each epoch begins by reading and dropping them."""
        return DerivedStream(self, Part(count, skips=True))

    def shuffle(self, window: int = 1024) -> "StreamDataset":
        """Return a stream whose samples are shuffled in windows, in a new order each epoch.

        The shards are shuffled too, unless a `filter` or another verb than `map` comes before. A resume reads its
        window again.

        Args:
            window: How many samples of a lane are shuffled together, and held in memory.

        Raises:
            ValueError: If the window is not at least 1, or the reader reads files that grow.
        """
        verb = Windows(window)
        if self.grows:
            raise _grows(getattr(self, "read", type(self).__name__))
        if type(self) is not StreamDataset or self.shuffled or any(step.is_filter for step in self._steps):
            return DerivedStream(self, verb)
        stream = copy.copy(self)
        stream.shuffled, stream.deal = True, dataclasses.replace(self.deal, shuffled=True, window=window)
        stream._start(self._steps)
        return stream

    def batch(self, size: int, *, drop_last: bool = False, collate_fn: Collate = stack) -> "StreamDataset":
        """Return a stream of batches, each made of consecutive samples of a lane.

        Use it if later verbs work on batches, and then give the Loader `batch_size=None`. Otherwise leave batches to
        the Loader: it can change their size on a resume.

        The last batch of each lane may be smaller, so an epoch has up to as many short batches as lanes. Batches belong
        to lanes, so they do not depend on the number of ranks or workers. A sample is read under its own seed;
        `collate_fn` and later maps run under the batch's seed. A bad sample is left out, and the next one of the lane
        takes its place. A batch for which a later map fails is one bad sample; errors of `collate_fn` are always
        raised.

        Args:
            size: Samples of a batch.
            drop_last: Leave out the last batch of each lane if it is smaller.
            collate_fn: Makes a batch of a list of samples.

        Raises:
            ValueError: If the size is not at least 1, or packed rows are to be stacked.

        Examples:
            >>> numbers = lk.StreamDataset(["a", "b"], lambda shard, start: range(start, 3), lanes=2)
            >>> pairs = numbers.batch(2).map(lambda batch: batch * 10)
            >>> [batch.tolist() for batch in lk.Loader(pairs, batch_size=None)]
            [[0, 10], [0, 10], [20], [20]]
        """
        verb = Batches(size, drop_last, collate_fn)
        if self.rows is not None and collate_fn is stack:
            raise self.rows.cannot_stack()
        return DerivedStream(self, verb)

    def pack(
        self,
        row_length: int,
        *,
        tokens: str = "tokens",
        fields: Mapping[str, float] | None = None,
        too_long: TooLong = "split",
        waiting: int = 128,
        balance: Cost | None = None,
        together: int = 64,
    ) -> "StreamDataset":
        """Return a stream of rows of a fixed length, each packed with several documents.

        Each sample so far is a document: a dict with its tokens, or the tokens themselves. Each sample of the new
        stream is a row: a list of documents. A Loader makes batches of rows with `PackCollate`, if it has no
        `collate_fn`. A later `map` gets a row and returns a row.

        In each lane some documents wait for a row. A row takes the document that has waited longest, then repeatedly
        the longest one that still fits. With 128 waiting documents about 0.5 % of a row stays empty. A state holds the
        positions of the waiting documents, and a resume reads and tokenizes them again. Rows belong to lanes, so they
        do not depend on the number of ranks or workers.

        A document without tokens is in no row. A document that cannot be read, tokenized or packed counts as a bad
        sample for the Loader's `BadSamples`.

        Args:
            row_length: Tokens of a row.
            tokens: The field with a document's tokens (T,).
            fields: Other fields with one value for each token, and the value that pads them: {"weights": 0}.
            too_long: What happens to a document longer than a row. "split" cuts it: its full rows come at once, and its
                end waits. "drop" leaves it out, "error" makes it a bad sample.
            waiting: Number of documents that wait in a lane; more if they are short. With more, rows are fuller, but
                the start takes longer.
            balance: The cost of a document by its length: `lk.AttentionCost(hidden_size=...)`, or a function from
                lengths (N,) to costs (N,). Then each lane sorts windows of rows by cost, and all lanes deliver rows of
                similar cost at the same time.
            together: Rows of a lane that are sorted together, and held in memory, with `balance`. A resume reads them again.

        Raises:
            ValueError: If a number is out of range, the stream is packed already or a stream of batches, or `balance` is given
                and the reader reads files that grow.

        Examples:
            >>> texts = lk.StreamDataset(["a"], lambda shard, start: ["to be", "or", "not to be"][start:])
            >>> rows = texts.map(lambda text: [len(word) for word in text.split()]).pack(4)
            >>> batch = next(iter(lk.Loader(rows, batch_size=2)))
            >>> batch["tokens"].tolist(), batch["document_ids"].tolist()
            ([[2, 2, 2, 0], [3, 2, 2, 0]], [[0, 0, 1, -1], [0, 0, 0, -1]])
        """
        if self.rows is not None:
            raise ValueError("pack: the stream is packed already. Pack the stream before it.")
        if isinstance(getattr(self, "verb", None), Batches) and not self._steps:
            raise batches_cannot_be_packed()
        rows = Rows(row_length=row_length, tokens=tokens, fields=fields or {}, too_long=too_long, waiting=waiting)
        packed = DerivedStream(self, rows)
        if balance is None:
            return packed
        if self.grows:
            raise _grows(getattr(self, "read", type(self).__name__), "balance= is given")
        return DerivedStream(packed, Balanced(together, rows, balance))

    def _with(self, step: Step) -> Self:
        stream = copy.copy(self)
        stream._start((*self._steps, step))  # with its own epoch
        return stream

    def _lane(self, spec: LaneSpec) -> Lane:
        return LaneReader(self.read, self.deal, spec)

    def _flaw(self, lane: int, place: Place) -> str | None:
        shards, most = len(range(lane, self.shares, self.lanes)), self.deal.window if self.shuffled else 1
        if place.shard > shards:
            return f"a shard of at most {shards}, the number in this lane"
        if place.used >= most:
            return f"less than {most} samples used of a window"
        return "5 numbers, for it is not composed" if place.inner else None

    def fingerprint(self) -> str:
        """Return a description of the shards; a resume compares it."""
        own = fingerprint_of_reader(self.read)  # for readers whose data depends on more than the shards' names
        text = "\x1f".join([*self.shards, *([] if own is None else [own])])
        return f"{len(self.shards):,} shards ({digest(text)})"

    def order(self) -> str:
        """Return a name for the order of the samples, with its version and all settings that it depends on."""
        return self.deal.name

    def __repr__(self) -> str:
        return "\n".join([*self._drawing(), *(f"  .{step}" for step in self._steps)])

    def _drawing(self) -> list[str]:
        shuffled = f", shuffled by {self.deal.window}" if self.shuffled else ""
        return [f"StreamDataset: {len(self.shards):,} shards in {self.lanes} lanes{shuffled}"]


class DerivedStream(StreamDataset):
    """A stream made from another by a verb, such as `take` or `pack`."""

    def __init__(self, stream: StreamDataset, verb: Verb) -> None:
        self.stream, self.verb = stream, verb
        self.lanes, self.seed, self.shards = stream.lanes, stream.seed, stream.shards
        self.shuffled = stream.shuffled or type(verb) is Windows
        self._start(())

    @property
    def shares(self) -> int:
        return self.stream.shares

    @property
    def grows(self) -> bool:
        return self.stream.grows

    @property
    def rows(self) -> Rows | None:
        if isinstance(self.verb, Batches):
            return None
        return self.verb if isinstance(self.verb, Rows) else self.stream.rows

    def fingerprint(self) -> str:
        return self.stream.fingerprint()

    def _drawing(self) -> list[str]:
        lines = repr(self.stream).splitlines()
        return [*(lines[:-1] if isinstance(self.verb, Balanced) else lines), f"  .{self.verb}"]

    def order(self) -> str:
        return f"{self.verb.order()} of {shortened(self.stream.order())}"

    def _lane(self, spec: LaneSpec) -> Lane:
        return self.verb.lane(self.stream, spec)

    def _flaw(self, lane: int, place: Place) -> str | None:
        return self.verb.flaw(self.stream, lane, place)


def _grows(read: object, what: str = "shuffle=True") -> ValueError:
    return ValueError(
        f"stream: {what}, and the reader {read!r} reads files that grow: the last window would have other samples when it is "
        f"read again. Leave {what.split('=')[0]} out."
    )


def _check_read(read: Callable[..., object]) -> None:
    """Raise a TypeError for a function that does not take a shard and a start."""
    try:
        signature = inspect.signature(read)
    except (TypeError, ValueError):
        return  # a function in C has no signature
    try:
        signature.bind("shard", 0)
    except TypeError as error:
        raise TypeError(
            f"stream: the reader takes {signature}, wanted read(shard, start), which starts at sample number `start`. "
            "For a function of the shard alone use loaderkit.from_start(read)."
        ) from error


def from_start(read: Callable[[str], Iterable[object]]) -> Read:
    """Return a `StreamDataset` reader from a function that reads whole shards.

    To start at a later sample, the reader reads and drops the samples before it.

    Args:
        read: Called with a shard's name; returns an iterable of all its samples.

    Examples:
        >>> read = lk.from_start(lambda shard: iter(shard))
        >>> list(read("abcd", 2))
        ['c', 'd']
        >>> list(lk.Loader(lk.StreamDataset(["abc"], read, lanes=1), batch_size=2))
        [['a', 'b'], ['c']]
    """
    return FromStart(read)


@dataclass(frozen=True)
class FromStart:
    """A reader that starts at a sample by reading and dropping those before it."""

    skips: ClassVar[bool] = False

    read: Callable[[str], Iterable[object]]

    def __call__(self, shard: str, start: int) -> Iterator[object]:
        samples = iter(self.read(shard))
        check_skipped(shard, sum(1 for _ in itertools.islice(samples, start)), start)
        return samples


def check_skipped(shard: str, found: int, start: int) -> None:
    """Raise a ValueError if a shard has fewer samples (`found`) than were read from it earlier (`start`)."""
    if found < start:
        raise ValueError(
            f"cannot resume: shard {shard!r} has {found:,} samples, {start:,} of it were read before. "
            "It has changed: restore it, or start a new epoch with loader.seek(epoch=...)."
        )
