"""Uses loaderkit in a process that has imported pytorch_lightning, and checks that lightning is not imported."""

import pickle
import pydoc
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch
from lightning_fabric import Fabric
from pytorch_lightning.callbacks import BasePredictionWriter
from pytorch_lightning.cli import LightningCLI
from pytorch_lightning.demos.boring_classes import BoringModel

import loaderkit as lk

OFF = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)


class Writer(BasePredictionWriter):
    """Keeps the indices that the Trainer tells a prediction writer."""

    def __init__(self) -> None:
        super().__init__("epoch")

    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices) -> None:
        self.indices = batch_indices


class Data(lk.DataModule):
    """A DataModule of the user's own, whose settings come from a file."""

    def __init__(self, size: int, loader: lk.LoaderConfig) -> None:
        rows = lk.ArrayDataset(torch.ones(size, 32))
        super().__init__(rows, rows, predict=rows, loader=loader)


def main() -> None:
    public = [getattr(lk, name) for name in lk.__all__]
    kinds = [kind for kind in public if isinstance(kind, type) and issubclass(kind, pl.LightningDataModule)]
    assert len(kinds) == 7
    assert len([kind for kind in public if isinstance(kind, type) and issubclass(kind, pl.Callback)]) >= 2
    for kind in (*kinds, lk.SeedSteps):
        assert kind.__module__.startswith("loaderkit.lightning")
        assert pickle.loads(pickle.dumps(kind)) is kind
        assert "pytorch_lightning" in pydoc.plain(pydoc.render_doc(kind))

    Path("config.yaml").write_text("data: {size: 10, loader: {batch_size: 4}}")
    args = ["fit", "--config=config.yaml", "--trainer.max_epochs=2", "--trainer.accelerator=cpu"]
    args += [f"--trainer.{name}=false" for name in OFF]
    cli = LightningCLI(BoringModel, Data, save_config_callback=None, args=args)
    assert cli.trainer.global_step == 6
    cli.datamodule.trainer = None
    assert pickle.loads(pickle.dumps(cli.datamodule)).state_dict() == cli.datamodule.state_dict()

    writer = Writer()
    trainer = pl.Trainer(accelerator="cpu", callbacks=[writer, lk.DataWaitCallback()], **OFF)
    assert len(trainer.predict(BoringModel(), cli.datamodule)) == 3
    assert writer.indices == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]]

    fabric = Fabric(accelerator="cpu", devices=1)
    loader = lk.integrations.fabric.setup(fabric, lk.Loader(range(4), 2))
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
    assert "lightning" not in sys.modules
    print("under pytorch_lightning alone")


if __name__ == "__main__":
    main()
