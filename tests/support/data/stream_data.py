"""Streams of counted samples, for several tests."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from drawing import drawing_collate, draws

import loaderkit as lk

SIZES = {
    "one shard": [11],
    "even": [5, 5, 5, 5],
    "with empty shards": [0, 4, 0, 7, 1, 0],
    "one huge, many tiny": [40, *[1] * 9],
    "more shards than lanes": [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5],
}


class Counted:
    """Reads shards "number:size" whose samples are number * 1000 + row, with draws of their own."""

    def __call__(self, shard: str, start: int) -> Iterator[int]:
        number, size = map(int, shard.split(":"))
        for row in range(start, size):
            yield number * 1000 + row


def with_draws(value: int) -> tuple[int, torch.Tensor]:
    return value, draws()


def names(sizes: list[int]) -> list[str]:
    return [f"{number}:{size}" for number, size in enumerate(sizes)]


def expected(sizes: list[int]) -> Counter[int]:
    return Counter(number * 1000 + row for number, size in enumerate(sizes) for row in range(size))


def make_stream(sizes: list[int], *, shuffle: bool = True, lanes: int = 4, window: int = 3, **settings: Any) -> Any:
    settings = {"transform": with_draws, "seed": 5, **settings}
    return lk.StreamDataset(names(sizes), Counted(), shuffle=shuffle, lanes=lanes, window=window, **settings)


OF_LOADER = {field.name for field in dataclasses.fields(lk.LoaderConfig)} - {"shuffle", "seed"}


def make_loader(sizes: list[int], batch_size: int | None = 4, *, kind: Any = lk.Loader, **settings: Any) -> Any:
    """A loader of a stream: settings of StreamDataset go to that, the others to the loader."""
    mine = {name: settings.pop(name) for name in set(settings) & OF_LOADER}
    mine = {"collate_fn": drawing_collate, "world": lk.World(), **mine}
    return kind(make_stream(sizes, **settings), batch_size, **mine)


def ids(batches: list[Any]) -> Counter[int]:
    return Counter(value for batch in batches for value in batch[0].tolist())
