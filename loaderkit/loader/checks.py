"""Check what a Loader gets: names of settings, data with an index, plans and orders."""

import itertools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch

from loaderkit.files.foreign_formats import describe
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.pulls import check_by_index
from loaderkit.loader.stages import Stages
from loaderkit.sampling.cursor import Cursor
from loaderkit.sampling.mixture import Mixture
from loaderkit.sampling.order import Order, Sequential, Shuffled
from loaderkit.sampling.plan import Plan, other_lengths
from loaderkit.sampling.samplers import Weighted
from loaderkit.sampling.shard_order import ShardOrder
from loaderkit.seeding.private import Found, PrivatePolicy
from loaderkit.system.overrides import defines, is_map_style, own_attribute
from loaderkit.system.state import EPOCH, StateError
from loaderkit.system.suggest import closest
from loaderkit.system.tables import frame_way_out, is_frame

_SHOWN = 3  # generators that a warning names
_INSTEAD = {  # what a Loader has in place of an argument of DataLoader
    "sampler": "Give it as order=.",
    "generator": "Give a number as seed=.",
    "snapshot_every_n_steps": "Leave it out: a state is exact at every batch.",
    "in_order": "Leave it out: batches always come in order.",
    "pin_memory_device": "Leave it out: pin_memory= and device= decide.",
}


def check_names(unknown: Mapping[str, object], settings: Sequence[str]) -> None:
    """Raise a TypeError for an argument that is not a setting of a Loader, and suggest what to write instead."""
    for name in unknown:
        hint = _INSTEAD.get(name)
        if hint is None:
            close = closest(name, [*settings, *_INSTEAD])
            hint = (
                f"did you mean {close!r}? {_INSTEAD.get(close, '')}".strip() if close else "see loaderkit.LoaderConfig"
            )
        raise TypeError(f"Loader.__init__() got an unexpected keyword argument {name!r}: {hint}")


def instead_of(name: str) -> str:
    """Return a hint: what a Loader has in place of an attribute of DataLoader. It is empty if there is nothing."""
    if name == "worker_init_fn":
        return (
            ": See loader.config.worker_init_fn. In Ray Train give the Loader to loaderkit.integrations.ray.prepare, not to "
            "prepare_data_loader."
        )
    return f": {_INSTEAD[name]}" if name in _INSTEAD else ""


def check_cursor(cursor: object) -> None:
    """Raise a TypeError if what a replay gets is not the position before a batch."""
    if not isinstance(cursor, Cursor):
        raise TypeError(
            f"loader: replay of {cursor!r}, wanted the position before the batch: Cursor(epoch=0), ahead=3 is the fourth batch of "
            "epoch 0. StepLog.replay(loader, step) finds a training step."
        )


def check_skip(
    epoch: int, steps: range | Sequence[range], samples: range | Sequence[range]
) -> tuple[list[range], list[range]]:
    """Return the ranges of a `Loader.skip` as lists, after checking all that does not depend on the data.

    Raises:
        TypeError: If a range is not a `range`.
        ValueError: If the epoch or a range is out of bounds, or there is no range.
    """
    if not EPOCH.holds(epoch):
        raise ValueError(f"loader: skip in epoch {epoch!r}, wanted {EPOCH.wanted}.")
    lists = [[given] if isinstance(given, range) else list(given) for given in (steps, samples)]
    if not any(lists):
        raise ValueError("loader: skip of nothing, wanted steps=range(...) or samples=range(...), or lists of these.")
    for part in itertools.chain(*lists):
        if not isinstance(part, range):
            raise TypeError(
                f"loader: skip of {part!r}, wanted a range of numbers, such as range(100, 110), or a list of ranges."
            )
        if part.step != 1 or not 0 <= part.start < part.stop:
            raise ValueError(
                f"loader: skip of {part}, wanted a range that ascends by 1 from 0 or more, and is not empty."
            )
    return lists[0], lists[1]


def size_of(dataset: Sized) -> int:
    """Return the number of samples; 0 for data without a length, which a user's own order reads."""
    return len(dataset) if hasattr(type(dataset), "__len__") else 0


