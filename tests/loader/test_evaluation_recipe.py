"""The guide's evaluation on uneven ranks: each sample once, and the metrics of one process."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import on_gloo

import loaderkit as lk

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "distributed.md"
SIZE = 43


def recipe() -> Any:
    """The function `evaluate` as the guide prints it."""
    (source,) = re.findall(r"^def evaluate\(.*?\n\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"torch": torch, "dist": dist}
    exec(source, names)
    return names["evaluate"]


def evaluate_on_rank(rank: int, batch_size: int) -> Any:
    torch.manual_seed(0)
    pixels, labels = torch.randint(0, 16, (SIZE, 64)), torch.randint(0, 10, (SIZE,))
    loader: Any = lk.Loader(lk.ArrayDataset((pixels, labels)), batch_size)
    evaluate, model = recipe(), torch.nn.Linear(64, 10)
    first, second = evaluate(model, loader), evaluate(model, loader)
    assert torch.equal(first[1], second[1])
    return first[0], first[1].tolist(), len(loader)


@pytest.mark.parametrize("ranks", [2, 3])
def test_uneven_ranks_have_the_metrics_of_one_process(ranks: int) -> None:
    accuracy, predictions, _ = evaluate_on_rank(0, 8)
    assert len(predictions) == SIZE
    assert SIZE % ranks
    found = on_gloo(ranks, evaluate_on_rank, 8)
    for other, others, batches in found:
        assert other == accuracy
        assert others == predictions
        assert batches == found[0][2]
