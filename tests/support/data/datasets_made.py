"""One small dataset of each kind, over several shards if it has shards."""

import gzip
import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from images_made import encode, picture
from litdata_made import write_litdata
from mds_made import write_mds
from media_made import audio, need_decoder, video
from multimodal_made import documents as interleaved
from multimodal_made import json_lines as write_json_lines
from multimodal_made import name_of, write_pictures
from tars_made import make as make_tar
from tfrecord_made import example, write_records

import loaderkit as lk
from loaderkit.datasets.combine import ConcatDataset, MapDataset, SubsetDataset, ZipDataset
from loaderkit.datasets.rows.texts import TokenSpans

# Their libraries may be missing.
LACKING = {
    name
    for name, library in {"ArrayRecordDataset": "array_record", "LanceDataset": "lance"}.items()
    if find_spec(library) is None
}
FIXTURES = Path(__file__).parents[2] / "fixtures"  # that the formats' own writers made
SHARDS, ROWS = 4, 24
SAMPLES = SHARDS * ROWS


def public_datasets() -> set[str]:
    """Names of the datasets with samples by index that the package offers, less those whose library is not here."""
    public = {name: getattr(lk, name) for name in lk.__all__}
    return (
        {
            name
            for name, kind in public.items()
            if getattr(kind, "__module__", "").startswith("loaderkit.datasets")
            and isinstance(kind, type)
            and not issubclass(kind, tuple)
            and {"__len__", "__getitem__"} <= set(dir(kind))
        }
        - {"LazyImage", "Split"}
        - LACKING
    )


def text_of(number: int) -> str:
    return f"{number}:" + chr(97 + number % 26) * (number * 7 % 90)


def each_shard(write: Callable[[int, range], Any]) -> None:
    for shard in range(SHARDS):
        write(shard, range(shard * ROWS, (shard + 1) * ROWS))


def json_lines(folder: Path) -> Path:
    def write(shard: int, numbers: range) -> None:
        lines = [json.dumps({"n": number, "text": text_of(number)}) + "\n" for number in numbers]
        (folder / f"{shard}.jsonl").write_text("".join(lines))

    each_shard(write)
    return folder


def jsonl(folder: Path, **settings: Any) -> Any:
    return lk.JsonlDataset(json_lines(folder), **{"max_open": 1, **settings})


def csv(folder: Path) -> Any:
    def write(shard: int, numbers: range) -> None:
        records = "".join(f'{number},"{text_of(number)}\n"\n' for number in numbers)
        (folder / f"{shard}.csv").write_text("n,text\n" + records)

    each_shard(write)
    return lk.CsvDataset(folder, types={"n": int}, max_open=1)


def tar(folder: Path, suffix: str, *, regular: bool = True, **settings: Any) -> Any:
    def files(number: int) -> Iterator[tuple[str, bytes]]:
        yield f"{number:03}.cls", b"%d" % number
        if regular or number % 3:
            content = text_of(number).encode() if suffix == "txt" else encode(picture(number % 5), "png")
            yield f"{number:03}.{suffix}", content

    each_shard(lambda shard, numbers: make_tar(folder / f"{shard}.tar", [f for n in numbers for f in files(n)]))
    return lk.TarDataset(folder, max_open=1, **settings)


def arrow_table(numbers: range) -> Any:
    pa = pytest.importorskip("pyarrow")
    lists = pa.array([[number] * (number % 4) for number in numbers], pa.list_(pa.int32()))
    return pa.table({"n": list(numbers), "text": [text_of(number) for number in numbers], "list": lists})


def parquet(folder: Path, **settings: Any) -> Any:
    pq = pytest.importorskip("pyarrow.parquet")
    each_shard(lambda shard, numbers: pq.write_table(arrow_table(numbers), folder / f"{shard}.parquet", 5))
    return lk.ParquetDataset(folder, **{"max_open": 1, "cached_groups": 1, **settings})


