"""`loaderkit shard` and `loaderkit verify`: what they write, find and print."""

import dataclasses
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from command_line import COMMAND, ENVIRONMENT
from drawing import equal
from images_made import encode, picture
from shards_written import contents, folder_index, hidden, manifest

import loaderkit as lk
from loaderkit.cli.command import main
from loaderkit.datasets.shards.folder_index import to_bytes
from loaderkit.datasets.shards.index import ShardIndex, save_index
from loaderkit.writing.manifest import MANIFEST


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, Any]]:
    """Write two files of JSON lines to in/ and return their rows."""
    found = [{"id": row, "text": f"word {row} é"} for row in range(50)]
    (tmp_path / "in").mkdir()
    for part in range(2):
        lines = [json.dumps(row) + "\n" for row in found[part * 25 : part * 25 + 25]]
        (tmp_path / "in" / f"{part}.jsonl").write_text("".join(lines))
    return found


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_files_become_shards_of_each_format(
    rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in"
    assert run("shard", source, tmp_path / "tar", "--samples-per-shard", 20, "--jobs", 2) == 0
    found = lk.TarDataset(tmp_path / "tar")
    assert [found[row] for row in range(50)] == [
        {"__key__": f"{row:09d}", "id": row, "text": entry["text"]} for row, entry in enumerate(rows)
    ]
    assert capsys.readouterr().out.startswith("3 shards: 50 samples, ")
    assert run("shard", tmp_path / "tar", tmp_path / "again", "--samples-per-shard", 20) == 0
    for name in (f"shard-{number:06d}.tar" for number in range(3)):  # files stay what they are
        assert (tmp_path / "tar" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    parquet = ("--format", "parquet", "--row-group-size", 7, "--compression", "none", "--shard-bytes", "1K")
    assert run("shard", source / "*.jsonl", tmp_path / "parquet", *parquet) == 0
    assert list(lk.ParquetDataset(tmp_path / "parquet")) == rows
    settings = "--format tokens --field text --end-token 256 --dtype uint32 --shuffle --seed 4"
    assert run("shard", source, tmp_path / "tokens", *settings.split()) == 0
    flat = np.fromfile(tmp_path / "tokens" / "shard-000000.bin", "<u4").tolist()
    order = lk.Shuffled(50, seed=4).indices(0, 0, 50).tolist()
    assert flat == [token for row in order for token in [*rows[row]["text"].encode(), 256]]
    capsys.readouterr()
    assert run("verify", tmp_path / "tar", manifest(tmp_path / "parquet"), tmp_path / "tokens", "--jobs", 2) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.split()[1:7] == ["3", "shards", "50", "samples", "all", "right"]
    assert said.out.count("all right") == 3


def test_a_folder_of_pictures_keeps_their_bytes(tmp_path: Path) -> None:
    for form in ("jpeg", "png"):
        for row in range(6):
            path = tmp_path / form / f"class{row % 2}" / f"{row}.{form}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(picture(row), form.upper()))
        assert run("shard", tmp_path / form, tmp_path / f"{form}-out") == 0
        name = {"jpeg": "jpg"}.get(form, form)
        raw = lk.TarDataset(tmp_path / f"{form}-out", decode=None)
        folder = lk.ImageFolder(tmp_path / form)
        assert len(raw) == 6
        for row in range(6):
            assert raw[row][name] == folder.path(row).read_bytes()
            assert raw[row]["cls"] == str(folder[row][1]).encode()
        assert json.loads(manifest(tmp_path / f"{form}-out").read_text())["classes"] == ["class0", "class1"]
    (tmp_path / "png" / "class0" / "z.jpg").write_bytes(encode(picture(7), "JPEG"))
    assert run("shard", tmp_path / "png", tmp_path / "mixed") == 0
    mixed, folder = lk.TarDataset(tmp_path / "mixed"), lk.ImageFolder(tmp_path / "png")
    assert len(mixed) == 7
    assert all(
        equal((mixed[row]["png"].clone(), mixed[row]["cls"]), (folder[row][0].contiguous(), folder[row][1]))
        for row in range(7)
    )


def test_a_factory_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_to_shard.py").write_text(
        "def make(size=3):\n    return [('a b', row) for row in range(size)]\n\ndef words(text):\n    return [len(text)]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert run("shard", "mine_to_shard:make", "out", "--option", "size=5", "--fields", "txt,cls") == 0
    assert [entry["cls"] for entry in lk.TarDataset("out")] == list(range(5))
    (tmp_path / "text.jsonl").write_text('"abc"\n"de"\n')
    assert run("shard", "text.jsonl", "tokens", "--format", "tokens", "--tokenizer", "mine_to_shard:words") == 0
    assert np.fromfile("tokens/shard-000000.bin", "<u2").tolist() == [3, 2]


def test_a_tokenizer_and_a_format_of_ones_own_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules in the current folder are found, also if the source itself is a path."""
    (tmp_path / "mine_to_tokenize.py").write_text(
        "import loaderkit as lk\n\nclass Lines(lk.JsonlDataset):\n    pass\n\ndef words(text):\n    return [len(text)]\n"
    )
    (tmp_path / "text.jsonl").write_text('"abc"\n"de"\n')
    monkeypatch.chdir(tmp_path)
    for settings in (["--tokenizer", "mine_to_tokenize:words"], ["--source-format", "mine_to_tokenize:Lines"]):
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
        sys.modules.pop("mine_to_tokenize", None)
        assert run("shard", "text.jsonl", settings[0][2:], "--format", "tokens", *settings) == 0
    assert np.fromfile("tokenizer/shard-000000.bin", "<u2").tolist() == [3, 2]
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    sys.modules.pop("mine_to_tokenize", None)
    assert run("index", "text.jsonl", "--format", "mine_to_tokenize:Lines") == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["no_module:make", "out"], 1, "can't be loaded: No module named 'no_module'"),
        (["json:loads", "out"], 1, "missing 1 required positional argument"),
        (["in", "s3://bucket/out"], 1, "is a URL, wanted a local folder"),
        (["in", "out", "--dtype", "uint32"], 1, "dtype: not for --format tar"),
        (["in", "out", "--format", "tokens", "--tokenizer", "json:nothing"], 1, "can't be loaded"),
        (["in", "out", "--format", "tokens"], 1, "has the fields id, text, wanted one"),
        (["in", "out", "--shard-bytes", "0"], 2, "'0', wanted a number of bytes such as 256M"),
        (["in", "out", "--format", "zip"], 2, "invalid choice"),
        (["a.npy", "out"], 1, "may be npy or token. Say which: --source-format"),
        (["in", "in"], 1, "files that are not shards"),
    ],
)
def test_mistakes_are_named(
    arguments: list[str], code: int, message: str, rows: Any, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    np.save("a.npy", np.arange(3))
    try:
        found = main(["shard", *arguments])
    except SystemExit as end:
        found = end.code  # type: ignore[assignment]
    said = capsys.readouterr()
    assert (found, said.out) == (code, "")
    assert message in said.err
    assert not manifest(Path("out")).exists()


def damage(path: Path, at: int) -> None:
    """Change a byte, but not the size and time."""
    found = path.stat()
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def wrong_indexes(out: Path) -> dict[str, ShardIndex]:
    """Return the shards' indexes; one has another shard's offsets, with the right size and time."""
    data = lk.TarDataset(out)
    found = {Path(shard).name: data.proven_index(part) for part, shard in enumerate(data.shards)}
    first, second, _ = found
    return found | {second: dataclasses.replace(found[second], offsets=found[first].offsets)}


def other_index(out: Path) -> None:
    save_index(str(out / "shard-000001.tar"), wrong_indexes(out)["shard-000001.tar"], None)


def other_entry(out: Path) -> None:
    folder_index(out).write_bytes(to_bytes(wrong_indexes(out)))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda out: (out / "shard-000001.tar").unlink(), "shard-000001.tar: is missing"),
    "extra": (lambda out: (out / "shard-000009.tar").write_bytes(b""), "shard-000009.tar: is not in the manifest"),
    "cut": (lambda out: os.truncate(out / "shard-000001.tar", 3000), "has 3,000 bytes, wanted"),
    "one bit": (lambda out: damage(out / "shard-000001.tar", 530), "shard-000001.tar: has the checksum"),
    "index": (other_index, "its index belongs to another shard"),
    "entry in the folder's index": (other_entry, "its index belongs to another shard"),
    "no manifest": (lambda out: manifest(out).unlink(), "has no manifest.json"),
    "count": (lambda out: edit(manifest(out), '"samples": 20\n', '"samples": 19\n'), "names 3 shards with 49 samples"),
    "broken manifest": (
        lambda out: manifest(out).write_text('{"version": 1}'),
        "not a manifest of `loaderkit shard`",
    ),
    "newer": (lambda out: edit(manifest(out), '"version": 1', '"version": 2'), "of version 2, this loaderkit reads 1"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_verify_finds_what_is_wrong(case: str, rows: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, message = DAMAGES[case]
    assert run("shard", tmp_path / "in", tmp_path / "out", "--samples-per-shard", 20, "--quiet") == 0
    assert run("verify", tmp_path / "out") == 0
    assert capsys.readouterr().err == ""
    change(tmp_path / "out")
    assert run("verify", tmp_path / "out", "--jobs", 1) == 1
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out.endswith("1 wrong\n")


def test_verify_decodes_what_has_the_right_checksum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lk.write_shards([{"png": b"no picture", "cls": 1}], tmp_path / "a")
    assert run("verify", tmp_path / "a") == 1
    assert "000000000.png can't be decoded" in capsys.readouterr().err
    lk.write_shards([[1, 2], [3]], tmp_path / "b", format="tokens")
    assert run("verify", tmp_path / "b") == 0
    damage(tmp_path / "b" / "shard-000000.bin.index", 3)
    assert run("verify", tmp_path / "b") == 1
    assert "shard-000000.bin.index: has the checksum" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_shows_progress_ends_at_an_interrupt_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "slow_to_shard.py").write_text(
        "import time\n\nclass Slow:\n    def __len__(self):\n        return 60\n\n    def __getitem__(self, index):\n"
        "        time.sleep(0.02)\n        return {'cls': index}\n"
    )
    command = [*COMMAND, "shard", "slow_to_shard:Slow", "out", "--samples-per-shard", "10", "--jobs", "2"]
    reader, writer = pty.openpty()
    with subprocess.Popen(command, env=ENVIRONMENT, cwd=tmp_path, stdout=subprocess.PIPE, stderr=writer) as process:
        os.close(writer)
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("out/*.tar")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        workers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        shown = b""
        try:
            while block := os.read(reader, 4096):
                shown += block
        except OSError:  # raised at a terminal's end
            pass
        os.close(reader)
        assert process.wait(60) == 130, shown
    assert b"writing" in shown
    assert b"Traceback" not in shown
    assert not psutil.wait_procs(workers, timeout=60)[1]
    assert hidden(tmp_path / "out") == [".shards"]
    before = len(list(tmp_path.glob("out/*.tar")))
    assert 0 < before < 6
    done = subprocess.run(command, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"6 shards, {before} of them by an earlier run: 60 samples")
    lk.write_shards([{"cls": row} for row in range(60)], tmp_path / "whole", samples_per_shard=10)
    ours, others = contents(tmp_path / "out"), contents(tmp_path / "whole")
    assert {name: ours[name] for name in ours if name != MANIFEST} == {
        name: others[name] for name in others if name != MANIFEST
    }


@pytest.mark.parametrize("url", ["s3://bucket/train/", "https://host/train/manifest.jsonl"])
def test_verify_refuses_a_url_by_its_own_name(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", url) == 1
    text = capsys.readouterr().err
    assert f"{url}: is a URL, wanted a folder of this machine" in text
    assert "did not finish" not in text
    with pytest.raises(lk.WriteError, match="is a URL"):
        lk.verify_shards(url)
