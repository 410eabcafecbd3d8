"""The package as a whole: who may import whom, what an import costs, that public objects pickle."""

import ast
import graphlib
import inspect
import pickle
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawing import Drawing, drawing_collate

import loaderkit as lk
from loaderkit.datasets.combine import ConcatDataset, MapDataset, SubsetDataset, ZipDataset
from loaderkit.reading.batch_reader import BatchReader
from loaderkit.sampling.batch_plan import BatchPlan

ROOT = Path(lk.__file__).parent
# From the right to the left: a package imports only those before it. The packages on the second line stand apart.
LINE = [
    "system",
    "seeding",
    "sampling",
    "files",
    "datasets",
    "collate",
    "reading",
    "engine",
    "loader",
    "lightning",
    "cli",
]
MAY_IMPORT = {package: set(LINE[:place]) for place, package in enumerate(LINE)} | {
    "device": {"system", "seeding", "sampling", "files", "datasets"},
    "writing": {"system", "seeding", "sampling", "files", "datasets"},
    "monitor": {"system"},
    "testing": {"seeding", "system"},
}
MAY_IMPORT["engine"] |= {"device"}
MAY_IMPORT["loader"] |= {"device"}
MAY_IMPORT["integrations"] = MAY_IMPORT["loader"] | {"loader", "monitor"}
MAY_IMPORT["lightning"] |= {"device", "monitor", "testing", "writing"}
MAY_IMPORT["cli"] |= {"device", "integrations", "monitor", "testing", "writing"}
FILES = sorted(ROOT.rglob("*.py"))


def package_of(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> set[str]:
    """All modules that are imported, wherever in the file."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.add(node.module or "")
            if node.module == "loaderkit":
                found |= {f"loaderkit.{alias.name}" for alias in node.names}
    return found


def test_the_root_holds_the_public_names_and_the_packages() -> None:
    assert {path.name for path in ROOT.iterdir() if path.is_file()} == {
        "__init__.py",
        "__init__.pyi",
        "__main__.py",
        "py.typed",
    }
    assert {package_of(file) for file in FILES} == {*MAY_IMPORT, "__init__", "__main__"}
    assert len(FILES) > 100


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_run_in_one_direction(file: Path) -> None:
    package = package_of(file)
    if package in ("__init__", "__main__"):
        return
    for module in imports(ast.parse(file.read_text())):
        top, *inner = module.split(".")
        if top == "loaderkit" and inner and inner[0] != package and inner[0] in MAY_IMPORT:
            assert inner[0] in MAY_IMPORT[package], f"{file} imports {module}"
            assert not any(part.startswith("_") for part in inner), f"{file} imports {module}, which is private"
        if top in ("lightning", "pytorch_lightning"):
            assert file.name == "framework.py", f"{file} imports {module}: import pl from lightning/framework.py"
        if top in ("torchvision", "PIL"):
            assert file.name in ("decode.py", "decoders.py", "torchvision.py", "detection.py", "boxes.py", "lazy.py"), (
                f"{file} imports {module}"
            )


def test_no_modules_import_each_other_in_a_circle() -> None:
    """`__init__.py` is left out: that of `testing` imports on behalf of others."""
    modules = {"loaderkit." + ".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in FILES}
    graph = {
        name: imports(ast.parse(file.read_text())) & modules.keys()
        for name, file in modules.items()
        if file.name != "__init__.py"
    }
    assert sum(map(len, graph.values())) > 300
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def names_of(file: Path) -> set[str]:
    """All names that a module defines, and the modules that it imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_names_are_imported_from_the_file_that_defines_them(file: Path) -> None:
    """So each has one path. `testing` is public, and gives its names as its own."""
    if file == ROOT / "testing" / "__init__.py":
        return
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("loaderkit."):
            source = ROOT.joinpath(*(node.module or "").split(".")[1:])
            for alias in node.names:
                if (source / alias.name).is_dir() or (source / f"{alias.name}.py").is_file():
                    continue  # a module
                place = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
                assert alias.name in names_of(place), f"{file} imports {alias.name} from {node.module}"


def test_only_the_root_and_public_packages_list_names() -> None:
    stubs = {str(path.parent.relative_to(ROOT)) for path in ROOT.rglob("*.pyi")}
    assert stubs == {".", "integrations"}
    for file in ROOT.glob("*/__init__.py"):
        if file.parent.name not in ("integrations", "testing"):
            (only,) = ast.parse(file.read_text()).body  # the docstring
            assert isinstance(only, ast.Expr)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_package_has_no_asserts(file: Path) -> None:
    """They vanish under -O, and say nothing of the way out."""
    assert not [node.lineno for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Assert)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_each_ignored_type_says_why(file: Path) -> None:
    """`# type: ignore[code]  # reason`: what mypy cannot see, in a few words."""
    ignored = [line for line in file.read_text().splitlines() if "type: ignore" in line]
    assert [line for line in ignored if not re.search(r"# type: ignore\[[a-z, -]+\]  # \S.{6,}$", line)] == []


IMPORT = """
import sys, torch
before = {name.split(".")[0] for name in sys.modules}
import loaderkit
print(*sorted({name.split(".")[0] for name in sys.modules} - before))
"""


def test_the_import_is_light() -> None:
    """It imports nothing that torch has not imported, but a small package."""
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True)
    assert done.stdout.split() == ["lazy_loader", "loaderkit"], done.stderr


