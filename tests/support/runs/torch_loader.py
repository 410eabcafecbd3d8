"""torch's DataLoader as a trainer prepares it, in the place of a Loader in an example."""

from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.data as torch_data

import loaderkit as lk


class TorchLoader:
    """A DataLoader that counts its batches; what it saves is the epoch, since a DataLoader has no position."""

    def __init__(self, loader: lk.Loader, prepare: Callable[[Any], Any]) -> None:
        shuffle = loader.config.shuffle
        self.loader = prepare(torch_data.DataLoader(loader.dataset, loader.batch_size, shuffle=bool(shuffle)))
        self.cursor = lk.Cursor()

    def __iter__(self) -> Iterator[Any]:
        epoch = self.cursor.epoch
        if hasattr(self.loader.sampler, "set_epoch"):
            self.loader.sampler.set_epoch(epoch)
        for number, batch in enumerate(self.loader, 1):
            over = number == len(self.loader)
            self.cursor = lk.Cursor(epoch=epoch + 1) if over else lk.Cursor(epoch=epoch, batches=number)
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.cursor.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.cursor = lk.Cursor(epoch=state["epoch"])
