"""What a Loader's attributes say, which of them may be assigned, and what a copy of a Loader yields."""

import copy
import pickle
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler

import loaderkit as lk


def make_loader(**settings: Any) -> lk.Loader[Any]:
    return lk.Loader(list(range(20)), 3, shuffle=True, seed=4, **settings)


def numbers(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_workers", 3), ("collate_fn", list), ("drop_last", True), ("batch_size", 2), ("timeout", 5), ("seed", 1)],
)
def test_assigning_a_setting_is_refused(name: str, value: Any) -> None:
    """A setting never changes without an effect: the error names the way to another Loader."""
    loader = make_loader()
    with pytest.raises(
        AttributeError, match=rf"{name} cannot change.*from_config\(loader.dataset, loader.config, {name}"
    ):
        setattr(loader, name, value)


def test_assigning_a_dataset_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"dataset cannot change.*from_config\(new_dataset, loader.config\)"):
        make_loader().dataset = [1, 2]


@pytest.mark.parametrize(
    ("name", "instead"),
    [("sampler", "order="), ("generator", "seed="), ("in_order", "in order"), ("pin_memory_device", "pin_memory=")],
)
def test_assigning_what_only_data_loader_has_is_refused(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"{name} cannot be assigned: .*{instead}"):
        setattr(make_loader(), name, None)


def test_attributes_of_data_loader_can_be_read() -> None:
    """Each public attribute of a DataLoader has a value here, or an error that names what a Loader has instead."""
    loader, peer = make_loader(drop_last=True), DataLoader(list(range(20)), 3)
    missing = {}
    for name in vars(peer).keys() | {"multiprocessing_context"}:
        if not name.startswith("_"):
            try:
                getattr(loader, name)
            except AttributeError as error:
                missing[name] = str(error)
    assert set(missing) == {"generator", "in_order", "pin_memory_device", "worker_init_fn"}
    assert "seed=" in missing["generator"]
    assert loader.drop_last
    assert loader.num_workers == 0
    assert loader.prefetch_factor is None
    assert loader.collate_fn([1, 2]).tolist() == [1, 2]


def test_the_sampler_yields_the_indices_of_the_coming_epoch() -> None:
    loader = make_loader(world=lk.World(1, 2))
    indices = list(loader.sampler)
    assert indices == [i for batch in numbers(loader) for i in batch]
    assert list(loader.sampler) != indices
    assert len(loader.sampler) == 10


def test_set_epoch_chooses_the_epoch_and_keeps_a_position_inside_it() -> None:
    loader = make_loader()
    epochs = [numbers(loader) for _ in range(3)]
    loader.set_epoch(1)
    assert numbers(loader) == epochs[1]
    loader.set_epoch(2)
    assert numbers(loader) == epochs[2]

    resumed = make_loader()
    batches = iter(loader)
    loader.set_epoch(1)
    batches = iter(loader)
    first = next(batches).tolist()
    resumed.load_state_dict(loader.state_dict())
    resumed.set_epoch(1)
    assert [first, *numbers(resumed)] == epochs[1]


def test_set_epoch_after_a_checkpoint_at_an_epochs_end() -> None:
    """A trainer that counts epochs itself continues with the next one, and does not repeat epoch 0."""
    loader = make_loader()
    epochs = [numbers(loader) for _ in range(2)]
    loader = make_loader()
    list(loader)
    resumed = make_loader()
    resumed.load_state_dict(loader.state_dict())
    resumed.set_epoch(1)
    assert numbers(resumed) == epochs[1]


def _stream() -> lk.StreamDataset:
    return lk.StreamDataset([f"{n}" for n in range(6)], read=lk.from_start(_read), lanes=2)


def _read(shard: str) -> Any:
    return iter(range(int(shard) * 5, int(shard) * 5 + 5))


@pytest.mark.parametrize("kind", ["array", "stream", "device"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
@pytest.mark.parametrize("stop", [0, 1, 4, 7])
def test_a_copy_continues_after_the_last_batch(kind: str, copied: Any, stop: int) -> None:
    loader: lk.Loader[Any]
    if kind == "stream":
        loader = lk.Loader(_stream(), 4, num_workers=stop % 2)
    else:
        loader = make_loader()
        if kind == "device":
            loader = lk.DeviceLoader(loader, "cpu", depth=3)
    whole = numbers(loader) + numbers(loader)
    loader.seek(epoch=0)
    assert len(whole) > 10
    batches = iter(loader)
    first = [next(batches).tolist() for _ in range(stop)]
    again = copied(loader)
    assert first + numbers(again) == whole[: len(first) + len(numbers_left(whole, stop, kind))]
    assert numbers(batches) == whole[stop : len(whole) // 2]  # the original is not disturbed


def numbers_left(whole: list[list[int]], stop: int, kind: str) -> list[list[int]]:
    """Return what a pass after `stop` batches yields: the rest of its epoch, or the next epoch after its end."""
    half = len(whole) // 2
    return whole[stop:half] if stop < half else whole[half:]


def test_the_batch_type_is_an_argument_of_the_class() -> None:
    def use(loader: lk.Loader[torch.Tensor]) -> torch.Tensor:
        return next(iter(loader))

    assert use(make_loader()).shape == (3,)


class Sizes(pl.LightningModule):
    """Records the batches of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[list[int]]] = []

    def on_train_epoch_start(self) -> None:
        self.seen.append([])

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        self.seen[-1].append(batch.tolist())
        return self.layer(batch[:, None].float()).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.0)


def make_trainer() -> pl.Trainer:
    return pl.Trainer(
        max_epochs=3,
        overfit_batches=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


@pytest.mark.filterwarnings("ignore")
def test_overfit_batches_repeats_the_same_batches_or_is_refused() -> None:
    """Lightning cannot turn off a Loader's shuffling, so a shuffled Loader does not train on other batches in silence."""
    model = Sizes()
    loader = lk.Loader(list(range(20)), 3)
    assert isinstance(loader.sampler, SequentialSampler)
    make_trainer().fit(model, loader)
    assert model.seen == [[[0, 1, 2], [3, 4, 5]]] * 3
    with pytest.raises(ValueError, match="DataLoader"):
        make_trainer().fit(Sizes(), make_loader())
    model = Sizes()
    make_trainer().fit(
        model, datamodule=lk.DataModule(list(range(20)), loader=lk.LoaderConfig(batch_size=3, shuffle=True))
    )
    assert model.seen == [[[0, 1, 2], [3, 4, 5]]] * 3
