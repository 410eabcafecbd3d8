"""Encrypted Parquet files, with the keys of a function of the user's."""

import base64
from pathlib import Path
from typing import Any

import pytest
from shards import check_laws, check_reads, with_draws

import loaderkit as lk

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
encryption = pytest.importorskip("pyarrow.parquet.encryption")
KEYS = {"footer": b"0123456789012345", "column": b"1234567890123450"}
ROWS = [{"x": row, "text": f"t{row}"} for row in range(20)]


class Keys(encryption.KmsClient):  # type: ignore[misc]
    """Keeps keys of files under the names of `KEYS`, as pyarrow's example does."""

    def __init__(self, config: Any) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(KEYS[master_key_identifier] + key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        whole = base64.b64decode(wrapped_key)
        if not whole.startswith(KEYS[master_key_identifier]):
            raise ValueError("a wrong key")
        return whole[len(KEYS[master_key_identifier]) :]


FACTORY = encryption.CryptoFactory(Keys)
CONNECTION = encryption.KmsConnectionConfig()


def keys() -> Any:
    return FACTORY.file_decryption_properties(CONNECTION, encryption.DecryptionConfiguration())


@pytest.fixture(params=[False, True], ids=["encrypted footer", "plain footer"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    config = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["x"]}, plaintext_footer=request.param
    )
    properties = FACTORY.file_encryption_properties(CONNECTION, config)
    for number, rows in enumerate((ROWS[:13], ROWS[13:])):
        table = pa.Table.from_pylist(rows)
        with pq.ParquetWriter(tmp_path / f"{number}.parquet", table.schema, encryption_properties=properties) as writer:
            writer.write_table(table, 5)
    return tmp_path


def test_rows_are_those_that_were_written(folder: Path) -> None:
    data = lk.ParquetDataset(folder, decryption=keys)
    check_reads(data, ROWS)
    batches = list(lk.Loader(data, 7, num_workers=2))
    assert [value for batch in batches for value in batch["x"].tolist()] == [row["x"] for row in ROWS]
    check_laws(lambda: lk.ParquetDataset(folder, decryption=keys, transform=with_draws), lambda row: int(row["x"]))


def test_without_keys_a_file_is_named(folder: Path) -> None:
    if (folder / "0.parquet").read_bytes().startswith(b"PARE"):
        with pytest.raises(lk.ShardError, match=r"0\.parquet: an encrypted Parquet file\. Give decryption="):
            lk.ParquetDataset(folder)
    else:
        if int(pa.__version__.split(".")[0]) >= 25:  # earlier releases need the keys of all columns
            assert lk.ParquetDataset(folder, ["text"])[3] == {"text": "t3"}
        with pytest.raises(lk.ShardError, match=r"0\.parquet: row group 0 can't be read: .*ecryption"):
            lk.ParquetDataset(folder)[0]