def delta(folder: Path) -> Any:
    deltalake = pytest.importorskip("deltalake")
    parquet(folder)
    deltalake.convert_to_deltalake(str(folder))
    return lk.DeltaDataset(folder, max_open=1, cached_groups=1)


def arrow(folder: Path, *, stream: bool) -> Any:
    pa = pytest.importorskip("pyarrow")

    def write(shard: int, numbers: range) -> None:
        table = arrow_table(numbers)
        new = pa.ipc.new_stream if stream else pa.ipc.new_file
        with new(str(folder / f"{shard}.arrow"), table.schema) as writer:
            writer.write_table(table, 5)

    each_shard(write)
    return lk.ParquetDataset(folder, max_open=1, cached_groups=1)


def tfrecord(folder: Path) -> Any:
    def write(shard: int, numbers: range) -> None:
        records = [example(n=[number], text=[text_of(number).encode()]) for number in numbers]
        write_records(folder / f"{shard}.tfrecord", records)

    each_shard(write)
    return lk.TFRecordDataset(folder, max_open=1)


def shar(folder: Path) -> Any:
    """As lhotse lays it out: cuts in packed lines, and a field of pairs in tars."""

    def write(shard: int, numbers: range) -> None:
        cuts = "".join(json.dumps({"id": f"{number}.5", "text": text_of(number)}) + "\n" for number in numbers)
        (folder / f"cuts.{shard:06}.jsonl.gz").write_bytes(gzip.compress(cuts.encode()))
        pairs = [(f"{n}.5.npy", b"%d" % n) if even else (f"{n}.5.json", b"{}") for n in numbers for even in (1, 0)]
        make_tar(folder / f"vector.{shard:06}.tar", pairs)

    each_shard(write)
    return lk.SharDataset(folder, max_open=1)


def safetensors(folder: Path) -> Any:
    library = pytest.importorskip("safetensors.torch")

    def write(shard: int, numbers: range) -> None:
        rows = torch.tensor(list(numbers))
        library.save_file({"n": rows, "x": rows[:, None].half() * torch.arange(40)}, folder / f"{shard}.safetensors")

    each_shard(write)
    return lk.SafetensorsDataset(folder, max_open=1)


def npy(folder: Path) -> Any:
    each_shard(lambda shard, numbers: np.save(folder / f"{shard}.npy", np.array(numbers)[:, None] * np.arange(300)))
    return lk.NpyDataset(folder, max_open=1)


def tokens(folder: Path, **settings: Any) -> Any:
    for shard in range(SHARDS):
        np.arange(shard, shard + ROWS * 16 + 3, dtype=np.uint16).tofile(folder / f"{shard}.bin")
    return lk.TokenDataset(folder, length=16, dtype="uint16", max_open=1, **settings)


def documents(folder: Path) -> Any:
    def write(shard: int, numbers: range) -> None:
        sizes = [number * 5 % 70 for number in numbers]
        np.arange(shard, shard + sum(sizes), dtype=np.uint16).tofile(folder / f"{shard}.ds")
        np.cumsum(sizes).astype("<u8").tofile(folder / f"{shard}.ds.index")

    each_shard(write)
    return lk.DocumentDataset(folder, max_open=1)


def hdf5(folder: Path) -> Any:
    h5py = pytest.importorskip("h5py")

    def write(shard: int, numbers: range) -> None:
        with h5py.File(folder / f"{shard}.h5", "w") as file:
            file.create_dataset("n", data=list(numbers), chunks=(5,))
            file["text"] = list(map(text_of, numbers))

    each_shard(write)
    return lk.Hdf5Dataset(folder, max_open=1, chunk_cache_bytes=100)


def zarr(folder: Path) -> Any:
    library = pytest.importorskip("zarr", "3")
    group = library.open_group(folder / "a.zarr", mode="w")
    group.create_array("n", data=np.arange(SAMPLES), chunks=(5,), fill_value=-1)
    group.create_array("rows", data=np.arange(SAMPLES * 6).reshape(-1, 2, 3), chunks=(7, 1, 3), fill_value=-1)
    return lk.ZarrDataset(folder / "a.zarr", chunk_cache_bytes=100)


