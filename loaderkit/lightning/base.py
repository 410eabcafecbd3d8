"""A LightningDataModule for any datasets; its state is the position after the last batch trained on."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Never, TypeVar

from typing_extensions import override

from loaderkit.device.prefetch import Prefetcher
from loaderkit.lightning.check_data import Data, check_data, check_dataset, make_dataset, map_data
from loaderkit.lightning.framework import WAY_OUT, check_trainer, is_overridden, pl
from loaderkit.lightning.loaders import (
    EvalLoader,
    TrainerLoader,
    TrainLoader,
    check_equal_ranks,
    is_stream,
    move_batch,
    why_not_ahead,
)
from loaderkit.lightning.position import TrainPosition, TrainProgress
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.loader import Loader
from loaderkit.loader.summary import describe_data
from loaderkit.system.html import table
from loaderkit.system.suggest import suggest_arguments
from loaderkit.system.world import World

L = TypeVar("L", bound=TrainerLoader)
_STAGES = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}


@functools.wraps(pl.LightningDataModule.val_dataloader)  # the Trainer then treats it as not overridden
def _no_val_dataloader() -> list[object]:
    return []


class DataModule(pl.LightningDataModule):
    """Gives your datasets to a Trainer, and resumes training exactly.

    Its state is the position after the last batch trained on, not the last one fetched. A
    checkpoint may be saved at any time. A run may resume with another number of ranks or workers,
    or another batch size.

    On CUDA, batches are copied ahead to the Trainer's device. They are not if a hook
    `on_before_batch_transfer` or `transfer_batch_to_device` needs them on the host. Batches are moved
    as `lk.to_device` does it, so they may be frozen dataclasses.

    Evaluation delivers each sample once over all ranks, in the same order each time. With streams,
    ranks may have different numbers of batches. If the strategy communicates at each batch, this is
    an error: give an `eval_loader` with `steps` or `stop`.

    Without a Trainer, `train_dataloader()` and the others return plain Loaders.

    Args:
        train: A dataset, a stream, or a factory: a function without arguments that returns one and
            that `setup` calls in each process. A dict of these: each step draws one batch from each
            (Lightning's CombinedLoader with "max_size_cycle"; for another mode override
            `train_dataloader` and wrap its result).
        val: The same, or a list of datasets: they are evaluated one after another, like those of a
            dict. A list of samples is one dataset.
        test: The same as val.
        predict: The same as val.
        loader: The loaders' settings. `shuffle=None` shuffles for training only.
        eval_loader: Settings of the loaders for val, test and predict. Default: those of `loader`, but nothing is shuffled
            or dropped, `order`, `plan` and `batch_sampler` are not used, and streams are read to their end.

    Examples:
        >>> data = lk.DataModule(
        ...     train=lk.ArrayDataset({"x": torch.rand(10, 3), "y": torch.arange(10)}),
        ...     val=lk.ArrayDataset({"x": torch.rand(4, 3), "y": torch.arange(4)}),
        ...     loader=lk.LoaderConfig(batch_size=4, seed=1),
        ... )
        >>> data.setup("fit")
        >>> [len(batch["y"]) for batch in data.train_dataloader()]
        [4, 4, 2]
        >>> next(iter(data.val_dataloader()))["y"]
        tensor([0, 1, 2, 3])
    """

    @suggest_arguments
    def __init__(
        self,
        train: Data = None,
        val: Data = None,
        test: Data = None,
        predict: Data = None,
        *,
        loader: LoaderConfig | None = None,
        eval_loader: LoaderConfig | None = None,
    ) -> None:
        super().__init__()
        self._given: dict[str, Data] = {"train": train, "val": val, "test": test, "predict": predict}
        for name, data in self._given.items():
            if data is not None:
                check_data(name, data)
        for setting, config in (("loader", loader), ("eval_loader", eval_loader)):
            if config is not None and not isinstance(config, LoaderConfig):
                raise TypeError(f"DataModule: {setting} is of type {type(config).__name__}, wanted a LoaderConfig.")
        self._made: dict[str, Data] = {}
        self.loader_config = loader or LoaderConfig()
        self._eval_config = eval_loader
        self._position = TrainPosition()

    def __repr__(self) -> str:
        world = self.loader_config.world or (
            World.from_trainer(self.trainer) if self.trainer is not None else World.detect()
        )
        shown = [f"{name}={data}" for name, data in self._described().items()]
        shown += [str(self.loader_config), f"rank {world.rank} of {world.size}"]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _repr_html_(self) -> str:
        return table(type(self).__name__, [*self._described().items(), ("loader", self.loader_config)])

    def _described(self) -> dict[str, str]:
        """Return a description of each stage's datasets."""
        data = {name: self._made.get(name, given) for name, given in self._given.items() if given is not None}
        return {name: _join(map_data(name, one, describe_data)) for name, one in data.items()}

    @override
    def __str__(self) -> str:
        return repr(self)  # Lightning's would replace the loaders in use

    def __iter__(self) -> Never:
        # A Trainer of the other Lightning package takes a DataModule for a loader, and comes here.
        raise RuntimeError(
            "DataModule: it has loaders, and is none. Iterate over data.train_dataloader(). If a Trainer raised this, it is of "
            f"the other Lightning package: {WAY_OUT}"
        )

    @property
    def trainer(self) -> pl.Trainer | None:
        """The Trainer that this DataModule is attached to, if any."""
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: pl.Trainer | None) -> None:
        check_trainer(trainer)
        self._trainer = trainer

    @property
    def eval_config(self) -> LoaderConfig:
        """The settings for val, test and predict."""
        if self._eval_config is not None:
            return self._eval_config
        return dataclasses.replace(
            self.loader_config,
            batch_size=_own_batch_size(self.loader_config),
            shuffle=False,
            order=None,
            batch_sampler=None,
            plan=None,
            drop_last=False,
            tail="keep",
            steps=None,
            stop=None,
        )

    @property
    def batch_size(self) -> int | None:
        """Number of samples in a batch of each rank; the Trainer's batch-size finder sets it."""
        return self.loader_config.batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int | None) -> None:
        self.loader_config = dataclasses.replace(self.loader_config, batch_size=batch_size)

    @override
    def setup(self, stage: str) -> None:
        for name in self._given:
            if name in _STAGES[stage]:
                self._data(name)
        if stage == "fit":
            self._position = self._position.next_fit(self.trainer)
        if self.trainer is not None:
            TrainProgress.attach(self.trainer, self._position)

    @override
    def train_dataloader(self) -> Any:
        if self.trainer is not None and self.trainer.state.fn == "fit" and not self._position.is_of(self.trainer):
            raise RuntimeError(
                f"DataModule: {type(self).__name__}.setup does not call super().setup(stage). Call it: a training can't resume "
                "without it."
            )
        before = self._position.replace_loaders()
        loaders = self._make("train", self._make_train)
        self._position.place(before)
        return loaders

    @property
    def val_dataloader(self) -> Callable[[], Any]:
        """A function that returns the validation loaders; for a training without val data it returns none."""
        if self._given["val"] is None and self.trainer is not None and self.trainer.state.fn == "fit":
            return _no_val_dataloader
        return functools.partial(self._make, "val", self._make_eval)

    @override
    def test_dataloader(self) -> Any:
        return self._make("test", self._make_eval)

    @override
    def predict_dataloader(self) -> Any:
        return self._make("predict", self._make_eval)

    @property
    def transfer_batch_to_device(self) -> Callable[..., object]:
        """A function that copies a batch to a device, as `lk.to_device` does.

        If the LightningModule overrides this hook, it is Lightning's own function, and the Trainer calls the override.
        """
        module = None if self.trainer is None else self.trainer.lightning_module
        return super().transfer_batch_to_device if is_overridden("transfer_batch_to_device", module) else move_batch

    @override
    def state_dict(self) -> dict[str, Any]:
        return self._position.state_dict()

    @override
    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        if self.trainer is None or self.trainer.state.fn == "fit":
            self._position.load_state_dict(state_dict)

    @override
    def teardown(self, stage: str) -> None:
        if stage == "fit":
            self._position.close()

    def _data(self, name: str) -> Data:
        """Return a stage's datasets; the first call calls their factories."""
        if name not in self._made:
            given = self._given[name]
            self._made[name] = None if given is None else map_data(name, given, make_dataset)
        return self._made[name]

    def _make(self, name: str, make: Callable[[Any], Loader]) -> Any:
        if self._given[name] is None:
            raise ValueError(
                f"DataModule: the Trainer needs {name} data, and there is none. Pass DataModule({name}=...)."
            )
        return map_data(name, self._data(name), make)

    def _make_train(self, dataset: object) -> TrainLoader:
        config = self.loader_config
        chosen = (config.order, config.plan, config.batch_sampler)
        shuffle = all(one is None for one in chosen) if config.shuffle is None else config.shuffle
        if is_stream(dataset):
            shuffle = bool(config.shuffle)  # a stream shuffles by its own settings
        if self.trainer is not None and self.trainer.overfit_batches:  # type: ignore[attr-defined]  # Lightning sets it from outside
            if is_stream(dataset):
                raise ValueError(
                    "DataModule: overfit_batches needs the same batches in each epoch, and the training data is a stream, which "
                    "continues. Give a dataset with an index, such as an lk.ArrayDataset of some of its samples."
                )
            size = _own_batch_size(config)
            config = dataclasses.replace(
                config, batch_size=size, order=None, plan=None, batch_sampler=None, shuffle=None
            )
            shuffle = False  # the same batches each epoch
        together = self._made.get("train", self._given["train"])
        if isinstance(together, dict) and not is_stream(dataset) and any(map(is_stream, together.values())):
            config = dataclasses.replace(config, steps=None, stop=None, store=None)  # only for the stream
        loader = self._make_loader(TrainLoader, dataset, config, shuffle)
        check_equal_ranks(self.trainer, loader, "train")
        self._position.add(loader)
        return loader

    def _make_eval(self, dataset: object) -> EvalLoader:
        config = self.eval_config
        if self._eval_config is None:
            # Streams deliver each sample once, and end at different batches on different ranks. `store` is for streams only.
            config = dataclasses.replace(config, **({"stop": "each"} if is_stream(dataset) else {"store": None}))
        loader = self._make_loader(EvalLoader, dataset, config, bool(config.shuffle))
        check_equal_ranks(self.trainer, loader, "evaluation")
        return loader

    def _make_loader(self, kind: type[L], dataset: Any, config: LoaderConfig, shuffle: bool) -> L:
        check_dataset("the factory's result", dataset)
        changes: dict[str, object] = {"shuffle": shuffle}
        if config.plan is not None:  # the plan makes the batches; these settings are for evaluation
            changes |= {"batch_size": config.batch_size and 1, "drop_last": False, "tail": "keep"}
        if config.batch_sampler is not None:
            changes["batch_size"] = 1
        if self.trainer is not None:
            if config.world is None:
                changes["world"] = World.from_trainer(self.trainer)
            if config.pin_memory == "auto" and self.trainer.strategy.root_device.type != "cuda":
                changes["pin_memory"] = False
        loader = kind.from_config(dataset, config, **changes)
        loader.why_not_ahead = why_not_ahead(self.trainer, self, config)
        if self.trainer is not None and loader.why_not_ahead is None:
            loader.prefetcher = Prefetcher(self.trainer.strategy.root_device)
        return loader


def _own_batch_size(config: LoaderConfig) -> int | None:
    """Return the batch size for loaders that don't use the batch sampler: the batch sampler's own if `batch_size` is 1."""
    own = getattr(config.batch_sampler, "batch_size", None)
    return own if config.batch_size == 1 and isinstance(own, int) and own > 0 else config.batch_size


def _join(found: str | list[str] | dict[Any, str]) -> str:
    """Join the descriptions of a stage's datasets into one text."""
    if isinstance(found, str):
        return found
    if isinstance(found, list):
        return f"[{', '.join(found)}]"
    return f"{{{', '.join(f'{name!r}: {one}' for name, one in found.items())}}}"
