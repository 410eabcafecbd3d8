"""What people see and may define in a notebook."""

import subprocess
import sys
from typing import Any

import pytest
import torch

import loaderkit as lk
from loaderkit.system import pickling
from loaderkit.system.start import choose_start

CELL = """
import loaderkit as lk

class Squares:
    def __len__(self): return 8
    def __getitem__(self, index): return index * index

loader = lk.Loader(Squares(), 4, num_workers=1, multiprocessing_context={method!r}, engine={engine!r})
print([batch.tolist() for batch in loader])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("method", "engine"), [("fork", "ring"), ("spawn", "torch"), ("forkserver", "ring")])
def test_workers_read_what_a_notebook_defines_or_say_what_to_do(method: str, engine: str) -> None:
    """A program read from standard input has no file to import, as a notebook."""
    cell = CELL.format(method=method, engine=engine)
    done = subprocess.run([sys.executable, "-"], input=cell, capture_output=True, text=True, check=False)
    if method == "fork":
        assert done.stdout == "[[0, 1, 4, 9], [16, 25, 36, 49]]\n"
    else:
        assert f"Squares is defined in this notebook, and workers started by '{method}' cannot import it" in done.stderr


class Holds:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def test_looking_for_what_a_notebook_defines_leaves_tensors_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickled as torch does for another process, they would move to shared memory: a file each, and workers would change them."""
    monkeypatch.setattr(pickling, "main_file", lambda: None)
    data = Holds(torch.nn.Parameter(torch.ones(3)))
    with pickling.explained(choose_start("forkserver"), data):
        pass
    assert not data.tensor.is_shared()
    monkeypatch.setattr(Holds, "__module__", "__main__")
    data.tensor.from_notebook = Holds(torch.ones(3))  # type: ignore[attr-defined]  # tensors take attributes
    with (
        pytest.raises(RuntimeError, match="Holds is defined in this notebook"),
        pickling.explained(choose_start("spawn"), data),
    ):
        pass


def parameter(size: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(size))


def storage(size: int) -> Any:
    return torch.ones(size).untyped_storage()


@pytest.mark.parametrize("make", [torch.ones, parameter, storage])
def test_looking_for_what_does_not_pickle_leaves_tensors_where_they_are(make: Any) -> None:
    data = {"memory": make(3), "hook": lambda: None}
    assert list(pickling.find_unpicklable(data)) == ["dataset['hook']"]
    assert not data["memory"].is_shared()


def test_a_tensor_that_torch_does_not_pickle_is_found() -> None:
    assert list(pickling.find_unpicklable({"x": torch.ones(3, requires_grad=True) * 2})) == ["dataset['x']"]


def test_objects_show_as_tables() -> None:
    data = lk.ArrayDataset({"x": list(range(10))})
    loader = lk.Loader(data, 4, shuffle=True)
    next(iter(loader))
    plan = lk.LengthBuckets([3, 1, 2], batch_size=2)
    shown = {
        "epoch 0, batch 1": loader,
        "ArrayDataset of 10 samples": lk.DataModule(data),
        "samples</td>": lk.split(data, {"train": 0.5, "val": 0.5}),
        "padded/real tokens": plan.summary(),
    }
    for text, value in shown.items():
        html = value._repr_html_()
        assert text in html
        assert html.startswith("<table>")
        assert "<Loader" not in html
