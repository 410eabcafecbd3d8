"""examples/ray_train_digits.py with torch's DataLoader and `prepare_data_loader` in place of the Loader."""

import sys
from pathlib import Path

EXAMPLES = str(Path(__file__).parents[3] / "examples")
sys.path.insert(0, EXAMPLES)


def train(config):
    sys.path.insert(0, EXAMPLES)
    import ray.train.torch
    import ray_train_digits
    from torch_loader import TorchLoader

    import loaderkit as lk

    lk.integrations.ray.prepare = lambda loader: TorchLoader(loader, ray.train.torch.prepare_data_loader)
    return ray_train_digits.train(config)


if __name__ == "__main__":
    import ray_train_digits

    ray_train_digits.train = train
    ray_train_digits.main()