def image_folder(folder: Path) -> Any:
    for number in range(SAMPLES):
        place = folder / f"{number % 3}"
        place.mkdir(exist_ok=True)
        kind = ("png", "jpeg", "bmp")[number % 3]
        (place / f"{number:03}.{kind}").write_bytes(encode(picture(number % 5), kind))
    return lk.ImageFolder(folder)


def hf(folder: Path, form: str | None = None) -> Any:
    library = pytest.importorskip("datasets")
    made = library.Dataset.from_list([{"n": number, "text": text_of(number)} for number in range(SAMPLES)])
    made.save_to_disk(str(folder / "data"), num_shards=SHARDS)
    return lk.HFDataset(library.load_from_disk(str(folder / "data")).with_format(form))


def arrays(folder: Path) -> Any:
    np.save(folder / "a.npy", np.arange(SAMPLES * 50).reshape(SAMPLES, 50))
    mapped = np.load(folder / "a.npy", mmap_mode="c")  # writable, as torch warns otherwise
    return lk.ArrayDataset(
        {"mapped": mapped, "rows": torch.arange(SAMPLES), "texts": list(map(text_of, range(SAMPLES)))}
    )


def remote(make: Callable[..., Any], folder: Path, *, cache_bytes: int | None) -> Any:
    """The same shards read through fsspec: in ranges, or from copies of which not all fit into the cache."""
    fsspec = pytest.importorskip("fsspec")
    (folder / "local").mkdir()
    local = make(folder / "local")
    files, root = fsspec.filesystem("memory"), f"/{folder.name}-{id(folder)}"
    for shard in local.shards:
        files.pipe_file(f"{root}/{Path(shard).name}", Path(shard).read_bytes())
    cache = None if cache_bytes is None else folder / "cache"
    storage = lk.Storage(cache_dir=cache, cache_bytes=cache_bytes or 1)
    settings = {"index_dir": folder / "index"} if local.keeps_index else {}
    return type(local)(f"memory:/{root}", max_open=1, storage=storage, **settings)


def chats(folder: Path) -> Any:
    from chats_made import chat_of, make_tokenizer  # few tests need transformers

    rows = [{"n": number, "messages": chat_of(number, 1)} for number in range(SAMPLES)]
    each_shard(
        lambda shard, numbers: (folder / f"{shard}.jsonl").write_text(
            "".join(json.dumps(rows[n]) + "\n" for n in numbers)
        )
    )
    return lk.ChatDataset(lk.JsonlDataset(folder, max_open=1), make_tokenizer())


def pictures(folder: Path) -> Any:
    write_pictures(folder / "pictures")
    rows = [
        {"n": number, "image": name_of(number % 5), "images": [name_of(0)] * (number % 3)} for number in range(SAMPLES)
    ]
    each_shard(lambda shard, numbers: write_json_lines(folder / f"{shard}.jsonl", [rows[n] for n in numbers]))
    source = lk.JsonlDataset(folder, max_open=1)
    return lk.MediaDataset(source, {"image": "image", "images": "image"}, root=folder / "pictures")


def with_pictures(folder: Path) -> Any:
    from chats_made import make_tokenizer

    write_pictures(folder / "pictures")
    placeholder = lk.Pictures(lk.Patches(size=14, merge=2), placeholder="<pad>", root=folder / "pictures")
    rows = interleaved(SAMPLES)
    each_shard(lambda shard, numbers: write_json_lines(folder / f"{shard}.jsonl", [rows[n] for n in numbers]))
    return lk.MultimodalDataset(lk.JsonlDataset(folder, max_open=1), make_tokenizer(), placeholder)


def mds(folder: Path, *, packed: bool = False) -> Any:
    shards = [[(n, text_of(n)) for n in range(shard * ROWS, (shard + 1) * ROWS)] for shard in range(SHARDS)]
    storage = lk.Storage(cache_dir=folder / "cache")
    return lk.MDSDataset(write_mds(folder / "mds", shards, packed=packed), max_open=1, storage=storage)


