"""Which batches a rank has read from a stream since the last record of a StepLog."""

from loaderkit.loader.streams.state import RankCursor


class RankPasses:
    """Finds the batches between two points. The points are enough: a stream never goes back within an epoch."""

    def mark(self, point: RankCursor) -> RankCursor:
        """Return a mark at a point, for `since`."""
        return point

    def since(self, mark: RankCursor | None, now: RankCursor) -> tuple[list[RankCursor], bool]:
        """Return the points before the batches from a mark to a point; see `PassLog.since`."""
        before = mark
        if now.batches:
            same = before is not None and before.epoch == now.epoch and before.batches < now.batches
            first = before.batches if same and before is not None else now.batches - 1
            follows = same or (before is not None and before.epoch + 1 == now.epoch and first == 0)
            return [now._replace(batches=number) for number in range(first, now.batches)], follows
        if before == now or not now.epoch:
            return [], False
        # The epoch ended with one more batch, as far as anybody knows.
        follows = before is not None and before.epoch + 1 == now.epoch
        batches = before.batches if follows and before is not None else 0
        return [now._replace(epoch=now.epoch - 1, batches=batches)], follows