def check_indexed(dataset: object, *, has_order: bool = False) -> None:
    """Refuse data that cannot be read by index, or whose samples are not what a user expects.

    With `has_order` the data needs no length, since the user gives an order.

    Raises:
        TypeError: If the dataset is a path, a table, a tuple of columns, has no length or index, or ignores the index.
    """
    name = type(dataset).__name__
    if isinstance(dataset, Stages):
        raise TypeError("loader: the dataset is a Stages, wanted its dataset: Loader(stages.dataset, plan=stages).")
    if isinstance(dataset, str | bytes | os.PathLike):
        instead = describe(os.fsdecode(dataset)) or (
            "For files use loaderkit.ImageFolder, TarDataset, ParquetDataset, JsonlDataset, CsvDataset and others, such as "
            "loaderkit.CsvDataset(path)."
        )
        raise TypeError(f"loader: the dataset is {dataset!r}, wanted the data itself. {instead}")
    if is_frame(dataset):
        raise TypeError(f"loader: the dataset is a {name}, wanted samples by number. {frame_way_out(dataset)}")
    if isinstance(dataset, Mapping) and not _has_numbers(dataset):
        raise TypeError(
            f"loader: the dataset is a {name} of {list(itertools.islice(dataset, 5))}, wanted samples by number. For columns "
            "use loaderkit.ArrayDataset({name: array, ...}). From a dict of datasets give one."
        )
    if (
        isinstance(dataset, tuple)
        and len(dataset) > 1
        and all(isinstance(part, torch.Tensor | np.ndarray) and part.ndim > 0 for part in dataset)
        and len({len(part) for part in dataset}) == 1
    ):
        raise TypeError(
            f"loader: the dataset is a tuple of {len(dataset)} arrays of length {len(dataset[0]):,}: columns, or samples? "
            "For columns use loaderkit.ArrayDataset(columns), for samples a list."
        )
    if not is_map_style(dataset) and not (has_order and hasattr(type(dataset), "__getitem__")):
        raise TypeError(
            f"loader: {name} has no __len__ or no __getitem__, wanted a dataset with both (not a loader of one). For data "
            "without an index use loaderkit.StreamDataset or a torch.utils.data.IterableDataset."
        )
    check_by_index(dataset)


def inexact(left: Sequence[Found]) -> str | None:
    """Return a warning about generators of the data that a Loader does not seed; None if there are none."""
    if not left:
        return None
    shown = ", ".join(map(str, left[:_SHOWN])) + f" and {len(left) - _SHOWN} more" * (len(left) > _SHOWN)
    instead = {f"{each.library}: {each.instead}" for each in left if each.instead}
    ways = [
        "keep a numpy Generator, a random.Random or a torch.Generator on the CPU"
        if any(each.seeded is None for each in left)
        else "private_generators='seed' gives them each sample's numbers",
        *sorted(instead),
    ]
    return (
        f"Loader: {shown}: random generators that the data keeps and the Loader leaves. Each worker's copy draws the same numbers, "
        f"and a resumed run starts them again. If they decide what a sample is, {'; or '.join(ways)}."
    )


def check_private(saved: str | None, found: Sequence[Found], policy: PrivatePolicy, cursor: Cursor) -> None:
    """Raise a StateError if the generators that the data keeps were seeded in a saved run and are left now, or the reverse.

    Args:
        saved: The policy of the saved run; None if its data kept no generators, or an earlier loaderkit wrote the
            state, which left them.
        found: The generators that the data keeps now.
        policy: The policy of this loader.
        cursor: The saved position.
    """
    if found and (saved or "leave") != policy and cursor != Cursor():
        raise StateError(
            f"cannot resume: the state is for private_generators={saved or 'leave'!r}, this loader has {policy!r}, and the data "
            f"keeps {found[0]}. Give the loader private_generators={saved or 'leave'!r}, or continue with this one from a "
            f"place you choose: loader.seek(epoch={cursor.epoch}, samples={cursor.samples})."
        )


def _has_numbers(dataset: Mapping[object, object]) -> bool:
    """Return whether a mapping can be read by number.

    A dict with keys from 0 to N - 1 can. So can a TensorDict, which raises an error if asked whether it has the key 0.
    """
    try:
        return 0 in dataset
    except Exception:
        return True


def check_plan(config: LoaderConfig, size: int) -> None:
    """Raise a ValueError if a plan is for other data, or if settings contradict it."""
    plan, name = config.plan, type(config.plan).__name__
    if plan is None:
        return
    plan.check_size(size)
    if config.batch_size not in (1, None) or config.tail_policy != "keep":
        raise ValueError(
            f"loader: batch_size={config.batch_size} and tail={config.tail_policy!r} are given with plan=, which alone "
            f"makes the batches. Give {name} these settings."
        )
    collate = config.collate_fn
    if plan.makes_rows and (collate is None or own_attribute(collate, "takes_rows") is False):
        name = "the default collate" if collate is None else type(collate).__name__
        raise ValueError(
            f"loader: {type(plan).__name__} makes rows of several samples, which {name} can't join. Wanted a collate_fn that takes a list of "
            "rows, such as loaderkit.PackCollate(row_length=...)."
        )


