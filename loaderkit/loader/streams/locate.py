"""Tell from a stream's state which batches come after it, without reading data."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from loaderkit.datasets.streams.dataset import StreamDataset
from loaderkit.datasets.streams.deal import ShardShare
from loaderkit.datasets.streams.lane import Place
from loaderkit.loader.streams.state import open_stream_state


class StreamBatch(NamedTuple):
    """A batch of a stream, as far as a state tells.

    Attributes:
        rank: The rank that gets it.
        lane: The lane that gives it.
        where: What is known about its samples, in words.
    """

    rank: int
    lane: int
    where: str


def locate_in_stream(
    stream: StreamDataset, state: Mapping[str, object], step: int, batch_size: int
) -> Iterator[StreamBatch]:
    """Yield each rank's batch of a step: its lane, and where in a shard it begins.

    The answer holds if no lane ends between the state and the step. How many samples a shard has, and which ones a
    filter drops, is not known before they are read.

    Args:
        stream: The stream that the state belongs to.
        state: A Loader's state.
        step: The batch of each rank in the epoch, from 0; at or after the state.
        batch_size: The batch size of each rank.

    Raises:
        ValueError: If the step is before the state.
        StateError: If the state is damaged.
    """
    fields = open_stream_state(state)
    turns, ahead = fields["turns"], step - fields["cursor"]["batches"]
    if ahead < 0:
        raise ValueError(
            f"step {step} is before this state, which is at batch {fields['cursor']['batches']} of the epoch: where the lanes "
            "of a stream were is only in a state from before the step. Name an earlier checkpoint."
        )
    for rank, turn in enumerate(turns):
        lanes = range(rank, len(fields["lanes"]), len(turns))
        if turn is None:
            yield StreamBatch(rank, -1, "not known: the state lacks this rank")
            continue
        places = [Place(*fields["lanes"][lane]) for lane in lanes]
        cycle = min(place.cycle for place in places)
        order = [(turn + slot) % len(lanes) for slot in range(len(lanes))]
        reading = [row for row in order if places[row].cycle == cycle]  # the others have ended
        rounds, slot = divmod(ahead, len(reading))
        row = reading[slot]
        yield StreamBatch(rank, lanes[row], _where(stream, lanes[row], places[row], rounds * batch_size, batch_size))


def _where(stream: StreamDataset, lane: int, place: Place, passed: int, batch_size: int) -> str:
    """Describe `batch_size` samples of a lane, `passed` samples after a place."""
    if type(stream) is not StreamDataset or place.inner:
        return "not known: the lane reads other streams"
    shards = stream.deal.of(place.cycle, lane)
    if place.shard >= len(shards):
        return "at the end of the lane"
    shard = shards[place.shard]
    if any(step.is_filter for step in stream._steps):
        first = _number(stream, shard, place.sample, 0)
        later = f", {passed} kept samples later" if passed else ""
        return f"{shard.shard}: from sample {first:,} on{later}; the filter decides which"
    if not stream.shuffled:
        first, last = (_number(stream, shard, place.sample, passed + more) for more in (0, batch_size - 1))
        blocks = f" in blocks of {stream.deal.block}" if shard.shares > 1 else ""
        return f"{shard.shard}: samples {first:,} to {last:,}{blocks}{_if_shorter(shards, place.shard)}"
    window, used = divmod(place.used + passed, stream.deal.window)
    first = _number(stream, shard, place.sample, window * stream.deal.window)
    last = _number(stream, shard, place.sample, (window + 1) * stream.deal.window - 1)
    return (
        f"{shard.shard}: {batch_size} of the samples {first:,} to {last:,}, which are shuffled; {used:,} of them came "
        f"before{_if_shorter(shards, place.shard)}"
    )


def _number(stream: StreamDataset, shard: ShardShare, start: int, more: int) -> int:
    """Return a sample's number in its shard: of the samples that the lane reads, it is `more` samples after `start`."""
    if shard.shares == 1:
        return start + more
    block, inside = divmod(start, stream.deal.block)
    if others := (shard.number - block) % shard.shares:
        block, inside = block + others, 0
    blocks, inside = divmod(inside + more, stream.deal.block)
    return (block + blocks * shard.shares) * stream.deal.block + inside


def _if_shorter(shards: Sequence[ShardShare], row: int) -> str:
    following = shards[row + 1].shard if row + 1 < len(shards) else None
    return "; if it has fewer, " + ("the lane ends" if following is None else f"on in {following}")
