"""`FixedSettings`: the settings of a Loader are its attributes, and cannot change."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from loaderkit.loader.checks import instead_of
from loaderkit.loader.config import LoaderConfig

Batch = TypeVar("Batch", covariant=True, default=Any)


class FixedSettings(Generic[Batch]):
    """Reads each setting of `config` as an attribute, and refuses to change one. It is the base of `Loader`."""

    dataset: Any
    config: LoaderConfig

    def __setattr__(self, name: str, value: object) -> None:
        if "config" in self.__dict__ and (name == "dataset" or hasattr(self.config, name)):
            data, change = ("new_dataset", "") if name == "dataset" else ("loader.dataset", f", {name}=...")
            raise AttributeError(
                f"loader: {name} cannot change after the Loader is made. Make another one: "
                f"loaderkit.Loader.from_config({data}, loader.config{change}). It continues where this one is after "
                "load_state_dict(loader.state_dict())."
            )
        if instead := instead_of(name):
            raise AttributeError(f"loader: {name} cannot be assigned{instead}")
        super().__setattr__(name, value)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Lightning replaces a `worker_init_fn` that it finds; the Loader seeds workers itself.
            known = (
                "config" in self.__dict__ and name not in ("config", "worker_init_fn") and hasattr(self.config, name)
            )
            if known:
                return getattr(self.config, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{instead_of(name)}")

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of one rank."""
        return self.config.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether an epoch leaves out the samples that do not fill a step of all ranks."""
        return self.config.tail_policy == "drop"

    @property
    def collate_fn(self) -> Callable[[list[Any]], Batch]:
        """The function that makes a batch from a list of samples.

        By default it is a `PackCollate` for the rows of `data.pack(...)`, and `stack` for other data.
        """
        from loaderkit.reading.packed_rows import default_collate
        from loaderkit.system.stack import stack

        given = self.config.collate_fn
        found = default_collate(self.dataset) if given is None else given
        return stack if found is None else found
