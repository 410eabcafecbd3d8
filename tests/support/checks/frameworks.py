"""Which test files import large libraries. Those files have processes of their own.

A process that has imported all libraries has half a gigabyte of memory more, so each worker that it forks costs twice the CPU time.
"""

import functools
import re
from pathlib import Path

SUPPORT = Path(__file__).parents[1]
LARGE = {
    *(
        "accelerate",
        "datasets",
        "lightning",
        "matplotlib",
        "pytorch_lightning",
        "ray",
        "scipy",
        "sklearn",
        "torchmetrics",
    ),
    *(
        "torchvision",
        "transformers",
        "trl",
        "h5py",
        "pandas",
        "polars",
        "pyarrow",
        "tensordict",
        "torchtitan",
        "xarray",
        "zarr",
    ),
    *("adlfs", "aiohttp", "azure", "botocore", "gcsfs", "obstore", "s3fs"),
}
_IMPORT = re.compile(r"^\s*(?:from|import) +(\w+)|\b(?:import_module|importorskip)\([\"'](\w+)", re.MULTILINE)
_NAMES_THAT_IMPORT = re.compile(r"\b(?:\w*DataModule|SeedSteps|loaderkit\.lightning|lk\.lightning|lk\.__all__)\b")


@functools.cache
def uses(file: Path) -> bool:
    """Return whether a file imports a large library, itself or through a helper of the tests."""
    text = file.read_text()
    names = {name for pair in _IMPORT.findall(text) for name in pair if name}
    helpers = [helper for name in names - {"frameworks"} for helper in SUPPORT.glob(f"*/{name}.py")]
    return bool(names & LARGE) or _NAMES_THAT_IMPORT.search(text) is not None or any(map(uses, helpers))
