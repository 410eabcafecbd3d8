"""A Loader under Lightning Fabric: the ranks and the device are the fabric's."""

from pathlib import Path
from typing import Any

import torch

from loaderkit.integrations.placement import place
from loaderkit.loader.loader import Loader
from loaderkit.loader.settings import Batch
from loaderkit.system.world import World


def setup(fabric: Any, loader: Loader[Batch], *, move_to_device: bool = True) -> Loader[Batch]:
    """Return a Loader with the rank and the device of this process of a fabric. Use it instead of `fabric.setup_dataloaders`.

    Fabric itself takes only torch's DataLoader. The result reads this rank's part of the data, as the fabric's strategy divides
    it: under model parallelism, ranks that share data read the same batches. Its batches are on the fabric's device; on CUDA
    they are copied ahead. Put the result into the state that you give to `fabric.save` and to `load`, next to the model.

    Args:
        fabric: A launched Fabric, of `lightning.fabric` or `lightning_fabric`.
        loader: The Loader. The result continues at its position, and keeps its `world` and `device` if it has them.
        move_to_device: Whether to put the batches on the fabric's device.

    Raises:
        TypeError: If `loader` is not a Loader, or is a DeviceLoader.
        RuntimeError: If the fabric has several processes, and is not launched.

    Examples:
        >>> from lightning.fabric import Fabric
        >>> fabric = Fabric(accelerator="cpu", devices=1)
        >>> loader = lk.Loader(lk.ArrayDataset(torch.arange(10)), batch_size=4, shuffle=True)
        >>> loader = lk.integrations.fabric.setup(fabric, loader)
        >>> [len(batch) for batch in loader]
        [4, 4, 2]
    """
    if fabric.world_size > 1 and not torch.distributed.is_initialized():
        raise RuntimeError(
            f"fabric: it has {fabric.world_size} processes and is not launched, so this process has no rank yet. Call "
            "fabric.launch() before."
        )
    device = fabric.device if move_to_device else None
    return place(loader, World.from_trainer(fabric), device, instead="fabric.setup_dataloaders")


def load(fabric: Any, path: Path | str, state: dict[str, Any], **options: object) -> dict[str, Any]:
    """Load a checkpoint by `fabric.load`, and give each Loader its state.

    Under FSDP and model parallelism, `fabric.load` itself only replaces the Loader in `state` by its saved state. The training
    would silently start the epoch again.

    Args:
        fabric: The Fabric.
        path: The checkpoint that `fabric.save` wrote.
        state: What to restore, as for `fabric.load`: a dict with the model, the optimizer and the Loader.
        options: Further arguments of `fabric.load`.

    Returns:
        The checkpoint's entries that are not in `state`.

    Raises:
        TypeError: If a Loader is in a dict or list inside `state`: Fabric saves and restores only what is in `state` itself.
        StateError: If the Loader's state is of other data, or is damaged.

    Examples:
        >>> from lightning.fabric import Fabric
        >>> fabric = Fabric(accelerator="cpu", devices=1)
        >>> loader = lk.integrations.fabric.setup(fabric, lk.Loader(lk.ArrayDataset(torch.arange(10)), batch_size=4))
        >>> state = {"loader": loader, "step": 0}
        >>> batch, state["step"] = next(iter(loader)), 1
        >>> fabric.save("last.ckpt", state)
        >>> loader.seek(epoch=7)
        >>> lk.integrations.fabric.load(fabric, "last.ckpt", state)
        {}
        >>> state["step"], loader.cursor.epoch, loader.cursor.samples
        (1, 0, 4)
    """
    for name, value in state.items():
        if isinstance(value, dict | list | tuple) and _has_loader(value):
            raise TypeError(
                f"fabric.load: state[{name!r}] is a {type(value).__name__} with a Loader in it, and Fabric restores only what "
                "is in the state itself. Give each Loader a name of its own in the state, for fabric.save too."
            )
    loaders = {name: value for name, value in state.items() if isinstance(value, Loader)}
    remainder: dict[str, object] = fabric.load(path, state, **options)
    for name, loader in loaders.items():
        if state[name] is not loader:
            loader.load_state_dict(state[name])
            state[name] = loader
    return remainder


def _has_loader(value: object) -> bool:
    if isinstance(value, dict | list | tuple):
        return any(map(_has_loader, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Loader)
