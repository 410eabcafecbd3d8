"""A Loader under Ray Train: the ranks and the device are those of Ray's worker."""

from typing import Any

import ray.train
import ray.train.torch

from loaderkit.integrations.placement import place
from loaderkit.loader.loader import Loader
from loaderkit.loader.settings import Batch
from loaderkit.system.world import World


def prepare(loader: Loader[Batch], *, move_to_device: bool = True) -> Loader[Batch]:
    """Return a Loader with the rank and the device of this worker of Ray Train.

    Use it instead of `ray.train.torch.prepare_data_loader`, not together with it. That function makes a new DataLoader from its
    argument, and fails with a Loader on several workers. On one worker it wraps the Loader and reads one batch ahead, so each
    saved state skips a batch.

    Call it in the function that Ray's workers run. Put `loader.state_dict()` into the checkpoint that `ray.train.report`
    takes; it is the same on all workers, and any number of workers may load it.

    Args:
        loader: The Loader. The result continues at its position, and keeps its `world` and `device` if it has them.
        move_to_device: Whether to put the batches on the worker's device; on CUDA they are copied ahead.

    Raises:
        TypeError: If `loader` is not a Loader, or is a DeviceLoader.

    Examples:
        >>> import ray.train.torch
        >>> def train():
        ...     loader = lk.integrations.ray.prepare(lk.Loader(range(10), batch_size=4, shuffle=True))
        ...     if checkpoint := ray.train.get_checkpoint():
        ...         with checkpoint.as_directory() as folder:
        ...             loader.load_state_dict(torch.load(f"{folder}/state.pt")["loader"])
        ...     print([len(batch) for batch in loader])
        >>> here = ray.train.ScalingConfig(num_workers=0)  # without a cluster
        >>> result = ray.train.torch.TorchTrainer(train, scaling_config=here).fit()
        [4, 4, 2]
    """
    context: Any = ray.train.get_context()
    world = World(context.get_world_rank(), context.get_world_size(), context.get_local_world_size())
    device = ray.train.torch.get_device() if move_to_device else None
    return place(loader, world, device, instead="ray.train.torch.prepare_data_loader")
