"""The Loader under the Trainer of Hugging Face transformers, which then resumes inside an epoch without reading it again.

Where the Trainer of transformers 5.24 touches its data, and what happens there:

| in `trainer.py` | what it does | what the Loader does |
|---|---|---|
| `_inner_training_loop` | calls `get_train_dataloader` | `ResumableTrainer` makes a Loader |
| `set_initial_training_values` | `len`, `num_examples` | tells batches of this rank, and samples |
| `_init_training_state` | finds epoch and batch by `global_step` alone | `on_train_begin` compares them with the state |
| `_run_epoch` | `skip_first_batches`, which reads `dataset`, `batch_size`, `drop_last` | yields None for each skipped batch: no data is read |
| `_run_epoch` | `set_epoch`, if there is one | there is none: the Loader counts its epochs |
| `get_batch_samples` | takes the batches of one optimizer step ahead | the state is that after the last `on_step_end` |
| `_save_checkpoint` | `_save_rng_state` on each rank, then `trainer_state.json` | the state is part of `trainer_state.json`, the last file |
| `evaluation_loop` | `len`, `dataset`, `gather_function` | joins the rows of all ranks; no sample comes twice |
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch.utils.data as torch_data
from torch import nn
from transformers import TrainerCallback

from loaderkit.datasets.hf import HFDataset, is_theirs
from loaderkit.datasets.streams.dataset import StreamDataset
from loaderkit.integrations.accelerate import PreparedLoader, check_ranks, gather_samples, samples_in
from loaderkit.loader.loader import Loader
from loaderkit.loader.position import Position

if TYPE_CHECKING:
    from transformers import Trainer as _Base
    from transformers import TrainerControl, TrainerState, TrainingArguments
else:
    _Base = object

T = TypeVar("T")

_KEY = "loaderkit"  # of the state, among those of the Trainer's callbacks
_STATE = "trainer_state.json"


class ResumableTrainer(_Base):  # type: ignore[misc]  # Any where it is not installed
    """Put this before `Trainer` among the bases of a class, and its runs resume exactly, anywhere in an epoch.

    Datasets are read by a Loader with the settings of the `TrainingArguments`. Or give a Loader in place of a dataset: it
    keeps its own settings, such as `plan=lk.LengthBuckets(...)`, and its own `collate_fn`.

    The state is saved in each checkpoint's `trainer_state.json`. Another number of ranks may resume if an optimizer step has
    as many samples as before, because the Trainer counts nothing else.

    Evaluation reads each sample once over all ranks, and gives the metrics of one process.

    Raises:
        ValueError: If a run cannot resume exactly: the error says why, and the way out.

    Examples:
        >>> from transformers import Trainer
        >>> class MyTrainer(lk.integrations.huggingface.ResumableTrainer, Trainer):
        ...     pass
        >>> MyTrainer.train.__doc__.splitlines()[0]
        'Train, from a whole checkpoint if one is given; True takes the last whole one.'
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._follower = _Follower()
        self.add_callback(self._follower)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train, from a whole checkpoint if one is given; True takes the last whole one.

        Raises:
            ValueError: If the checkpoint is not whole, or there is none.
        """
        if resume_from_checkpoint is True:
            folder = self.args.output_dir
            resume_from_checkpoint = last_checkpoint(folder)
            if resume_from_checkpoint is None:
                raise ValueError(
                    f"cannot resume: found no whole checkpoint of a ResumableTrainer in {folder}. To start a new run "
                    "then, give resume_from_checkpoint=last_checkpoint(folder)."
                )
        elif resume_from_checkpoint and not _is_whole(Path(resume_from_checkpoint)):
            raise ValueError(
                f"cannot resume: {resume_from_checkpoint} is not a whole checkpoint of a ResumableTrainer. Give that of "
                "loaderkit.integrations.huggingface.last_checkpoint(folder)."
            )
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def get_train_dataloader(self) -> Any:
        """Return the training data as the Trainer reads it."""
        if self.train_dataset is None:
            raise ValueError("Trainer: training requires a train_dataset.")
        return TrainBatches(self._loader(self.train_dataset, self._train_batch_size, "training"))

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return a Loader of evaluation data."""
        if eval_dataset is None or isinstance(eval_dataset, str):
            found = self.eval_dataset
            eval_dataset = found[eval_dataset] if isinstance(eval_dataset, str) else found
        if eval_dataset is None:
            raise ValueError("Trainer: evaluation requires an eval_dataset.")
        return self.get_test_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return a Loader of test data."""
        loader = self._loader(test_dataset, self.args.eval_batch_size, "evaluation")
        loader.seek(epoch=0)
        return PreparedLoader(self.accelerator, loader)

    def prediction_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict a batch, and note its number of samples for the joined metrics."""
        if (samples := samples_in(inputs)) is not None:
            self.gather_function = lambda values, **_: gather_samples(self.accelerator, values, samples)
        # Else the Trainer multiplies each batch's loss by the ranks, also for models that ignore `num_items_in_batch`.
        averages, self.args.average_tokens_across_devices = self.args.average_tokens_across_devices, False
        try:
            return super().prediction_step(model, inputs, *args, **kwargs)
        finally:
            self.args.average_tokens_across_devices = averages

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model. In a checkpoint's folder, delete `trainer_state.json` first, so that the folder does not count as whole."""
        if _internal_call and output_dir is not None:
            self.state.stateful_callbacks.pop(_KEY, None)
            if self.args.should_save:
                Path(output_dir, _STATE).unlink(missing_ok=True)
        super().save_model(output_dir, _internal_call)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.state.stateful_callbacks[_KEY] = self._follower.saved(self.args)
        # `trainer_state.json` is written next: if it exists, so do the files of all ranks.
        self.accelerator.wait_for_everyone()

    def _loader(self, data: object, batch_size: int, use: str) -> Loader:
        loader = data if isinstance(data, Loader) else self._made(data, batch_size, use)
        check_ranks(self.accelerator, loader)
        return loader

    def _made(self, data: object, batch_size: int, use: str) -> Loader:
        args, trains = self.args, use == "training"
        strategy = args.train_sampling_strategy if trains else "sequential"
        if strategy not in ("random", "sequential"):
            raise ValueError(
                f"train_sampling_strategy={strategy!r} is not for a Loader. Give the Trainer "
                "train_dataset=lk.Loader(dataset, plan=lk.LengthBuckets(lengths, batch_size), collate_fn=...), and leave it out."
            )
        settings: dict[str, Any] = {}
        if isinstance(data, torch_data.IterableDataset):
            if args.world_size > 1:
                data, settings = self._part(data, use), {"stop": "shortest"}
        else:
            data = HFDataset(data) if is_theirs(data) else data
            if trains:
                settings = {"shuffle": strategy == "random", "drop_last": args.dataloader_drop_last}
        return Loader(
            data,
            batch_size,
            seed=args.seed if args.data_seed is None else args.data_seed,
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, description=use),
            num_workers=args.dataloader_num_workers,
            pin_memory="auto" if args.dataloader_pin_memory else False,
            prefetch_factor=args.dataloader_prefetch_factor,
            persistent_workers=(trains and args.dataloader_persistent_workers) or None,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            **settings,
        )

    def _part(self, data: object, use: str) -> object:
        """Return this rank's part of an iterable dataset."""
        args = self.args
        if use == "training" and isinstance(data, StreamDataset):
            return data  # it divides itself
        if use == "training" and is_theirs(data):
            from datasets.distributed import split_dataset_by_node

            return split_dataset_by_node(data, args.process_index, args.world_size)
        raise ValueError(
            f"Trainer: the {use} data, {type(data).__name__}, does not say how {args.world_size} ranks share it. Give data "
            "with a length and an index, or a Loader of a stream, with its stop=: lk.Loader(stream, stop='shortest')."
        )


