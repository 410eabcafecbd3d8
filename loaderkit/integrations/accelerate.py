"""The Loader under Hugging Face Accelerate: device placement, gradient accumulation, metrics and `save_state`.

`Accelerator.prepare` knows only torch's DataLoader, and returns a Loader unchanged. `prepare` here returns what Accelerate
expects of a prepared loader. It uses Accelerate's public parts: `DataLoaderStateMixin` tells `GradientState` when a pass begins
and ends, and `register_for_checkpointing` saves the state. Checked with Accelerate 1.15.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from accelerate.utils import find_batch_size, gather_object, recursively_apply
from typing_extensions import override

from loaderkit.loader.device_loader import DeviceLoader
from loaderkit.loader.loader import Loader, LoaderView
from loaderkit.system.world import World


def prepare(accelerator: Accelerator, *loaders: Loader, evaluation: bool | None = None) -> Any:
    """Return Loaders prepared for an Accelerator, one for each that is given.

    Their batches are on the accelerator's device. The last batch of an epoch ends a gradient accumulation. A loader for training
    is part of `accelerator.save_state` and `load_state`, so do not call `skip_first_batches` after a resume.

    A state that is saved during a gradient accumulation is that of the accumulation's start, because gradients are not saved.

    Args:
        accelerator: The Accelerator.
        loaders: The Loaders.
        evaluation: True is for metrics: on several ranks the last step repeats samples until all batches are full, and
            `gather_for_metrics` drops the repeated ones. The loader is not saved. False is for training: each sample is read
            once. None is like True for a Loader that does not shuffle, but the loader is saved, and a warning says if samples
            are repeated; it is like False for other Loaders.

    Raises:
        TypeError: If something is not a Loader, or if a stream or a Loader with a plan is for metrics on several ranks.
        ValueError: If the Accelerator splits batches, or if the Loader is for another number of ranks than the Accelerator's
            ranks with data of their own.

    Examples:
        >>> from accelerate import Accelerator
        >>> accelerator = Accelerator(cpu=True)
        >>> loader = lk.Loader(lk.ArrayDataset({"x": torch.ones(5, 2)}), batch_size=2, shuffle=True)
        >>> loader = lk.integrations.accelerate.prepare(accelerator, loader)
        >>> [accelerator.gradient_state.end_of_dataloader for batch in loader]
        [False, False, True]
    """
    prepared = [_prepare(accelerator, loader, evaluation) for loader in loaders]
    return prepared[0] if len(prepared) == 1 else tuple(prepared)


def skip_first_batches(loader: Loader, batches: int) -> Loader:
    """Go to a batch of the loader's current epoch, without reading what comes before, and return the loader.

    Args:
        loader: A Loader of data with an index.
        batches: The number of batches before it, counted from the epoch's start.

    Raises:
        TypeError: If the data is a stream: only reading finds a position in it.

    Examples:
        >>> loader = lk.Loader(range(10), batch_size=4)
        >>> [batch.tolist() for batch in lk.integrations.accelerate.skip_first_batches(loader, 2)]
        [[8, 9]]
    """
    position = loader.position
    if position.step is None:
        raise TypeError(
            "skip_first_batches: a stream finds its place by reading. Load its state: accelerator.load_state."
        )
    position.seek(position.cursor_at(position.upcoming()).epoch, 0)
    position.go_to((position.cursor, batches))
    return loader


class PreparedLoader(LoaderView[object], DataLoaderStateMixin):  # type: ignore[misc]  # Any where it is not installed
    """A Loader that tells Accelerate when its passes begin and end; made by `prepare`.

    Attributes:
        loader: The Loader that is read.
        end_of_dataloader: Whether the last batch that was yielded ends the epoch.
        remainder: How many samples the last step has without those that it repeats; 0 if it repeats none.
    """

    def __init__(self, accelerator: Accelerator, loader: Loader, remainder: int = 0) -> None:
        super().__init__(loader)
        self.accelerator = accelerator
        self.position.prepared = True
        self._remainder = remainder
        self.gradient_state = GradientState()
        # The points after the latest batches: from each batch of an accumulation, a state goes back to its start.
        self._points: deque[object] = deque()

    @override
    def __iter__(self) -> Iterator[object]:
        position = self.position
        start = position.upcoming()
        if not self._points or position.cursor_at(self._points[-1]) != position.cursor_at(start):
            self._points.clear()
            self._points.append(start)
        self.begin()
        self.remainder = self._remainder
        try:
            batches: Any = iter(self.loader)
            for batch in batches:
                self.end_of_dataloader = batches.over
                self._points.append(position.yielded() or position.point())
                while len(self._points) > max(1, self.gradient_state.num_steps):  # a program may change their number
                    self._points.popleft()
                yield batch
        finally:
            self.end()

    @override
    def state_dict(self) -> dict[str, Any]:
        steps, state = self.gradient_state.num_steps, self.gradient_state
        unfinished = 0 if state.sync_gradients else self.accelerator.step % steps
        if not unfinished or unfinished >= len(self._points):
            return self.loader.state_dict()
        self.position.say(
            f"Accelerator.save_state after batch {unfinished} of a gradient accumulation of {steps}: the gradients are not saved, "
            "so the resumed run repeats these batches, and dropout draws other numbers than here. Save if "
            "accelerator.sync_gradients."
        )
        return self.position.state_at(self._points[-1 - unfinished], self._points)

    @override
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self.loader.load_state_dict(state)
        self._points.clear()
        # The state stands at the start of an accumulation.
        self.accelerator.step -= self.accelerator.step % self.gradient_state.num_steps

    if not TYPE_CHECKING:

        def _hidden(self) -> object:
            raise AttributeError

        # `accelerate.skip_first_batches` would make a DataLoader of these, which reads the data past the Loader.
        sampler = batch_sampler = drop_last = property(_hidden)

        def __getattr__(self, name: str) -> Any:
            if name not in ("sampler", "batch_sampler", "drop_last"):
                return super().__getattr__(name)
            raise AttributeError(
                f"a prepared Loader has no {name}, so Accelerate cannot skip its batches. After accelerator.load_state there is "
                "nothing to skip: the Loader continues where it was. Without a state, use "
                "loaderkit.integrations.accelerate.skip_first_batches(loader, batches)."
            )


def gather_samples(accelerator: Accelerator, values: object, samples: int) -> Any:
    """Gather the rows of all ranks' batches, in the order of the ranks; batches may have different sizes.

    Args:
        accelerator: The Accelerator.
        values: A tensor, or a nest of them, with at least `samples` rows; further rows are dropped.
        samples: The number of samples in this rank's batch.
    """
    counts = gather_object([samples])
    most = max(counts)

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        if len(tensor) < samples:  # the Trainer's copies of one loss, as many as its batch size
            tensor = tensor[:1].expand(samples, *tensor.shape[1:])
        filled = tensor.new_zeros((most, *tensor.shape[1:]))
        filled[:samples] = tensor[:samples]
        parts = accelerator.gather(filled).split(most)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    return recursively_apply(gather, values, error_on_other_type=True)


def samples_in(batch: object) -> int | None:
    """Return the number of samples in a batch; None if it has no tensor."""
    found: int | None = find_batch_size(batch)
    return found


def check_ranks(accelerator: Accelerator, loader: Loader) -> None:
    """Raise a ValueError if the Accelerator splits batches over ranks, or if its number of ranks is not the Loader's."""
    if accelerator.split_batches:
        raise ValueError(
            f"prepare: the Accelerator splits batches over ranks, and batch_size={loader.batch_size} of a Loader is for each "
            "rank. Leave out split_batches=True, and divide batch_size by the ranks."
        )
    parallel = getattr(accelerator, "parallelism_config", None)
    ranks = accelerator.num_processes // (parallel.non_data_parallel_size if parallel else 1)
    if loader.config.world is None and loader.world.size != ranks:
        raise ValueError(
            f"prepare: the Loader reads for {loader.world.size} ranks, and the Accelerator has {ranks} with data of their own. If "
            "ranks share data, give the Loader world=, the data-parallel dimension of accelerator.torch_device_mesh. On CPUs, "
            "processes work together only with Accelerator(cpu=True), or TrainingArguments(use_cpu=True)."
        )


