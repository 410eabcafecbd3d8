"""Thirteen readers of other libraries give the same rows before and after loaderkit opens their folder, and all rows that it writes.

    python tests/foreign/other_readers.py [--environment FOLDER]

The data is written and read by the libraries themselves, in an environment of their own with the versions below, which is made in
a temporary folder unless an earlier one is given. loaderkit runs in the calling interpreter. The exit code is 1 if rows differ, or if a
folder changes. It takes some minutes, most of them for the installation.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PINNED = (
    "datasets==5.2.0",
    "duckdb==2.0.1",
    "lhotse==1.33.0",
    "pandas==3.1.1",
    "polars==2.1.0",
    "pyarrow==26.0.1",
    "webdataset==1.0.2",
)
ROWS = [{"cls": row, "txt": f"é{row}"} for row in range(20)]
Rows = list[dict[str, Any]]


def write(folder: Path) -> None:
    """Write the rows in each format, by the libraries of the environment."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import soundfile
    import webdataset
    from lhotse import CutSet, Recording

    for name in ("parquet", "csv", "ndjson", "jsonl", "tar", "shar"):
        (folder / name).mkdir()
    for part, rows in enumerate((ROWS[:12], ROWS[12:])):
        pq.write_table(pa.Table.from_pylist(rows), folder / "parquet" / f"{part}.parquet")
        table = "cls,txt\n" + "".join(f"{row['cls']},{row['txt']}\n" for row in rows)
        (folder / "csv" / f"{part}.csv").write_text(table)
        for name in ("ndjson", "jsonl"):
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / name / f"{part}.{name}").write_text(lines)
        with webdataset.TarWriter(str(folder / "tar" / f"{part}.tar")) as tar:
            for row in rows:
                tar.write({"__key__": f"{row['cls']:03}", **row})
    with tempfile.TemporaryDirectory() as sounds:
        for row in range(6):
            soundfile.write(f"{sounds}/{row}.wav", [0.1 * row] * 800, 16000)
        cuts = CutSet.from_cuts(Recording.from_file(f"{sounds}/{row}.wav").to_cut() for row in range(6))
        cuts.to_shar(folder / "shar", fields={"recording": "wav"}, shard_size=3)


def by_pyarrow(folder: Path) -> Rows:
    import pyarrow.dataset

    return list(pyarrow.dataset.dataset(folder).to_table().to_pylist())


def by_pandas(folder: Path) -> Rows:
    import pandas

    return list(pandas.read_parquet(folder).to_dict("records"))


def by_polars(folder: Path) -> Rows:
    import polars

    return list(polars.scan_parquet(folder).collect().to_dicts())


def by_polars_csv(folder: Path) -> Rows:
    import polars

    return list(polars.scan_csv(folder).collect().to_dicts())


def by_polars_ndjson(folder: Path) -> Rows:
    import polars

    return list(polars.scan_ndjson(folder).collect().to_dicts())


def by_duckdb(folder: Path) -> Rows:
    import duckdb

    found = duckdb.sql(f"select cls, txt from '{folder}/*.parquet'").fetchall()
    return [{"cls": label, "txt": text} for label, text in found]


def by_hugging_face(form: str) -> Callable[[Path], Rows]:
    def read(folder: Path) -> Rows:
        import datasets

        datasets.disable_progress_bars()
        source, settings = (str(folder), {}) if form == "folder" else (form, {"data_dir": str(folder)})
        with tempfile.TemporaryDirectory() as cache:
            found = datasets.load_dataset(source, cache_dir=cache, **settings)["train"]
            return [{"cls": int(row["cls"]), "txt": row["txt"]} for row in found]

    return read


def by_webdataset(folder: Path) -> Rows:
    import webdataset

    urls = sorted(map(str, folder.glob("*")))
    found = webdataset.WebDataset(urls, shardshuffle=False).decode()
    return [{"cls": int(row["cls"]), "txt": row["txt"]} for row in found]


def by_lhotse(folder: Path) -> Rows:
    from lhotse import CutSet

    return [{"id": cut.id, "sum": float(cut.load_audio().sum())} for cut in CutSet.from_shar(in_dir=folder)]


