"""The parts of a DataModule's data: what is given for training, validation, test and prediction, one set or several."""

import functools
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

STAGES = ("train", "val", "test", "predict")


@dataclass(frozen=True, slots=True)
class Part:
    """A set of data, for one stage.

    Args:
        stage: "train", "val", "test" or "predict".
        data: What was given for it.
        name: Its own, where the stage has several.
        is_share: Whether it is a share of the training data, by the stage's name.
    """

    stage: str
    data: Any
    name: str | None = None
    is_share: bool = False

    def __str__(self) -> str:
        return self.stage if self.name is None else f"{self.stage} {self.name!r}"

    @property
    def source(self) -> str:
        """What tells its data from that of other parts, before it is shared out."""
        return "train" if self.is_share else str(self)


def given_stages(*, train: Any, val: Any, test: Any, predict: Any) -> dict[str, Any]:
    """Return the data by stage, without those that have none."""
    given = {"train": train, "val": val, "test": test, "predict": predict}
    return {stage: data for stage, data in given.items() if data is not None}


def parts_of(
    owner: str,
    given: Mapping[str, Any],
    splits: Mapping[str, float] | None = None,
    *,
    several: Collection[str] = STAGES[1:],
    is_several: Callable[[Any], bool] = lambda data: isinstance(data, Mapping),
) -> list[Part]:
    """Return the parts of what is given for the stages.

    Args:
        owner: The DataModule's name, for messages.
        given: Data by stage. A dict of these by name is several sets.
        splits: Shares of the training data by stage.
        several: Stages that may have several; by default those of evaluation.
        is_several: Says whether data is such a dict.

    Raises:
        ValueError: If a stage has several that may not, or none of several, or the splits have no training data or are for a
            stage with data of its own.
    """
    shares = dict(splits or {})
    own = sorted(set(shares) & set(given) - {"train"})
    if shares and (own or not {"train"} <= set(shares) <= set(STAGES) or "train" not in given):
        raise ValueError(
            f"{owner}: splits={shares} with data for {sorted(given)}; wanted shares of the training data for train and for "
            "parts without data of their own."
        )
    parts: list[Part] = []
    for stage, data in given.items():
        if not is_several(data):
            parts.append(Part(stage, data, is_share=stage in shares))
        elif stage not in several or not data:
            raise ValueError(
                f"{owner}: {stage} has {len(data)} sets by name ({sorted(map(str, data))[:5]}), wanted "
                + ("at least one." if stage in several else "one: only evaluation has several.")
            )
        else:
            parts += [Part(stage, one, str(name)) for name, one in data.items()]
    return parts + [Part(stage, given["train"], is_share=True) for stage in shares if stage not in given]


def factories(parts: list[Part], make: Callable[[Part], Any]) -> dict[str, Any]:
    """Return what DataModule takes for each stage: what makes its dataset, or a dict of these."""
    found: dict[str, Any] = {}
    for part in parts:
        opened = functools.partial(make, part)
        if part.name is None:
            found[part.stage] = opened
        else:
            found.setdefault(part.stage, {})[part.name] = opened
    return found


def is_dict_of_tables(data: Any) -> bool:
    """Say whether a dict has tables by name, or where they are: a dict of columns is one table."""
    return isinstance(data, Mapping) and any(map(_is_table, data.values()))


def _is_table(value: Any) -> bool:
    if isinstance(value, str | os.PathLike | Mapping) or hasattr(value, "columns") or hasattr(value, "column_names"):
        return True
    rows = hasattr(value, "__getitem__") and hasattr(value, "__len__") and len(value) > 0
    return rows and isinstance(next(iter(value)), Mapping)
