"""One loader's turn in `cloud.py` or `cloud_shards.py`, in a process of its own: write the data, or read an epoch of it from the store.

    python benchmarks/lib/cloud_turns.py write LOADER FOLDER SHARDS SAMPLES
    python benchmarks/lib/cloud_turns.py read LOADER CACHE STORE SHUFFLE WORKERS STEP_S

`read` prints JSON: seconds from making the dataset to the first batch, seconds of the epoch, the time of its end, and whether each sample
came once.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

BATCH, BYTES = 16, 100_000  # samples of a batch, bytes of a sample
S3FS = "lk.Loader, s3fs"
KEY = {"key": "test", "secret": "test"}


def sample(number: int) -> dict[str, Any]:
    return {"bin": np.random.default_rng(number).bytes(BYTES), "cls": number}


def numbers_of(samples: Sequence[Any]) -> torch.Tensor:
    """Return what the loaders collate: the samples' numbers (B,), after a look at their bytes."""
    if any(len(entry["bin"]) != BYTES for entry in samples):
        raise ValueError("a sample is cut")
    return torch.tensor([int(entry["cls"]) for entry in samples])


class OfLoaderkit:
    @staticmethod
    def write(folder: Path, shards: int, samples: int) -> None:
        import loaderkit as lk

        lk.write_shards(Numbered(samples), folder, samples_per_shard=samples // shards)

    @staticmethod
    def loader(url: str, endpoint: str, cache: Path, shuffle: bool, workers: int) -> Iterable[Any]:
        import loaderkit as lk

        storage = lk.Storage({**KEY, "endpoint_url": endpoint}, cache_dir=cache)
        data = lk.TarDataset(f"{url}/*.tar", storage=storage, index_dir=cache / "index")
        return lk.Loader(data, BATCH, shuffle=shuffle, num_workers=workers, collate_fn=numbers_of)


class OfLoaderkitByS3fs(OfLoaderkit):
    @staticmethod
    def loader(*arguments: Any) -> Iterable[Any]:
        from loaderkit.files.obstore_settings import STORES

        STORES.clear()
        return OfLoaderkit.loader(*arguments)


class Numbered:
    """The samples by number."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> dict[str, Any]:
        return sample(number)


class OfWebdataset:
    @staticmethod
    def write(folder: Path, shards: int, samples: int) -> None:
        OfLoaderkit.write(folder, shards, samples)

    @staticmethod
    def loader(url: str, endpoint: str, cache: Path, shuffle: bool, workers: int) -> Iterable[Any]:  # noqa: ARG004 - it keeps nothing
        import webdataset

        bucket = url.removeprefix("s3://")
        count = int(os.environ["CLOUD_SHARDS"])
        urls = [f"{endpoint}/{bucket}/shard-{number:06}.tar" for number in range(count)]
        data = webdataset.WebDataset(urls, shardshuffle=100 if shuffle else False)
        data = (data.shuffle(1000) if shuffle else data).batched(BATCH, collation_fn=numbers_of)
        loader: Iterable[Any] = webdataset.WebLoader(data, batch_size=None, num_workers=workers)
        return loader


class OfLitdata:
    @staticmethod
    def write(folder: Path, shards: int, samples: int) -> None:
        import litdata

        size = samples // shards
        litdata.optimize(sample, list(range(samples)), str(folder), chunk_size=size, num_workers=1, start_method="fork")

    @staticmethod
    def loader(url: str, endpoint: str, cache: Path, shuffle: bool, workers: int) -> Iterable[Any]:
        import litdata
        from litdata.streaming import downloader

        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no setting for a store without TLS
        options = {"endpoint_url": endpoint, "aws_access_key_id": KEY["key"], "aws_secret_access_key": KEY["secret"]}
        data = litdata.StreamingDataset(
            url, cache_dir=str(cache), storage_options=options, shuffle=shuffle, drop_last=False
        )
        loader: Iterable[Any] = litdata.StreamingDataLoader(
            data, batch_size=BATCH, num_workers=workers, collate_fn=numbers_of
        )
        return loader


class OfMosaicml:
    @staticmethod
    def write(folder: Path, shards: int, samples: int) -> None:
        import streaming

        size = samples // shards * BYTES * 65 // 64
        with streaming.MDSWriter(out=str(folder), columns={"bin": "bytes", "cls": "int"}, size_limit=size) as writer:
            for number in range(samples):
                writer.write(sample(number))

    @staticmethod
    def loader(url: str, endpoint: str, cache: Path, shuffle: bool, workers: int) -> Iterable[Any]:
        import streaming
        from streaming.base.util import clean_stale_shared_memory

        os.environ |= {"S3_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        clean_stale_shared_memory()
        data = streaming.StreamingDataset(remote=url, local=str(cache), shuffle=shuffle, batch_size=BATCH)
        for stream in data.streams:
            stream._downloader.clean_up()  # else forked workers share the socket that read the index
        loader: Iterable[Any] = streaming.StreamingDataLoader(
            data, batch_size=BATCH, num_workers=workers, collate_fn=numbers_of
        )
        return loader


LOADERS: dict[str, Any] = {
    "lk.Loader": OfLoaderkit,
    "webdataset": OfWebdataset,
    "litdata": OfLitdata,
    "MosaicML Streaming": OfMosaicml,
}


def read(make: Callable[..., Iterable[Any]], *arguments: Any, step_s: float) -> dict[str, Any]:
    """Read an epoch."""
    begun = time.perf_counter()
    first, seen = 0.0, []
    for numbers in make(*arguments):
        first = first or time.perf_counter() - begun
        seen += numbers.tolist()
        time.sleep(step_s)
    taken, ended = time.perf_counter() - begun, time.time()
    once = sorted(seen) == list(range(len(seen)))
    return {"first": first, "epoch": taken, "ended": ended, "samples": len(seen), "once": once}


def main() -> None:
    what, name, folder, *rest = sys.argv[1:]
    if what == "write":
        LOADERS[name].write(Path(folder), *map(int, rest))
        return
    url, endpoint, shuffle, workers, step_s = rest
    made_by = OfLoaderkitByS3fs if name == S3FS else LOADERS[name]
    found = read(made_by.loader, url, endpoint, Path(folder), shuffle == "True", int(workers), step_s=float(step_s))
    print("\n" + json.dumps(found), flush=True)
    os._exit(0)  # some loaders' threads would go on


if __name__ == "__main__":
    main()
