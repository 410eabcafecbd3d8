"""The torch engine ends with an error, whatever a worker cannot send and however it hangs."""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scripts
import torch
import torch.utils.data as torch_data

import loaderkit as lk


class Unsendable:
    def __reduce__(self) -> Any:
        raise ValueError("it is bound to this process")


def unsendable_error() -> Exception:
    class Local(Exception):  # noqa: N818
        pass

    return Local("of a local class")


class Faulty(torch_data.Dataset[Any]):
    def __init__(self, what: str) -> None:
        self.what = what

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if index < 4:
            return index
        if self.what == "error":
            raise unsendable_error()
        if self.what == "nested":  # torch's own pickling sends it
            return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
        return Unsendable()


class FaultyStream(torch_data.IterableDataset[Any]):
    def __init__(self, what: str) -> None:
        self.data = Faulty(what)

    def __iter__(self) -> Iterator[Any]:
        return map(self.data.__getitem__, range(12))


def as_it_is(samples: list[Any]) -> Any:
    return samples


def fail_in_worker(worker: int) -> None:
    raise unsendable_error()


FAULTS = {
    "object": (ValueError, "(?s)bound to this process.*a worker cannot send this batch"),
    "error": (RuntimeError, "Local: of a local class"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", [Faulty, FaultyStream])
def test_nested_tensors_arrive(kind: Any) -> None:
    engine: dict[str, Any] = {"engine": "torch"} if kind is Faulty else {}
    batches = list(lk.Loader(kind("nested"), 4, num_workers=1, timeout=120, collate_fn=as_it_is, **engine))
    assert [len(batch) for batch in batches] == [4, 4, 4]
    assert all(part.sum() in (6, 12) for batch in batches[1:] for value in batch for part in value.unbind())


@pytest.mark.parametrize("kind", [Faulty, FaultyStream])
@pytest.mark.parametrize("what", FAULTS)
def test_what_a_worker_cannot_send_is_an_error_in_the_trainer(what: str, kind: Any) -> None:
    error, message = FAULTS[what]
    engine: dict[str, Any] = {"engine": "torch"} if kind is Faulty else {}
    loader = lk.Loader(kind(what), 4, num_workers=1, timeout=120, collate_fn=as_it_is, **engine)
    seen: list[Any] = []
    with pytest.raises(error, match=message):
        seen.extend(loader)
    assert seen == (
        [] if kind is FaultyStream and what == "error" else [[0, 1, 2, 3]]
    )  # a stream reads one sample ahead


def test_an_error_of_worker_init_fn_that_cannot_be_sent_is_raised() -> None:
    loader = lk.Loader(Faulty("error"), 4, num_workers=1, timeout=120, engine="torch", worker_init_fn=fail_in_worker)
    with pytest.raises(RuntimeError, match="Local: of a local class"):
        next(iter(loader))


class CodedError(Exception):
    """Has a `message`, which its constructor does not take."""

    message = "of a code"

    def __init__(self, code: int, path: str) -> None:
        super().__init__(code, path)


def group() -> Exception:
    return ExceptionGroup("both readers failed", [KeyError("left"), ValueError("right")])


def caused() -> Exception:
    error = OSError("no reader is left")
    error.__cause__ = group()
    return error


GROUPS: dict[str, tuple[Any, Any]] = {
    "a group": (group, r"(?s)ExceptionGroup: both readers failed.*KeyError: 'left'.*ValueError: right"),
    "a group of groups": (
        lambda: ExceptionGroup("outer", [group()]),
        "(?s)outer.*both readers failed.*ValueError: right",
    ),
    "the cause": (caused, "(?s)both readers failed.*ValueError: right.*OSError: no reader is left"),
    "a message": (lambda: CodedError(7, "a.bin"), r"CodedError: \(7, 'a.bin'\)"),
}


class Groups(torch_data.Dataset[Any]):
    def __init__(self, name: str) -> None:
        self.name = name

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise GROUPS[self.name][0]()


class GroupStream(Groups, torch_data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(4))


@pytest.mark.parametrize("engine", ["torch", "ring", "stream"])
@pytest.mark.parametrize("name", GROUPS)
def test_an_exception_group_comes_with_all_its_causes(name: str, engine: str) -> None:
    settings: dict[str, Any] = {} if engine == "stream" else {"engine": engine}
    loader = lk.Loader(GroupStream(name) if engine == "stream" else Groups(name), 2, num_workers=1, **settings)
    with pytest.raises(OSError if name == "the cause" else RuntimeError, match=GROUPS[name][1]):
        list(loader)


def raise_group(worker: int) -> None:
    raise group()


@pytest.mark.parametrize("engine", ["torch", "ring"])
def test_an_exception_group_of_worker_init_fn_comes_with_all_its_causes(engine: Any) -> None:
    loader = lk.Loader(Groups("a group"), 2, num_workers=1, engine=engine, worker_init_fn=raise_group)
    with pytest.raises(RuntimeError, match=GROUPS["a group"][1]):
        list(loader)


SCRIPT = """
import os, signal, sys, time
import torch
import torch.utils.data as torch_data
import loaderkit as lk

class Data(torch_data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        if sys.argv[2] == "reading" and index == 16:
            os.kill(os.getpid(), signal.SIGSTOP)
        if index == 0:
            print("pid", os.getpid(), flush=True)
        return torch.ones(10_000)  # batches are larger than a pipe

class Stream(torch_data.IterableDataset):
    def __iter__(self):
        return map(Data().__getitem__, range(40))

if __name__ == "__main__":
    stream, when, then = sys.argv[1] == "stream", *sys.argv[2:]
    settings = {} if stream else {"engine": sys.argv[1]}
    data = Stream() if stream else Data()
    loader = lk.Loader(data, 2, num_workers=1, timeout=1, multiprocessing_context="fork", persistent_workers=not stream, **settings)
    batches = iter(loader)
    next(batches)
    if when == "sending":
        import multiprocessing
        time.sleep(0.5)
        for process in multiprocessing.active_children():
            os.kill(process.pid, signal.SIGSTOP)
    if then == "read on":
        try:
            for batch in batches:
                pass
            for batch in loader:
                pass
        except RuntimeError as error:
            print("error", error, flush=True)
    elif then == "close":
        loader.close()
        print("closed", flush=True)
    print("end", flush=True)
"""


@pytest.mark.each_value
@pytest.mark.parametrize("then", ["read on", "close", "exit"])
@pytest.mark.parametrize("when", ["reading", "sending"])
@pytest.mark.parametrize("engine", ["torch", "ring", "stream"])
def test_a_process_ends_whose_worker_is_stopped(engine: str, when: str, then: str, tmp_path: Path) -> None:
    """A batch is larger than a pipe: a worker may be stopped in the middle of a message."""
    output = scripts.run_code(tmp_path, textwrap.dedent(SCRIPT), engine, when, then, alone=True)
    assert "end" in output
    if then == "read on":
        assert "no batch in 1 s (timeout)" in output
        assert "worker 0 (process" in output
