"""A Loader as torchtitan's dataloader, which also resumes on another data-parallel degree."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from loaderkit.datasets.streams.dataset import StreamDataset
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.loader import Loader
from loaderkit.system.world import World

try:
    from torchtitan.components.data.loader import BaseDataLoader
except ModuleNotFoundError as error:
    if error.name != "torchtitan.components.data":  # something that torchtitan needs
        raise
    # Releases up to 0.3.
    from torchtitan.components.dataloader import BaseDataLoader

Batch = tuple[dict[str, Tensor], Tensor]


class TitanLoader(BaseDataLoader):  # type: ignore[misc]  # torchtitan is Any where it is not installed
    """Gives batches of any loaderkit data to torchtitan's Trainer, whose checkpoints then hold the position.

    In a config registry, put `TitanLoader.Config(make_dataset=..., loader=...)` in the place of
    `HuggingFaceTextDataLoader.Config(...)`. The Trainer makes the loader from it, with its own batch size and ranks.

    The Trainer of torchtitan 0.3 gives a sequence length L and a batch size B, and gets rows (B, L). Later releases give a length and
    a number of tokens, and get the same rows joined to (B * L,).

    Raises:
        ValueError: If the config has no `make_dataset`, or a batch size or ranks of its own, or if the tokens of a batch are not
            whole sequences.

    Examples:
        >>> rows = lk.ArrayDataset(torch.arange(40).reshape(8, 5))
        >>> config = lk.integrations.torchtitan.TitanLoader.Config(make_dataset=lambda tokenizer, length: rows)
        >>> loader = config.build(dp_world_size=2, dp_rank=0, tokenizer=None, seq_len=4, local_batch_size=2)
        >>> inputs, labels = next(iter(loader))  # torchtitan's Trainer does this
        >>> inputs["input"].tolist(), labels.tolist()
        ([[0, 1, 2, 3], [5, 6, 7, 8]], [[1, 2, 3, 4], [6, 7, 8, 9]])
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]  # Any, as above
        """What the loader reads, and how.

        Args:
            make_dataset: Called with the tokenizer and the sequence length L; returns a dataset or a stream. Without a
                `collate_fn` in `loader`, its samples are L + 1 tokens each.
            loader: Settings of the Loader. The Trainer gives the batch size and the ranks.
            infinite: Whether one epoch follows another. If not, the data ends after one epoch.
            repeat: The same as `infinite`, by the name that validators after torchtitan 0.3 set. Data repeats only if both are true.
        """

        make_dataset: Callable[[Any, int], object] | None = None
        loader: LoaderConfig = dataclasses.field(default_factory=LoaderConfig)
        infinite: bool = True
        repeat: bool = True

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int | None = None,
        local_batch_size: int | None = None,
        max_context_length: int | None = None,
        num_tokens_per_batch: int | None = None,
        tokenizer: object = None,
        **_: object,
    ) -> None:
        given, collate = config.loader, next_tokens
        if max_context_length is not None and num_tokens_per_batch is not None:
            seq_len, collate = max_context_length, next_tokens_joined
            local_batch_size = _whole_rows(num_tokens_per_batch, seq_len)
        if seq_len is None or local_batch_size is None:
            raise TypeError(
                "TitanLoader: seq_len and local_batch_size are missing, or max_context_length and num_tokens_per_batch. Make "
                "the loader by config.build(...), as torchtitan's Trainer does."
            )
        if config.make_dataset is None:
            raise ValueError(
                "TitanLoader: make_dataset is None, wanted a function of the tokenizer and the sequence length that returns a "
                "dataset, such as lambda tokenizer, length: loaderkit.TokenDataset(files, length=length + 1, stride=length)."
            )
        _check_given(given, local_batch_size)
        makes_batches = given.plan is not None or given.batch_sampler is not None
        data, world = config.make_dataset(tokenizer, seq_len), World(dp_rank, dp_world_size)
        self.loader: Loader[Batch] = Loader.from_config(
            data,
            given,
            batch_size=1 if makes_batches else local_batch_size,
            collate_fn=given.collate_fn or collate,
            world=_within_group(world) if isinstance(data, StreamDataset) else world,
        )
        self._infinite = config.infinite and config.repeat

    def __iter__(self) -> Iterator[Batch]:
        while self._infinite or not self.loader.cursor.epoch:
            before = self.loader.cursor
            yield from self.loader
            if self.loader.cursor == before:
                return  # the Loader has warned that the data is empty

    def close(self) -> None:
        """Stop the workers. Trainers after torchtitan 0.3 call it."""
        self.loader.close()

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        if state_dict:  # torchtitan's contract: an empty state is valid
            self.loader.load_state_dict(state_dict)


def _check_given(given: LoaderConfig, local_batch_size: int) -> None:
    """Raise a ValueError if the settings have a world, or a batch size other than the Trainer's: it gives both."""
    if given.batch_size not in (1, local_batch_size):
        raise ValueError(
            f"TitanLoader: batch_size is {given.batch_size}, and the Trainer's local batch size is {local_batch_size}. Leave "
            "batch_size out of the LoaderConfig."
        )
    if given.world is not None:
        raise ValueError(
            f"TitanLoader: world is {given.world}, and the Trainer gives its ranks itself. Leave world out of the "
            "LoaderConfig."
        )


def _whole_rows(tokens: int, length: int) -> int:
    """Return how many rows of `length` tokens a batch has; raise a ValueError if they are not whole."""
    if not tokens or tokens % length:
        raise ValueError(
            f"TitanLoader: a batch is {tokens} tokens, wanted a multiple of the context length {length}. Change one of them in "
            "the Trainer's config."
        )
    return tokens // length


def _within_group(world: World) -> World:
    """Return a world with the name of its group of ranks. The ranks of a group share a stream, and communicate about it.

    Several ranks may have the same data-parallel rank, and so there may be several groups, which read the same data. The first
    ranks with each data-parallel rank are a group, then the second ones, and so on. All ranks have to call this function.
    """
    if not dist.is_initialized() or dist.get_world_size() == world.size:
        return world
    ranks = [0] * dist.get_world_size()
    dist.all_gather_object(ranks, world.rank)
    return dataclasses.replace(world, group=f"/{ranks[: dist.get_rank()].count(world.rank)}")


def next_tokens(rows: list[object]) -> Batch:
    """Return inputs and labels shifted by one: `{"input": (B, L), "positions": (B, L)}, (B, L)`, all int64.

    Args:
        rows: B rows of L + 1 tokens.
    """
    tokens = torch.stack([torch.as_tensor(row) for row in rows]).long()
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return {"input": inputs, "positions": torch.arange(inputs.shape[1]).expand_as(inputs).contiguous()}, labels


def next_tokens_joined(rows: list[object]) -> Batch:
    """Return what `next_tokens` does, with the rows joined: `{"input": (B * L,), "positions": (B * L,)}, (B * L,)`.

    Args:
        rows: B rows of L + 1 tokens. Positions begin again with each row.
    """
    inputs, labels = next_tokens(rows)
    return {name: values.flatten() for name, values in inputs.items()}, labels.flatten()


next_tokens.draws_nothing = True  # type: ignore[attr-defined]  # a function's attribute
next_tokens_joined.draws_nothing = True  # type: ignore[attr-defined]  # a function's attribute
