"""What several tests share: under Lightning with two ranks on gloo: exact on the same ranks, each sample once on others."""

from typing import Any

TWO = {"strategy": "ddp_fork", "devices": 2}


def ids_of(steps: list[dict[str, Any]], epoch: int) -> list[int]:
    return [index for step in steps if step["epoch"] == epoch for index in step["ids"][0]]
