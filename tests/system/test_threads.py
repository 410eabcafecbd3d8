"""Workers have one thread each, whatever the engine."""

import importlib
import os
from typing import Any

import numpy as np
import pytest
import torch

import loaderkit as lk
from loaderkit.system.threads import threads_of_a_read


class Threads:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int]:
        return torch.get_num_threads(), int(os.environ["OMP_NUM_THREADS"])


@pytest.mark.parametrize("engine", ["torch", "ring"])
def test_a_worker_has_one_thread(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    found = list(lk.Loader(Threads(), 2, num_workers=2, engine=engine))
    assert [each.tolist() for each in found[0]] == [[1, 1], [1, 1]]
    assert torch.get_num_threads() == before
    assert "OMP_NUM_THREADS" not in os.environ


class Blas(Threads):
    def __getitem__(self, index: int) -> Any:
        return [each["num_threads"] for each in importlib.import_module("threadpoolctl").threadpool_info()]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_blas_has_one_thread_if_threadpoolctl_is_installed(method: str) -> None:
    pytest.importorskip("threadpoolctl")
    pytest.importorskip("scipy.linalg")  # has its own BLAS, loaded after loaderkit
    np.ones((2, 2)) @ np.ones((2, 2))
    settings: dict[str, Any] = {"num_workers": 1, "collate_fn": list, "multiprocessing_context": method}
    counts = next(iter(lk.Loader(Blas(), 1, **settings)))[0]
    assert counts
    assert set(counts) == {1}


def test_worker_init_fn_may_raise_the_limit() -> None:
    found = list(lk.Loader(Threads(), 2, num_workers=1, worker_init_fn=lambda _: torch.set_num_threads(2)))
    assert found[0][0].tolist() == [2, 2]


def test_a_read_uses_one_thread_if_several_threads_read() -> None:
    found = []

    class Asks:
        draws_nothing = True

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            found.append(threads_of_a_read())
            return index

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert len(list(lk.Loader(Asks(), 1, num_workers=3, engine="threads"))) == 4
        assert len(list(lk.Loader(Asks(), 1))) == 4
    finally:
        torch.set_num_threads(before)
    assert found == [1] * 4 + [3] * 4
