"""Give a Loader the ranks and the device of a framework."""

import torch

from loaderkit.loader.device_loader import DeviceLoader
from loaderkit.loader.loader import Loader
from loaderkit.loader.settings import Batch
from loaderkit.system.world import World


def place(loader: Loader[Batch], world: World, device: torch.device | None, *, instead: str) -> Loader[Batch]:
    """Return a Loader for this world and device, which continues at the position of another Loader.

    Args:
        loader: The other Loader. If it has a `world` or a `device`, the result keeps it.
        world: The framework's rank and number of ranks.
        device: Where batches go; None leaves them on the host.
        instead: The framework's function for torch's DataLoader, which the error names.

    Raises:
        TypeError: If `loader` is not a Loader, or is a DeviceLoader.
    """
    if not isinstance(loader, Loader) or isinstance(loader, DeviceLoader):
        raise TypeError(
            f"the loader is a {type(loader).__name__}, wanted an lk.Loader. For torch's DataLoader call {instead}; instead of "
            "an lk.DeviceLoader give its loader."
        )
    if loader.config.world is None:
        before = loader
        loader = type(loader).from_config(loader.dataset, loader.config, world=world)
        loader.load_state_dict(before.state_dict())
    return loader if device is None or loader.config.device is not None else DeviceLoader(loader, device)