# Each with the folder that it reads, and the format of `write_shards` that it reads.
READERS: dict[str, tuple[Callable[[Path], Rows], str, str]] = {
    "pyarrow.dataset": (by_pyarrow, "parquet", "parquet"),
    "pandas": (by_pandas, "parquet", "parquet"),
    "polars Parquet": (by_polars, "parquet", "parquet"),
    "polars CSV": (by_polars_csv, "csv", ""),
    "polars NDJSON": (by_polars_ndjson, "ndjson", ""),
    "duckdb": (by_duckdb, "parquet", "parquet"),
    "load_dataset Parquet": (by_hugging_face("parquet"), "parquet", "parquet"),
    "load_dataset JSON": (by_hugging_face("json"), "jsonl", ""),
    "load_dataset CSV": (by_hugging_face("csv"), "csv", ""),
    "load_dataset WebDataset": (by_hugging_face("webdataset"), "tar", "tar"),
    "load_dataset of a folder": (by_hugging_face("folder"), "parquet", "parquet"),
    "webdataset": (by_webdataset, "tar", "tar"),
    "lhotse Shar": (by_lhotse, "shar", ""),
}


def read(folder: Path, written: bool) -> dict[str, Any]:
    """Return the rows that each reader gives, or its error."""
    found: dict[str, Any] = {}
    for name, (reader, foreign, own) in READERS.items():
        if where := own if written else foreign:
            try:
                found[name] = reader(folder / where)
            except Exception as error:
                found[name] = f"{type(error).__name__}: {str(error)[:90]}"
    return found


def open_by_loaderkit(folder: Path) -> None:
    """Do all that reads: open, index, read with workers, preview."""
    import loaderkit as lk
    from loaderkit.cli.command import main

    made = {
        "parquet": lk.ParquetDataset,
        "csv": lk.CsvDataset,
        "ndjson": lk.JsonlDataset,
        "jsonl": lk.JsonlDataset,
        "tar": lk.TarDataset,
        "shar": lk.TarDataset,
    }
    for name, make in made.items():
        data = make(folder / name)
        assert sum(map(len, lk.Loader(data, 3, shuffle=True, num_workers=2, collate_fn=list))) == len(data)
        lk.index_shards(data.shards)
        assert main(["index", str(folder / name), "--quiet"]) == 0
        assert main(["preview", str(folder / name), "--samples", "1"]) == 0


def write_by_loaderkit(folder: Path) -> None:
    import loaderkit as lk

    for form in ("parquet", "tar"):
        lk.write_shards(ROWS, folder / form, format=form, samples_per_shard=8)


def seen(folder: Path) -> dict[str, tuple[bytes, int]]:
    paths = [folder, *sorted(folder.rglob("*"))]
    return {str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns) for path in paths}


def environment(folder: Path) -> Path:
    """Return the interpreter of an environment with the pinned libraries."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PINNED], check=True)
    return python


def table(found: dict[str, dict[str, Any]]) -> Iterator[tuple[str, list[str], bool]]:
    """Yield each reader with what it gave: before, after, and of shards that loaderkit wrote."""
    for name, (_, foreign, own) in READERS.items():
        before, after, written = (found[phase].get(name) for phase in ("before", "after", "written"))
        wanted = before if foreign == "shar" else ROWS
        answers = [before == wanted and isinstance(before, list), after == wanted, not own or written == ROWS]
        shown = [
            "equal" if good else f"{answer if isinstance(answer, str) else 'other rows'}"
            for good, answer in zip(answers, (before, after, written), strict=True)
        ]
        yield name, [*shown[:2], shown[2] if own else "-"], all(answers)


def compare(made: Path, folder: Path) -> int:
    python = environment(made)

    def run(*arguments: str) -> Any:
        done = subprocess.run([python, __file__, *arguments], check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout.splitlines()[-1])

    foreign, own = folder / "foreign", folder / "own"
    for path in (foreign, own):
        path.mkdir()
    run("write", str(foreign))
    found = {"before": run("read", str(foreign))}
    state = seen(foreign)
    open_by_loaderkit(foreign)
    unchanged = seen(foreign) == state
    found["after"] = run("read", str(foreign))
    write_by_loaderkit(own)
    found["written"] = run("read", str(own), "--written")
    good = unchanged
    print(f"{'reader':<26}{'before':<10}{'after':<10}written by loaderkit")
    for name, shown, right in table(found):
        good &= right
        print(f"{name:<26}{shown[0]:<10}{shown[1]:<10}{shown[2]}")
    print(f"folders, files, bytes and times: {'unchanged' if unchanged else 'CHANGED'}")
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("phase", nargs="?", choices=["write", "read"], help=argparse.SUPPRESS)
    parser.add_argument("folder", nargs="?", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--written", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--environment", type=Path, help="folder of the environment; it is kept")
    options = parser.parse_args()
    if options.phase == "write":
        write(options.folder)
        print("{}")
    elif options.phase == "read":
        print(json.dumps(read(options.folder, options.written)))
    else:
        with tempfile.TemporaryDirectory() as folder:
            return compare(options.environment or Path(folder, "environment"), Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