def test_help_and_completion_show_each_public_name() -> None:
    assert set(lk.__all__) <= set(dir(lk))
    shown = pydoc.plain(pydoc.render_doc(lk))
    for name in lk.__all__:
        if name != "DECODERS":  # a dict has no docstring of its own
            assert name in shown
            assert (inspect.getdoc(getattr(lk, name)) or "?").splitlines()[0] in shown or name in (
                "integrations",
                "testing",
            )


def test_each_public_name_is_there() -> None:
    assert sorted(lk.__all__) == list(lk.__all__)
    for name in lk.__all__:
        assert getattr(lk, name) is not None


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("Loeder", "Loader"),
        ("DataLoader", "Loader"),
        ("StatefulDataLoader", "Loader"),
        ("TensorDataset", "ArrayDataset"),
    ],
)
def test_a_name_that_is_not_there_has_the_one_that_is_meant(name: str, ours: str) -> None:
    with pytest.raises(AttributeError, match=f"'loaderkit' has no attribute '{name}'. Did you mean '{ours}'?"):
        getattr(lk, name)
    assert ours in lk.__all__
    assert not hasattr(lk, "__wrapped__")


ARRAY = lk.ArrayDataset({"x": torch.arange(6), "y": np.arange(6)})
PUBLIC: list[Any] = [
    ARRAY,
    ConcatDataset([ARRAY]),
    MapDataset(ARRAY, drawing_collate),
    SubsetDataset(ARRAY, [1, 2]),
    ZipDataset([ARRAY, ARRAY]),
    lk.Cursor(epoch=1),
    lk.DataWaitCallback(),
    lk.DataWaitMonitor(window=5),
    lk.World(1, 2),
    lk.Sequential(3),
    lk.Shuffled(5, seed=1),
    lk.Shuffled(2**22, seed=1),
    lk.Subset([2, 3]),
    lk.Weighted([1, 2]),
    lk.Mixture([2, 3], [1, 1]),
    lk.ShardOrder([4, 0, 2], block=2),
    BatchPlan(order=lk.Shuffled(5), batch_size=2),
    lk.Pad(value=1),
    lk.PadCollate({"x": lk.Pad()}),
    lk.BadSamples("skip", max_count=3),
    lk.Retry(attempts=3),
    lk.BadSample(0, 1, 2, "KeyError: 2", None),
    lk.RaggedCollate(["x"]),
    lk.PackCollate(row_length=8),
    lk.DetectionCollate(),
    lk.MultimodalCollate({"x": lk.Jagged(), "y": list}),
    lk.LengthBuckets([3, 1, 2], 2),
    lk.LoaderConfig(batch_size=2),
    lk.DecodePictures("jpg"),
    lk.Normalize([0.5], [0.5]),
    lk.PackPlan([3, 1, 2], 4),
    lk.PadRagged(),
    lk.TextBatching(how="packed", max_length=8),
    lk.TokenBudget([3, 1, 2], 4),
    lk.Storage({"key": "a"}, cache_dir=None),
    lk.Handle(open, "a"),
    lk.share([1]),
    lk.share({"a": 1}),
    lk.Loader(Drawing(5), 2, shuffle=True),
    lk.Loader(Drawing(5), 2, num_workers=2, collate_fn=drawing_collate),
    lk.DeviceLoader(lk.Loader(Drawing(5), 2), "cpu"),
    BatchReader(ARRAY, None, 0),
    lk.seed_worker,
    lk.derive_seed,
    lk.sample_rng,
    lk.to_device,
]


@pytest.mark.parametrize("value", PUBLIC, ids=lambda value: getattr(value, "__name__", type(value).__name__))
def test_every_public_object_pickles(value: Any) -> None:
    if isinstance(value, lk.Order):
        value.indices(0, 0, 2)  # with what it caches
    if isinstance(value, lk.Loader):
        next(iter(value))  # with workers at work
    copy = pickle.loads(pickle.dumps(value))
    assert type(copy) is type(value)
    if isinstance(value, lk.Cursor | lk.World | lk.LoaderConfig | lk.Storage | lk.Pad | lk.PadCollate):
        assert copy == value
    if isinstance(value, lk.Loader):
        assert copy.state_dict() == value.state_dict()
