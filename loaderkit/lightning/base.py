"""A LightningDataModule for any datasets, whose state means *learnt*."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import lightning.pytorch as pl
from typing_extensions import override

from loaderkit.device.prefetch import Prefetcher
from loaderkit.lightning.check_data import Data, check_data, check_dataset, make_dataset, map_data
from loaderkit.lightning.loaders import (
    EvalLoader,
    TrainerLoader,
    TrainLoader,
    check_equal_ranks,
    is_stream,
    why_not_ahead,
)
from loaderkit.lightning.position import TrainPosition
from loaderkit.lightning.train_progress import TrainProgress
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.loader import Loader, describe_data
from loaderkit.system.world import World

L = TypeVar("L", bound=TrainerLoader)
_STAGES = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}


@functools.wraps(pl.LightningDataModule.val_dataloader)  # so that a Trainer takes it for not overridden
def _no_val_dataloader() -> list[Any]:
    return []


class DataModule(pl.LightningDataModule):
    """Brings your datasets to a Trainer, and resumes their training exactly.

    Its state is the position behind the last batch that was learnt, not behind
    the last one fetched. A checkpoint may be saved anywhere and resumed on another
    number of ranks and workers, or with another batch size.

    On CUDA batches are copied ahead to the Trainer's device, so that Lightning's own transfer finds them there; unless
    a hook `on_before_batch_transfer` or `transfer_batch_to_device` wants them on the host.

    Evaluation gives each sample once, over all ranks, the same way each time.
    With streams the ranks may have unequal numbers of batches there, which is
    refused where the strategy talks at each batch; give an `eval_loader` with
    `steps` or `stop` then.

    Args:
        train: A dataset or a stream; or a dict of datasets, which Lightning draws from side
            by side (CombinedLoader, "max_size_cycle"; for "min_size" override
            `train_dataloader` and wrap what it returns).
        val: A dataset or a stream; or a list of them, or a dict by name, which are evaluated one after another. A list of
            samples is one dataset.
        test: The same.
        predict: The same.
        loader: The loaders' settings. `shuffle=None` means: training yes.
        eval_loader: Those for val, test and predict; by default the same without
            shuffling and dropping, and for streams in whole passes.

    In place of a dataset a zero-argument factory may be given, which `setup`
    calls in each process. In a loop without a Trainer `train_dataloader()` gives Loaders as any others.
    """

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
        data = {name: self._made.get(name, given) for name, given in self._given.items() if given is not None}
        shown = [f"{name}={_join(map_data(name, one, describe_data))}" for name, one in data.items()]
        shown += [str(self.loader_config), f"rank {world.rank} of {world.size}"]
        return f"{type(self).__name__}({', '.join(shown)})"

    @override
    def __str__(self) -> str:
        return repr(self)  # Lightning's makes loaders, in place of those in use

    @property
    def eval_config(self) -> LoaderConfig:
        """The settings for val, test and predict."""
        if self._eval_config is not None:
            return self._eval_config
        return dataclasses.replace(
            self.loader_config,
            shuffle=False,
            order=None,
            plan=None,
            drop_last=False,
            tail="keep",
            steps=None,
            stop=None,
        )

    @property
    def batch_size(self) -> int | None:
        """Samples a batch and rank; set by the Trainer's batch-size finder."""
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
                f"DataModule: {type(self).__name__}.setup does not call super().setup(stage), without which a training can't "
                "resume."
            )
        before = self._position.replace_loaders()
        loaders = self._make("train", self._make_train)
        self._position.place(before)
        return loaders

    @property
    def val_dataloader(self) -> Callable[[], Any]:
        """Makes the loaders for validation. A training without such data sees none, as with any DataModule without that method."""
        if self._given["val"] is None and self.trainer is not None and self.trainer.state.fn == "fit":
            return _no_val_dataloader
        return functools.partial(self._make, "val", self._make_eval)

    @override
    def test_dataloader(self) -> Any:
        return self._make("test", self._make_eval)

    @override
    def predict_dataloader(self) -> Any:
        return self._make("predict", self._make_eval)

    @override
    def state_dict(self) -> dict[str, Any]:
        return self._position.state_dict()

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if self.trainer is None or self.trainer.state.fn == "fit":
            self._position.load_state_dict(state_dict)

    @override
    def teardown(self, stage: str) -> None:
        if stage == "fit":
            self._position.close()

    def _data(self, name: str) -> Data:
        """Return the datasets of that name; factories are called the first time."""
        if name not in self._made:
            given = self._given[name]
            self._made[name] = None if given is None else map_data(name, given, make_dataset)
        return self._made[name]

    def _make(self, name: str, make: Callable[[Any], Loader]) -> Any:
        if self._given[name] is None:
            raise ValueError(
                f"DataModule: the Trainer asks for {name} data, and none was given. Pass DataModule({name}=...)."
            )
        return map_data(name, self._data(name), make)

    def _make_train(self, dataset: Any) -> TrainLoader:
        config = self.loader_config
        shuffle = config.order is None and config.plan is None if config.shuffle is None else config.shuffle
        if is_stream(dataset):
            shuffle = bool(config.shuffle)  # the stream says so itself
        if self.trainer is not None and self.trainer.overfit_batches:  # type: ignore[attr-defined]
            if is_stream(dataset):
                raise ValueError(
                    "DataModule: overfit_batches trains on the same batches each epoch, and the training data is a stream, "
                    "which goes on. Give a dataset with an index, such as lk.ArrayDataset of some of its samples."
                )
            config = dataclasses.replace(config, order=None, plan=None, shuffle=None)
            shuffle = False  # the same batches each epoch
        together = self._made.get("train", self._given["train"])
        if isinstance(together, dict) and not is_stream(dataset) and any(map(is_stream, together.values())):
            config = dataclasses.replace(config, steps=None, stop=None, store=None)  # they are the stream's
        loader = self._make_loader(TrainLoader, dataset, config, shuffle)
        check_equal_ranks(self.trainer, loader, "train")
        self._position.add(loader)
        return loader

    def _make_eval(self, dataset: Any) -> EvalLoader:
        config = self.eval_config
        if self._eval_config is None:
            # Each sample once; what only streams have is nothing to other data.
            config = dataclasses.replace(config, **({"stop": "each"} if is_stream(dataset) else {"store": None}))
        loader = self._make_loader(EvalLoader, dataset, config, bool(config.shuffle))
        check_equal_ranks(self.trainer, loader, "evaluation")
        return loader

    def _make_loader(self, kind: type[L], dataset: Any, config: LoaderConfig, shuffle: bool) -> L:
        check_dataset("what a factory returned", dataset)
        changes: dict[str, Any] = {"shuffle": shuffle}
        if config.plan is not None:  # the rest is for evaluation
            changes |= {"batch_size": config.batch_size and 1, "drop_last": False, "tail": "keep"}
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


def _join(found: str | list[str] | dict[Any, str]) -> str:
    """Return the descriptions of a stage's datasets as one."""
    if isinstance(found, str):
        return found
    if isinstance(found, list):
        return f"[{', '.join(found)}]"
    return f"{{{', '.join(f'{name!r}: {one}' for name, one in found.items())}}}"
