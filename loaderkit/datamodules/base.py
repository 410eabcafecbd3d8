"""A LightningDataModule for any datasets, whose state means *learnt*."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import lightning.pytorch as pl
from typing_extensions import override

from loaderkit.config import LoaderConfig
from loaderkit.datamodules.loaders import (
    EvalLoader,
    TrainerLoader,
    TrainLoader,
    check_equal_ranks,
    is_stream,
    why_not_ahead,
)
from loaderkit.datamodules.progress import TrainProgress, epoch_batches, learnt, set_batches, set_epoch_over, used
from loaderkit.loader import Loader
from loaderkit.prefetch import Prefetcher
from loaderkit.world import World

L = TypeVar("L", bound=TrainerLoader)
Data = Any  # a dataset, a zero-argument factory of one, or a dict or list of those
_KEYS = {"train", "batches", "epoch_over"}  # of the state
_STAGES = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}


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
        val: A dataset or a stream, or a list of them.
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
        self._made: dict[str, Data] = {}
        self.loader_config = loader or LoaderConfig()
        self._eval_config = eval_loader
        self._loaders: list[TrainLoader] = []
        self._restored: dict[str, Any] | None = None
        self._first = 0  # where the loaders are marked, in batches of the Trainer's epoch
        self._waiting = True  # no batch has begun since then

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
            self._loaders, self._restored = [], None
        if self.trainer is not None and not any(isinstance(c, TrainProgress) for c in _callbacks(self.trainer)):
            _callbacks(self.trainer).append(TrainProgress())

    @override
    def train_dataloader(self) -> Any:
        if not self._waiting:
            self._end_epoch()
        before, self._loaders = self._loaders, []
        loaders = self._make("train", self._make_train)
        if self._restored is not None:
            self._restore()
        else:
            # A second fit goes on counting epochs, and a reload in a run goes on where the last loaders stopped.
            epoch = self.trainer.current_epoch if self.trainer is not None else 0
            for row, loader in enumerate(self._loaders):
                if len(before) == len(self._loaders):
                    loader.follow(before[row])
                else:
                    loader.seek(epoch=epoch)
            self._stand(0)
        return loaders

    @override
    def val_dataloader(self) -> Any:
        if self._given["val"] is None and self.trainer is not None and self.trainer.state.fn == "fit":
            return []  # training goes on without validation, as with any DataModule that has none
        return self._make("val", self._make_eval)

    @override
    def test_dataloader(self) -> Any:
        return self._make("test", self._make_eval)

    @override
    def predict_dataloader(self) -> Any:
        return self._make("predict", self._make_eval)

    @override
    def state_dict(self) -> dict[str, Any]:
        if not self._loaders:
            return self._restored or {"train": [], "batches": 0, "epoch_over": False}
        if self.trainer is None:
            states = [loader.state_dict() for loader in self._loaders]
            return {"train": states, "batches": self._loaders[0].cursor.batches, "epoch_over": False}
        batches, over = self._learnt()
        states = [loader.state_after(batches - self._first, over=over) for loader in self._loaders]
        ended = [not over and loader.has_ended(state) for loader, state in zip(self._loaders, states, strict=True)]
        return {"train": states, "batches": 0 if over else batches, "epoch_over": over, "ended": ended}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if self.trainer is not None and self.trainer.state.fn != "fit":
            return
        self._restored = dict(state_dict)
        if self._loaders:
            self._restore()

    @override
    def teardown(self, stage: str) -> None:
        if stage == "fit":
            for loader in self._loaders:
                loader.close()

    def _data(self, name: str) -> Data:
        """Return the datasets of that name; factories are called the first time."""
        if name not in self._made:
            given = self._given[name]
            self._made[name] = _map_data(name, given, lambda item: item if hasattr(item, "__getitem__") else item())
        return self._made[name]

    def _make(self, name: str, make: Callable[[Any], Loader]) -> Any:
        data = self._data(name)
        if data is None:
            raise ValueError(
                f"DataModule: the Trainer asks for {name} data, and none was given. Pass DataModule({name}=...)."
            )
        return _map_data(name, data, make)

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
        if self.trainer is not None:
            loader.driven = True
            loader.saved = functools.partial(self._saved_state, len(self._loaders))
            loader.loaded = self._stand_where_the_trainer_does
        self._loaders.append(loader)
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
        changes: dict[str, Any] = {"shuffle": shuffle}
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

    def _saved_state(self, row: int) -> dict[str, Any]:
        state: dict[str, Any] = self.state_dict()["train"][row]
        return state

    def _learnt(self) -> tuple[int, bool]:
        """Return how many of the epoch's batches are learnt, and whether it is over."""
        if self._waiting or self.trainer is None:
            return self._first, False
        batches, over = learnt(self.trainer)
        return max(batches, self._first), over

    @property
    def _resumes_before_a_first_batch(self) -> bool:
        return self._restored is not None and self._first == 0

    def _begin_epoch(self) -> None:
        if not self._waiting or self._first:
            self._end_epoch()
            self._stand(0)

    def _end_epoch(self) -> None:
        """Give back what CombinedLoader took of some datasets before it found that the others had ended.

        So a run goes on from an epoch's end as one that is resumed there.
        """
        if len(self._loaders) > 1 and self.trainer is not None and self.trainer.state.fn == "fit":
            batches = 0 if self._waiting else used(self.trainer) - self._first
            for loader in self._loaders:
                loader.end_epoch(batches)

    def _begin_batch(self) -> None:
        self._waiting = False
        self._restored = None  # done: loaders that are made later go on where these stop
        batches, _ = self._learnt()
        for loader in self._loaders:
            loader.begin_batch(batches - self._first)

    def _stand(self, first: int, ended: Sequence[bool] = ()) -> None:
        for row, loader in enumerate(self._loaders):
            loader.mark(ended=len(ended) > 1 and ended[row])
        self._first, self._waiting = first, True

    def _stand_where_the_trainer_does(self) -> None:
        if self.trainer is not None:
            self._stand(learnt(self.trainer)[0])

    def _restore(self) -> None:
        """Put the loaders where the loaded state says."""
        state: Mapping[str, Any] = self._restored or {}
        saved = state["train"]
        if saved and len(saved) != len(self._loaders):
            raise ValueError(
                f"cannot resume: the checkpoint has {len(saved)} training datasets, this DataModule has "
                f"{len(self._loaders)}. Give it the same datasets."
            )
        for row, loader in enumerate(self._loaders):
            loader.restored = False
            if saved:
                loader.load_state_dict(saved[row])
            else:
                loader.seek(epoch=0)
            loader.restored = True
        first = self._translate(state)
        self._stand(first, state.get("ended", ()))

    def _translate(self, state: Mapping[str, Any]) -> int:
        """Return how many batches of the epoch are done, counted in batches of the present world and batch size."""
        old = [saved.get("step") for saved in state["train"]]
        new = [loader.step for loader in self._loaders]
        fewer_steps = new == [None] and state["batches"] and not self._loaders[0].cursor.batches
        if not old or (old == new and not fewer_steps):
            return int(state["batches"])
        if len(new) > 1:
            raise ValueError(
                "cannot resume: several training datasets were read side by side, and the world or the batch size has "
                f"changed (steps of {old} samples over all ranks then, of {new} now). Keep those of the checkpoint."
            )
        loader = self._loaders[0]
        done = loader.cursor.batches
        at_limit = not fewer_steps and self.trainer is not None and 0 < epoch_batches(self.trainer, len(loader)) <= done
        if fewer_steps or at_limit:
            # In the new unit the epoch is over already, or nobody knew it was when a stream ended below the limit.
            if at_limit:
                loader.seek(epoch=loader.cursor.epoch + 1)
            self._restored = {**state, "epoch_over": True}
            return 0
        return done

    def _check_names(self, checkpoint: Mapping[str, Any]) -> None:
        """Say that a checkpoint's data state was passed over, as Lightning does where the class has another name."""
        own = type(self).__qualname__
        states = [name for name, state in checkpoint.items() if isinstance(state, Mapping) and set(state) >= _KEYS]
        if own not in checkpoint and states:
            warnings.warn(
                f"DataModule: the checkpoint has the data state of class {states[0]!r}, and this DataModule is {own!r}: "
                "Lightning files it under the class's name. Neither the place in the data nor what was fitted to it was "
                f"loaded. Name the class {states[0]!r}, or rename the entry: checkpoint[{own!r}] = "
                f"checkpoint.pop({states[0]!r}).",
                stacklevel=2,
            )

    def _correct_loops(self, fit_loop: dict[str, Any]) -> None:
        """Make a checkpoint's own counts of batches agree with the loaders, before the loops read them."""
        if self._restored is None or not self._restored["train"]:
            return
        if not self._loaders:
            self.train_dataloader()
        current = fit_loop["epoch_loop.batch_progress"]["current"]
        over, batches = self._restored["epoch_over"], self._restored["batches"]
        saved_whole = current["processed"] == batches or (over and batches == 0)  # no open accumulation
        uncounted = saved_whole and current["ready"] == current["processed"]
        if over:
            set_epoch_over(fit_loop, uncounted=uncounted)
        elif current["processed"] != self._first or current["ready"] != self._first:
            set_batches(fit_loop, self._first, uncounted=uncounted)


def _callbacks(trainer: pl.Trainer) -> list[pl.Callback]:
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    return callbacks


def _map_data(name: str, data: Data, function: Callable[[Any], Any]) -> Any:
    """Apply a function to each dataset: train data may be a dict of them, other data a list too."""
    if data is None:
        return None
    if isinstance(data, dict):
        return {key: function(item) for key, item in data.items()}
    if isinstance(data, list | tuple) and name != "train":
        return [function(item) for item in data]
    return function(data)
