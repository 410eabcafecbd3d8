"""examples/fabric_digits.py with torch's DataLoader and `fabric.setup_dataloaders` in place of the Loader."""

import sys
from pathlib import Path

import torch.utils.data as torch_data

import loaderkit as lk

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import fabric_digits


class TorchLoader:
    """A DataLoader that counts its batches; what it saves is the epoch, since a DataLoader has no position."""

    def __init__(self, fabric, loader):
        shuffle = loader.config.shuffle
        data = torch_data.DataLoader(loader.dataset, loader.batch_size, shuffle=shuffle)
        self.loader = fabric.setup_dataloaders(data)
        self.cursor = lk.Cursor()

    def __iter__(self):
        epoch = self.cursor.epoch
        for number, batch in enumerate(self.loader, 1):
            over = number == len(self.loader)
            self.cursor = lk.Cursor(epoch=epoch + 1) if over else lk.Cursor(epoch=epoch, batches=number)
            yield batch

    def state_dict(self):
        return {"epoch": self.cursor.epoch}

    def load_state_dict(self, state):
        self.cursor = lk.Cursor(epoch=state["epoch"])


if __name__ == "__main__":
    lk.integrations.fabric.setup = TorchLoader
    fabric_digits.main()
