"""The seed that ranks take from torch."""

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

import loaderkit as lk


def _rank(rank: int, folder: str) -> None:
    torch.manual_seed(100 + rank)
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    Path(folder, str(rank)).write_text(str(lk.torch_seed()))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_ranks_agree_on_the_seed_of_rank_0(tmp_path: Path) -> None:
    mp.spawn(_rank, (str(tmp_path),), nprocs=2)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["100", "100"]


def test_the_seed_follows_manual_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    assert lk.torch_seed() == 5
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="2 ranks, and no process group"):
        lk.torch_seed()