def litdata(folder: Path) -> Any:
    chunks = [[(n, text_of(n)) for n in range(shard * ROWS, (shard + 1) * ROWS)] for shard in range(SHARDS)]
    return lk.LitDataset(write_litdata(folder / "chunks", chunks), max_open=1)


def preferences(folder: Path) -> Any:
    from chats_made import make_tokenizer

    answers = [
        {"n": number, "prompt": "Which?", "chosen": f" {number}", "rejected": " none"} for number in range(SAMPLES)
    ]
    return lk.PreferenceDataset(lk.RecordDataset(answers), make_tokenizer())


def media(folder: Path, kind: str, decoder: Any = "pyav", **settings: Any) -> Any:
    need_decoder(decoder)
    for number in range(6):
        content = (
            audio(seconds=0.3 + number / 10, seed=number) if kind == "wav" else video(kind, 4 + number, size=(16, 16))
        )
        (folder / f"{number}.{kind}").write_bytes(content)
    made = lk.AudioDataset if kind == "wav" else lk.VideoDataset
    return made(folder, clips="all", cache_dir=None, decoder=decoder, **settings)


class Records:
    """A user's dataset over a shared list and a shared dict."""

    def __init__(self) -> None:
        self.list = lk.share([{"n": number, "text": text_of(number)} for number in range(SAMPLES)])
        self.dict = lk.share({text_of(number): number for number in range(SAMPLES)})

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        record = self.list[index]
        return record, self.dict[record["text"]]


class Archives:
    """A user's dataset over handles, each of which has a state that reading changes."""

    def __init__(self, folder: Path) -> None:
        zipfile, h5py, lmdb = (pytest.importorskip(name) for name in ("zipfile", "h5py", "lmdb"))
        with zipfile.ZipFile(folder / "a.zip", "w") as archive:
            for number in range(SAMPLES):
                archive.writestr(str(number), text_of(number) * 50)
        with h5py.File(folder / "a.h5", "w") as table:
            table["rows"] = np.arange(SAMPLES)[:, None] * np.ones((1, 50), int)
        with lmdb.open(str(folder / "a.lmdb")) as store, store.begin(write=True) as writing:
            for number in range(SAMPLES):
                writing.put(str(number).encode(), text_of(number).encode())
        (folder / "a.bin").write_bytes(bytes(range(SAMPLES)))
        self.archive = lk.Handle(zipfile.ZipFile, folder / "a.zip")
        self.table = lk.Handle(h5py.File, folder / "a.h5", "r")
        self.store = lk.Handle(lmdb.open, str(folder / "a.lmdb"), readonly=True, lock=False)
        self.file = lk.Handle(io.FileIO, folder / "a.bin")

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        file = self.file()
        file.seek(index)
        with self.store().begin() as reading:
            stored = bytes(reading.get(str(index).encode()))
        return file.read(1), stored, self.archive().read(str(index)), self.table()["rows"][index]


