"""Objects of other libraries become a batch by their own library's function."""

import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor

import loaderkit as lk
from loaderkit.system.stack import stack


class MetaTensor(Tensor):
    """Stands for MONAI's: a tensor whose attributes describe one picture, with a function that makes a batch of them."""


class BaseData:
    """Stands for torch_geometric's: any object."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes


class Data(BaseData):
    pass


class Batch:
    def __init__(self, graphs: list[BaseData]) -> None:
        self.graphs = graphs

    @classmethod
    def from_data_list(cls, graphs: list[BaseData]) -> "Batch":
        if graphs[0].nodes < 0:
            raise KeyError("no such store")
        return cls(graphs)


def collate_meta_tensor(values: Any) -> Any:
    batch: Any = torch.stack([value.as_subclass(Tensor) for value in values]).as_subclass(MetaTensor)
    batch.meta = [value.meta for value in values]
    return batch


MetaTensor.__module__ = "monai.data.meta_tensor"
BaseData.__module__ = "torch_geometric.data.data"


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in {
        "monai.data.utils": {"collate_meta_tensor": collate_meta_tensor},
        "torch_geometric.data": {"Batch": Batch},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


def picture(number: int) -> Any:
    made: Any = torch.full((2,), float(number)).as_subclass(MetaTensor)
    made.meta = {"name": f"case{number}"}
    return made


def test_each_picture_keeps_its_own_name() -> None:
    loader = lk.Loader([{"image": picture(number)} for number in range(8)], 4)
    batches = [batch["image"] for batch in loader]
    assert [type(batch) for batch in batches] == [MetaTensor] * 2
    assert [name for batch in batches for name in batch.meta] == [{"name": f"case{number}"} for number in range(8)]
    assert torch.cat([batch.as_subclass(Tensor) for batch in batches])[:, 0].tolist() == list(range(8))


def test_graphs_become_their_librarys_batch_also_inside_of_samples() -> None:
    graphs = [Data(number) for number in range(4)]
    for batch in (
        stack(graphs),
        stack([{"graph": graph} for graph in graphs])["graph"],
        stack([[g] for g in graphs])[0],
    ):
        assert type(batch) is Batch
        assert batch.graphs == graphs


def test_the_field_is_named_that_the_library_cannot_make_a_batch_of() -> None:
    with pytest.raises(
        lk.CollateError,
        match=r"field 'g' has type Data, which torch_geometric.data.Batch.from_data_list cannot stack: 'no such",
    ):
        stack([{"g": Data(-1)}] * 2)
    with pytest.raises(lk.CollateError, match=r"field 'i' has shapes \(2,\) and \(1,\).*PadCollate"):
        stack([{"i": picture(0)}, {"i": picture(1)[:1]}])


def test_a_class_of_the_same_name_elsewhere_is_no_librarys() -> None:
    with pytest.raises(TypeError, match="field 'g' has type Data"):
        stack([{"g": type("Data", (), {})()}] * 2)


def test_rows_of_a_file_of_tensordict_are_no_longer_of_the_file(tmp_path: Any) -> None:
    tensordict = pytest.importorskip("tensordict")
    whole = tensordict.MemoryMappedTensor.from_tensor(torch.arange(12.0).reshape(4, 3), filename=str(tmp_path / "x"))
    batch = stack([whole[row] for row in range(4)])
    assert type(batch) is Tensor
    assert torch.equal(batch, torch.arange(12.0).reshape(4, 3))