def _prepare(accelerator: Accelerator, loader: Loader, evaluation: bool | None) -> PreparedLoader:
    if not isinstance(loader, Loader):
        raise TypeError(
            f"prepare: found a {type(loader).__name__}, wanted an lk.Loader. Give other objects to accelerator.prepare."
        )
    if isinstance(loader, PreparedLoader):
        return loader
    check_ranks(accelerator, loader)
    remainder = 0
    if loader.world.size > 1 and (loader.position.repeats if evaluation is None else evaluation):
        loader, remainder = _filled(loader, say=evaluation is None)
    if accelerator.device_placement and loader.config.device is None and not isinstance(loader, DeviceLoader):
        loader = DeviceLoader(loader, accelerator.device)
    prepared = PreparedLoader(accelerator, loader, remainder)
    if not evaluation:
        accelerator.register_for_checkpointing(prepared)
    return prepared


def _filled(loader: Loader, *, say: bool) -> tuple[Loader, int]:
    """Return the loader with a full last step, and how many samples that step has without those that it repeats."""
    config, position, ranks = loader.config, loader.position, loader.world.size
    if position.step is None or config.plan is not None or config.batch_sampler is not None:
        raise TypeError(
            f"prepare: for metrics on {ranks} ranks Accelerate joins batches of one size, and a "
            f"{'stream' if position.step is None else 'plan'} has others. Give a Loader of data with an index and batch_size=; "
            "or give evaluation=False, and add up each rank's metrics with accelerator.reduce."
        )
    samples = len(Loader.from_config(loader.dataset, config, batch_size=1, tail="keep", drop_last=False, world=World()))
    remainder = samples % position.step
    if config.tail_policy == "drop" or not remainder:
        return loader, 0
    if say:
        position.say(
            f"prepare: a Loader that does not shuffle is read for metrics: on {ranks} ranks the last step repeats "
            f"{position.step - remainder} samples, and gather_for_metrics drops them. Confirm it with evaluation=True. If you "
            "train on it, give evaluation=False: then each sample comes once."
        )
    if config.tail_policy == "keep":
        if isinstance(loader, DeviceLoader):
            raise TypeError(
                "prepare: the last step of a DeviceLoader cannot be filled for metrics. Give its Loader tail='pad'."
            )
        filled = Loader.from_config(loader.dataset, config, tail="pad")
        filled.position.follow(position)
        loader = filled
    return loader, remainder