def in_pieces(dataset: Any, plan: Plan, collate_fn: object) -> object:
    """Return the dataset that a plan is for: if the plan cuts samples, their pieces, else the dataset itself.

    Raises:
        ValueError: If the plan has the lengths of another number of samples.
    """
    cuts = plan.cuts()
    if cuts is None or isinstance(dataset, torch.utils.data.IterableDataset):
        return dataset
    check_indexed(dataset)
    from loaderkit.collate.pack import PackCollate  # few need them, and their import takes time
    from loaderkit.datasets.pieces import PieceDataset

    if isinstance(dataset, PieceDataset) and plan.lengths is not None and len(dataset) == len(plan.lengths):
        return dataset  # from another Loader, which has cut the samples already
    if len(cuts.lengths) != len(dataset):
        raise other_lengths(plan, len(cuts.lengths), len(dataset))
    rules = collate_fn.fields if isinstance(collate_fn, PackCollate) else {}
    fields = (collate_fn.tokens if isinstance(collate_fn, PackCollate) else "tokens", *rules)
    whole = [name for name, rule in rules.items() if callable(rule)]
    if whole:
        raise ValueError(
            f"loader: the plan cuts samples (too_long='split'), but the fields {whole} have one value for a whole sample, such as its "
            "pictures. Cut samples in the dataset: max_length=, too_long='truncate_right'. Or leave them out: too_long='drop'."
        )
    return PieceDataset(dataset, cuts.piece_length, lengths=cuts.lengths, fields=fields)


def check_order(order: Order, size: int) -> None:
    """Raise a ValueError if an order is for other data."""
    if order.reach > size:
        raise ValueError(
            f"loader: the order has indices up to {order.reach - 1:,}, the dataset {size:,} samples. Make the order for this dataset."
        )
    if order.reach == size:
        return
    if isinstance(order, Weighted):
        raise ValueError(
            f"loader: Weighted has {order.reach:,} weights, the dataset {size:,} samples. Give each sample a weight; 0 leaves it out."
        )
    if isinstance(order, Sequential | Shuffled | ShardOrder | Mixture):
        raise ValueError(
            f"loader: {type(order).__name__} is of {order.reach:,} samples, the dataset has {size:,}: the others would never come. Make "
            f"the order for this dataset. If they are to be left out, say so: order=lk.Subset(range({order.reach}))."
        )


def unrepeatable(order: Order, epoch: int) -> str | None:
    """Return a warning about a sampler that gives each epoch another order when it is asked again, or None."""
    if order.is_repeatable(epoch):
        return None
    return (
        "Loader: the sampler gives another order each time that it is asked for the same epoch. A resume in a "
        "new process cannot be exact and is refused. Let the sampler draw from torch's, numpy's or random's "
        "global generator: the Loader seeds them for each epoch."
    )


def own_state(dataset: object) -> str | None:
    """Return a warning about a dataset whose own state a Loader does not save, or None."""
    if not defines(dataset, "load_state_dict"):
        return None
    return (
        f"Loader: {type(dataset).__name__} has its own state_dict, which a Loader's state does not include: "
        "each worker reads a copy of the dataset. Let samples depend on their index and on the sample's random "
        "numbers alone, or save the dataset's state yourself."
    )


def no_batches(config: LoaderConfig, plan: Plan, cursor: Cursor, size: int) -> str:
    """Say why a cursor's epoch is empty."""
    if (over := plan.why_over(cursor)) is not None:
        return over
    how = f"batch size {config.batch_size}" if config.plan is None else type(plan).__name__
    shown = {"tail": config.tail_policy} if config.plan is None else vars(config.plan)
    settings = "".join(
        f", {name}={shown[name]!r}" for name in ("tail", "too_long") if shown.get(name, "error") != "error"
    )
    return f"Loader: no batches in epoch {cursor.epoch}: {size:,} samples, {how}, {plan.world.size} ranks{settings}."


def nothing_tells(classes: Iterable[str]) -> str:
    """Return a warning that a state was loaded whose data cannot be compared with the loader's."""
    return (
        f"Loader: the state was loaded, and only the number of samples tells whether the data is the same: {', '.join(sorted(classes))} "
        "has no fingerprint. Give the class a method or attribute `fingerprint`, a short text that changes with the data; give a "
        "list of records as loaderkit.RecordDataset(records)."
    )


def unprepared() -> str | None:
    """Return a warning if Accelerate runs this process and cannot see a Loader's passes, or None."""
    accelerate: Any = sys.modules.get("accelerate.state")
    if accelerate is None or not accelerate.is_initialized():
        return None
    found, steps = accelerate.AcceleratorState(), accelerate.GradientState().num_steps
    if found.num_processes == 1 and steps == 1 and found.device.type == "cpu":
        return None
    return (
        f"Loader: an Accelerator runs here ({found.num_processes} processes, {steps} steps of accumulation, {found.device}), and "
        "Accelerator.prepare returns a Loader as it is. Accumulation then does not end with an epoch, gather_for_metrics counts "
        "wrongly, and batches stay on the host. Use loaderkit.integrations.accelerate.prepare(accelerator, loader), or "
        "loaderkit.integrations.huggingface.ResumableTrainer."
    )