def last_checkpoint(folder: str | Path) -> str | None:
    """Return the last whole checkpoint in a folder; None if there is none.

    A kill may leave files of a checkpoint that is not whole. Its `trainer_state.json`, which is written last, is then not there,
    or cannot be read.

    Args:
        folder: The Trainer's `output_dir`.

    Examples:
        >>> print(lk.integrations.huggingface.last_checkpoint("no such folder"))
        None
    """
    found = [path for path in Path(folder).glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    found.sort(key=lambda path: int(path.name.removeprefix("checkpoint-")), reverse=True)
    return next((str(path) for path in found if _is_whole(path)), None)


class TrainBatches:
    """A Loader with the attributes that the Trainer reads.

    `accelerate.skip_first_batches` makes a loader of `dataset` and the settings here, and drops the first batches
    that it yields. `dataset` yields None for each batch that was trained on, and then goes on with the Loader.
    """

    batch_size = None  # the dataset yields batches
    drop_last = False
    prefetch_factor = None

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.dataset = _Rest(self)
        self.trained = 0  # batches of the epoch that the Trainer will drop
        self.is_over = False

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[object]:
        return iter(()) if self.is_over else iter(self.loader)

    @staticmethod
    def collate_fn(batch: T) -> T:
        """Return a batch as it is."""
        return batch


class _Rest(torch_data.IterableDataset[object]):
    """The batches of an epoch, with None for each that was trained on. Its length is the data's number of samples."""

    def __init__(self, batches: TrainBatches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches.loader.dataset)

    def __iter__(self) -> Iterator[object]:
        for _ in range(self._batches.trained):
            yield None
        yield from self._batches


class _Follower(TrainerCallback):  # type: ignore[misc]  # Any where it is not installed
    """Loads the Loader's state when a training begins, and follows the optimizer's steps."""

    def on_train_begin(
        self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl", **parts: Any
    ) -> "TrainerControl":
        self._batches: TrainBatches = parts["train_dataloader"]
        loader = self._batches.loader
        loader.position.prepared = True
        length = _length(loader)
        if state.global_step:
            self._resume(loader, length, args, state)
        else:
            loader.seek(epoch=0)
        if state.global_step >= state.max_steps:  # else the Trainer would make one more step
            self._batches.is_over = control.should_training_stop = True
        self._learnt = loader.position.point()
        return control

    def on_step_end(
        self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl", **parts: object
    ) -> None:
        position = self._batches.loader.position
        self._learnt = position.yielded() or position.point()

    def saved(self, args: "TrainingArguments") -> dict[str, Any]:
        """Return the state after the last optimizer step; each rank of a stream has to call this."""
        position = self._batches.loader.position
        return {"loader": position.state_at(self._learnt, [self._learnt]), "samples": _step_samples(position, args)}

    def _resume(self, loader: Loader, length: int | None, args: "TrainingArguments", state: "TrainerState") -> None:
        saved = state.stateful_callbacks[_KEY]
        loader.load_state_dict(saved["loader"])
        steps = state.max_steps if length is None else max(1, -(-length // args.gradient_accumulation_steps))
        epoch, done = divmod(state.global_step, steps)
        self._batches.trained = batches = done * args.gradient_accumulation_steps
        if args.ignore_data_skip and batches:
            raise ValueError(
                "cannot resume exactly: ignore_data_skip=True trains on the whole epoch again. Leave it out: a Loader skips "
                "without reading."
            )
        cursor, samples = loader.cursor, _step_samples(loader.position, args)
        if length is None:
            return
        if (cursor.epoch, cursor.batches, len(loader)) != (epoch, batches, length):
            raise ValueError(
                f"cannot resume: the data is in epoch {cursor.epoch} after batch {cursor.batches} of {len(loader)}, and the "
                f"Trainer takes it for epoch {epoch} after batch {batches} of {length}, as it counts optimizer steps alone "
                f"({state.global_step}). An optimizer step had {saved['samples']} samples over all ranks, and has {samples} "
                "now: per_device_train_batch_size x gradient_accumulation_steps x ranks. Make it the same again. If it is, "
                "something ended an epoch early; resume with a plain loop."
            )


def _step_samples(position: Position, args: "TrainingArguments") -> int | None:
    """Return the number of samples in a step of the optimizer; None for a stream, which does not count them."""
    return None if position.step is None else position.step * args.gradient_accumulation_steps


def _length(loader: Loader) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _is_whole(checkpoint: Path) -> bool:
    try:
        return _KEY in json.loads((checkpoint / _STATE).read_text())["stateful_callbacks"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