KINDS: dict[str, Callable[[Path], Any]] = {
    "ArrayRecordDataset": lambda folder: lk.ArrayRecordDataset(FIXTURES / "array_record", max_open=1),
    "ArrayDataset": arrays,
    "AudioDataset": partial(media, kind="wav", clip_s=0.25),
    "AudioDataset by torchcodec": partial(media, kind="wav", clip_s=0.25, decoder="torchcodec"),
    "CachedDataset": lambda folder: lk.CachedDataset(tar(folder, "txt"), max_bytes=1 << 20),
    "CachedDataset in a folder": lambda folder: lk.CachedDataset(jsonl(folder), folder / "cache", max_bytes=8000),
    "ChatDataset": chats,
    "ConcatDataset": lambda folder: ConcatDataset([jsonl(folder), lk.RecordDataset(range(5))]),
    "CsvDataset": csv,
    "CutDataset": lambda folder: lk.CutDataset(
        SimpleNamespace(id=f"cut {number}", duration=0.1 * (number % 7 + 1)) for number in range(SAMPLES)
    ),
    "DocumentDataset": documents,
    "GeoChips": lambda folder: lk.GeoChips(
        torch.arange(SAMPLES + 9).reshape(-1, 1),
        [(slice(top, top + 2), slice(0, 1)) for top in range(SAMPLES)],
        resolution=1.0,
    ),
    "HFDataset": hf,
    "HFDataset numpy": partial(hf, form="numpy"),
    "Handle": Archives,
    "Hdf5Dataset": hdf5,
    "ImageFolder": image_folder,
    "JsonlDataset": jsonl,
    "JsonlDataset of two": partial(jsonl, max_open=2),
    "JsonlDataset by ranges": partial(remote, jsonl, cache_bytes=None),
    "JsonlDataset by copies": partial(remote, jsonl, cache_bytes=6000),
    "LanceDataset": lambda folder: lk.LanceDataset(FIXTURES / "lance" / "data.lance"),
    "LeRobotDataset": lambda folder: lk.LeRobotDataset(
        FIXTURES / "lerobot" / "data", {"action": [0.0, 0.1]}, columns=["index", "action"]
    ),
    "LitDataset": litdata,
    "MDSDataset": mds,
    "MDSDataset of packed shards": partial(mds, packed=True),
    "MapDataset": lambda folder: MapDataset(jsonl(folder), repr),
    "MediaDataset": pictures,
    "MultimodalDataset": with_pictures,
    "NpyDataset": npy,
    "DeltaDataset": delta,
    "ParquetDataset": parquet,
    "ParquetDataset ragged": partial(parquet, ragged=True),
    "ParquetDataset by ranges": partial(remote, parquet, cache_bytes=None),
    "ParquetDataset of Arrow files": partial(arrow, stream=False),
    "ParquetDataset of Arrow streams": partial(arrow, stream=True),
    "PreferenceDataset": preferences,
    "PatchDataset": lambda folder: lk.PatchDataset(
        np.arange(SAMPLES // 4 * 30).reshape(-1, 1, 6, 5), (3, 2), patches=4
    ),
    "PieceDataset": lambda folder: lk.PieceDataset(documents(folder), 16),
    "RecordDataset": lambda folder: lk.RecordDataset(map(text_of, range(SAMPLES))),
    "SafetensorsDataset": safetensors,
    "SafetensorsDataset by ranges": partial(remote, safetensors, cache_bytes=None),
    "SharDataset": shar,
    "SubsetDataset": lambda folder: SubsetDataset(tar(folder, "txt"), range(0, SAMPLES, 2)),
    "TarDataset": partial(tar, suffix="txt"),
    "TarDataset of pictures": partial(tar, suffix="png"),
    "TarDataset of any files": partial(tar, suffix="txt", regular=False),
    "TarDataset by ranges": partial(remote, partial(tar, suffix="txt"), cache_bytes=None),
    "TFRecordDataset": tfrecord,
    "TFRecordDataset by ranges": partial(remote, tfrecord, cache_bytes=None),
    "TokenDataset": tokens,
    "TokenDataset with rests": partial(tokens, remainder="keep"),
    "TokenSpans": lambda folder: TokenSpans(np.arange(999), np.arange(SAMPLES) * 9, np.arange(SAMPLES) % 9),
    "VideoDataset": partial(media, kind="mp4", frames=2),
    "VideoDataset by torchcodec": partial(media, kind="mp4", frames=2, decoder="torchcodec"),
    "WindowDataset": lambda folder: lk.WindowDataset(documents(folder), 16, block=8),
    "ZarrDataset": zarr,
    "ZipDataset": lambda folder: ZipDataset([jsonl(folder), lk.RecordDataset(range(SAMPLES))]),
    "share": lambda folder: Records(),
}
for missing in LACKING:
    del KINDS[missing]
