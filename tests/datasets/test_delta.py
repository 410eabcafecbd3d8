"""Delta tables: the rows of one version, as the library of the format itself reads them."""

import datetime
import json
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from shards import check_laws, check_reads, with_draws

import loaderkit as lk

deltalake = pytest.importorskip("deltalake")
from deltalake import DeltaTable, write_deltalake  # noqa: E402

DAY = datetime.date(2024, 1, 1)
PARTS = ["01", "1", "a b", "é:/%=", None]
# An inline vector of the rows 3, 4, 7, 11, 18 and 29, as Delta's protocol describes it.
DELETED = {
    "storageType": "i",
    "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
    "sizeInBytes": 44,
    "cardinality": 6,
}


def rows(start: int, part: str | None, **more: Any) -> pa.Table:
    columns = {"x": list(range(start, start + 4)), "text": [f"t{start}"] * 4, "p": pa.array([part] * 4, pa.string())}
    return pa.table({**columns, "d": [DAY + datetime.timedelta(start)] * 4, **more})


def write(folder: Path, *, partitioned: bool = True) -> list[list[dict[str, Any]]]:
    """Make a table by appends, a delete, an update, an overwrite of a part and a new column; return the rows of each version."""
    versions = []
    settings: dict[str, Any] = {"partition_by": ["p", "d"]} if partitioned else {}

    def note() -> None:
        found = DeltaTable(folder).to_pyarrow_table().to_pylist()
        versions.append(sorted(found, key=lambda row: row["x"]))

    for number, part in enumerate(PARTS):
        write_deltalake(folder, rows(4 * number, part), mode="append", **settings)
        note()
    DeltaTable(folder).delete("x in (1, 9)")
    note()
    DeltaTable(folder).update(updates={"text": "'new'"}, predicate="x = 2")
    note()
    write_deltalake(folder, rows(40, "01", y=[0.5, 1.5, 2.5, 3.5]), mode="append", schema_mode="merge", **settings)
    note()
    return versions


def change_log(folder: Path, configuration: dict[str, str], feature: str, *, vector: bool = False) -> None:
    path = folder / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"] = configuration
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"] if feature == "columnMapping" else []):
                name = f"col-{number}"
                field["metadata"] = {"delta.columnMapping.id": number + 1, "delta.columnMapping.physicalName": name}
            action["metaData"]["schemaString"] = json.dumps(schema)
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7}
            action["protocol"] |= {"readerFeatures": [feature], "writerFeatures": [feature]}
        if "add" in action and vector:
            action["add"]["deletionVector"] = DELETED
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))


@pytest.mark.parametrize("partitioned", [False, True])
def test_each_version_is_its_rows(partitioned: bool, tmp_path: Path) -> None:
    """Deleted rows stay away, updated ones come once, and partition columns have the table's types."""
    versions = write(tmp_path, partitioned=partitioned)
    assert len(versions) == 8
    for number, wanted in enumerate(versions):
        data = lk.DeltaDataset(tmp_path, version=number)
        order = sorted(data, key=lambda row: row["x"])
        assert order == wanted
        assert [list(row) for row in order] == [list(row) for row in wanted]
        assert data.version == number
    newest = lk.DeltaDataset(tmp_path)
    assert newest.version == 7
    assert sorted(newest, key=lambda row: row["x"]) == versions[-1]
    assert newest.shards == sorted(newest.shards)
    check_reads(lk.DeltaDataset(tmp_path, columns=["d", "x"]), [{"d": row["d"], "x": row["x"]} for row in newest])


def test_the_laws_hold(tmp_path: Path) -> None:
    write(tmp_path)
    places = [row["x"] for row in lk.DeltaDataset(tmp_path)]
    check_laws(lambda: lk.DeltaDataset(tmp_path, transform=with_draws), lambda row: places.index(row["x"]))


def test_the_version_is_in_the_fingerprint(tmp_path: Path) -> None:
    write(tmp_path)
    found = [lk.DeltaDataset(tmp_path, version=version).fingerprint() for version in range(8)]
    assert len(set(found)) == 8
    assert lk.DeltaDataset(tmp_path).fingerprint() == found[7] == lk.DeltaDataset(str(tmp_path) + "/").fingerprint()


def test_a_checkpoint_does_not_resume_on_another_version(tmp_path: Path) -> None:
    write(tmp_path)
    loader = lk.Loader(lk.DeltaDataset(tmp_path, version=6, columns=["x"]), 2, shuffle=True)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    write_deltalake(tmp_path, rows(60, "z", y=[0.5] * 4), mode="append", partition_by=["p", "d"])
    with pytest.raises(lk.StateError, match=r"is for dataset '18 samples .*this loader has '26 samples"):
        lk.Loader(lk.DeltaDataset(tmp_path, columns=["x"]), 2, shuffle=True).load_state_dict(state)
    again = lk.Loader(lk.DeltaDataset(tmp_path, version=6, columns=["x"]), 2, shuffle=True)
    again.load_state_dict(state)
    assert [batch["x"].tolist() for batch in again] == [batch["x"].tolist() for batch in batches]


@pytest.mark.parametrize(
    ("configuration", "feature", "vector", "message"),
    [
        ({"delta.columnMapping.mode": "name"}, "columnMapping", False, r"with column mapping \(name\)"),
        ({"delta.columnMapping.mode": "id"}, "columnMapping", False, r"with column mapping \(id\)"),
        ({"delta.enableDeletionVectors": "true"}, "deletionVectors", True, "with deletion vectors"),
    ],
)
def test_what_would_be_read_wrongly_is_refused_by_name(
    configuration: dict[str, str], feature: str, vector: bool, message: str, tmp_path: Path
) -> None:
    write_deltalake(tmp_path, pa.table({"x": list(range(40))}))
    change_log(tmp_path, configuration, feature, vector=vector)
    with pytest.raises(lk.ShardError, match=f"{message}.*lk.ParquetDataset"):
        lk.DeltaDataset(tmp_path)


def test_a_table_that_only_allows_deletion_vectors_is_read(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"x": list(range(40))}))
    change_log(tmp_path, {"delta.enableDeletionVectors": "true"}, "deletionVectors")
    assert len(lk.DeltaDataset(tmp_path)) == 40


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(lk.ShardError, match=r"nowhere: can't read the Delta table"):
        lk.DeltaDataset(tmp_path / "nowhere")
    write(tmp_path / "t")
    with pytest.raises(lk.ShardError, match=r"t: can't read version 99 of the Delta table"):
        lk.DeltaDataset(tmp_path / "t", version=99)
    DeltaTable(tmp_path / "t").delete()
    with pytest.raises(lk.ShardError, match=r"t: version 8 of the Delta table has no files"):
        lk.DeltaDataset(tmp_path / "t")


def test_the_files_alone_are_refused_with_the_way_out(tmp_path: Path) -> None:
    """By the folder, a folder around or within it, and a glob; a list of files is the user's own choice."""
    write(tmp_path / "lake" / "t")
    first = next((tmp_path / "lake" / "t").glob("p=*"))
    for urls in (tmp_path / "lake" / "t", tmp_path / "lake", first, next(first.glob("d=*")), f"{first}/*/*.parquet"):
        with pytest.raises(lk.ShardError, match=r"lake/t: is a Delta table.*lk\.DeltaDataset\(table\)"):
            lk.ParquetDataset(urls)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files = sorted(DeltaTable(tmp_path / "lake" / "t", version=3).file_uris())
    assert len(lk.ParquetDataset(files)) == 16
