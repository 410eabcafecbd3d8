"""How texts become batches, in the DataModules for texts and for chats."""

import dataclasses
from typing import Any, Literal, get_args

from loaderkit.loader.config import LoaderConfig
from loaderkit.sampling.by_length.balance import AttentionCost
from loaderkit.sampling.by_length.packing import PackPlan
from loaderkit.sampling.by_length.plans import LengthBuckets, TokenBudget
from loaderkit.sampling.plan import Plan
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_choice, check_integer

How = Literal["random", "buckets", "budget", "packed", "windows"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TextBatching:
    """How texts become batches.

    Args:
        how: "random": `batch_size` texts, padded. "buckets": `batch_size` texts of similar lengths,
            padded. "budget": as many texts as fit in `max_tokens`, padded. Language models also have
            "packed": `batch_size` rows of `max_length` tokens with several texts each, and "windows":
            all texts joined end to end and cut every `max_length` tokens.
        max_length: Largest number of tokens in a text. A classifier's longer texts are truncated, a
            language model's are cut into pieces.
        max_tokens: Largest number of tokens in a batch, including padding.
        window: Number of texts that are arranged by length together. Default: half of the texts, at
            least 1,024 and at most 32,768.
        balance: What a text costs the model, so that the batches of a step cost about the same on all ranks.

    Raises:
        ValueError: If a setting is out of range, missing, or does not apply to `how`.

    Examples:
        >>> lk.TextBatching(how="budget", max_tokens=4096).max_tokens
        4096
        >>> lk.TextBatching(how="packed")
        Traceback (most recent call last):
        ValueError: TextBatching: how='packed' needs max_length=, the number of tokens in a row.
    """

    how: How = "buckets"
    max_length: int | None = None
    max_tokens: int | None = None
    window: int | None = None
    balance: AttentionCost | None = None

    def __post_init__(self) -> None:
        check_choice("TextBatching", "how", self.how, get_args(How))
        if (self.max_tokens is not None) != (self.how == "budget"):
            raise ValueError(
                f"TextBatching: how={self.how!r} and max_tokens={self.max_tokens}; only 'budget' takes max_tokens, and needs it."
            )
        if self.how in ("packed", "windows") and self.max_length is None:
            raise ValueError(f"TextBatching: how={self.how!r} needs max_length=, the number of tokens in a row.")
        if self.balance is not None and self.how in ("random", "windows"):
            raise ValueError(
                f"TextBatching: how={self.how!r} and balance={self.balance}; wanted 'buckets', 'budget' or 'packed' for it."
            )
        for name, number, least in (("max_length", self.max_length, 2), ("max_tokens", self.max_tokens, 1)):
            if number is not None:
                check_integer("TextBatching", name, number, least)

    def plan(self, lengths: Int64Array, loader: LoaderConfig, *, shuffle: bool) -> Plan | None:
        """Return the plan for texts of these lengths (N,), in tokens; None for "random" and "windows"."""
        more: dict[str, Any] = {
            "window": self.window,
            "shuffle": shuffle,
            "seed": loader.seed,
            "tail": loader.tail_policy,
            "balance": self.balance,
        }
        if self.how == "buckets":
            return LengthBuckets(lengths, loader.batch_size or 1, **more)
        if self.how == "budget" and self.max_tokens is not None:
            return TokenBudget(lengths, self.max_tokens, **more)
        if self.how == "packed" and self.max_length is not None:
            return PackPlan(lengths, self.max_length, loader.batch_size or 1, **more)
        return None


def check_batching(owner: str, batching: TextBatching | None, *loaders: LoaderConfig | None) -> TextBatching:
    """Return `batching`, or the default TextBatching if it is None.

    Raises:
        TypeError: If `batching` is neither a TextBatching nor None.
        ValueError: If a loader has `plan` or `order`, which would decide about batches too.
    """
    if batching is not None and not isinstance(batching, TextBatching):
        raise TypeError(
            f"{owner}: batching is {batching!r}, wanted a TextBatching such as lk.TextBatching(how='random')."
        )
    for loader in loaders:
        if loader is not None and (loader.plan is not None or loader.order is not None):
            raise ValueError(f"{owner}: the loader has plan= or order=, wanted batching=TextBatching(...) here.")
    return batching or TextBatching()
