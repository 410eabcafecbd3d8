"""Rows that name files: each decodes as it does alone, random clips belong to the seed, and no row leaves the root."""

import base64
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from drawing import equal
from images_made import encode, picture, pixels
from media_made import audio, video
from multimodal_made import json_lines, name_of, write_pictures, write_sounds
from PIL import Image
from servers import Faulty, run_store

import loaderkit as lk
from loaderkit import testing
from loaderkit.datasets.images.decode import decode_picture

COUNT = 7


class Keep:
    """A collate that keeps samples as they are."""

    draws_nothing = True

    def __call__(self, samples: list[Any]) -> list[Any]:
        return samples


def ids(batch: list[Any]) -> list[int]:
    return [sample["n"] for sample in batch]


def rows(folder: Path, kind: str) -> Any:
    """Rows in a file of this kind, with one picture, a list of pictures or none, and a sound."""
    write_pictures(folder / "files"), write_sounds(folder / "files")
    table = [
        {"n": n, "image": name_of(n % 5), "more": [name_of(k) for k in range(n % 3)], "sound": f"{n % 5}.wav"}
        for n in range(COUNT)
    ]
    if kind == "list":
        return table
    if kind == "jsonl":
        return lk.JsonlDataset(json_lines(folder / "rows.jsonl", table))
    if kind == "csv":
        lines = [f"{row['n']},{row['image']},{row['sound']}" for row in table]
        (folder / "rows.csv").write_text("n,image,sound\n" + "\n".join(lines) + "\n")
        return lk.CsvDataset(folder / "rows.csv", types={"n": int})
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for row in table:  # as Hugging Face writes them
        row["image"] = {"bytes": (folder / "files" / row["image"]).read_bytes(), "path": row["image"]}
        row["more"] = [{"bytes": (folder / "files" / name).read_bytes(), "path": None} for name in row["more"]]
    pq.write_table(pa.Table.from_pylist(table), folder / "rows.parquet", 4)
    return lk.ParquetDataset(folder / "rows.parquet")


FIELDS: dict[str, Any] = {"image": "image", "more": "image", "sound": "audio"}


def media(folder: Path, kind: str = "jsonl") -> Any:
    pytest.importorskip("av")
    fields = {name: how for name, how in FIELDS.items() if kind != "csv" or name != "more"}
    return lk.MediaDataset(rows(folder, kind), fields, root=folder / "files", audio={"clip_s": 0.3})


@pytest.mark.parametrize("kind", ["list", "jsonl", "csv", "parquet"])
def test_files_decode_as_they_do_alone_and_other_fields_stay(kind: str, tmp_path: Path) -> None:
    data = media(tmp_path, kind)
    assert len(data) == COUNT
    for number, sample in enumerate(data):
        alone = decode_picture((tmp_path / "files" / name_of(number % 5)).read_bytes())
        assert torch.equal(sample["image"], alone)
        assert sample["image"].dtype == torch.uint8
        assert sample["n"] == number
        assert sample["sound"]["waveform"].shape == (1, 2400)
        if kind != "csv":
            wanted = [decode_picture((tmp_path / "files" / name_of(k)).read_bytes()) for k in range(number % 3)]
            assert equal(sample["more"], wanted)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_random_clip_belongs_to_the_seed(kind: str, tmp_path: Path) -> None:
    """Exactly once, resumed bit for bit, on other ranks, with workers of any kind."""
    data = media(tmp_path, kind)

    def make(**settings: Any) -> Any:
        return lk.Loader(data, **{"batch_size": 2, "shuffle": True, "seed": 3, "collate_fn": Keep()} | settings)

    testing.assert_exactly_once(make, worlds=(1, 2, 3), samples=COUNT, ids=ids)
    testing.assert_resumable(make, epochs=1, ids=ids)
    settings = [{"world_size": 1}, {"world_size": 2}, {"batch_size": 3}]
    testing.assert_elastic(make, settings, stops=[1], samples=COUNT, ids=ids)
    testing.assert_epochs_differ(make)
    whole = list(make())
    assert len(whole) == 4
    for engine in ("threads", "ring", "torch"):
        assert equal(list(make(engine=engine, num_workers=2)), whole)
    clips = [sample["sound"]["waveform"] for batch in whole for sample in batch]
    other = [sample["sound"]["waveform"] for batch in make(seed=4) for sample in batch]
    assert not equal(sorted(clip.sum().item() for clip in clips), sorted(clip.sum().item() for clip in other))


@pytest.mark.slow
def test_workers_that_start_in_any_way_read_the_same(tmp_path: Path) -> None:
    data = media(tmp_path)

    def make(**settings: Any) -> Any:
        return lk.Loader(data, **{"batch_size": 3, "shuffle": True, "collate_fn": Keep()} | settings)

    settings: dict[str, Any] = {"start_methods": ("fork", "forkserver", "spawn"), "persistent": (False,), "epochs": 1}
    testing.assert_workers_dont_matter(make, workers=(0, 1), **settings, ids=ids)
    again = pickle.loads(pickle.dumps(data))
    assert equal(list(lk.Loader(again, 3, collate_fn=Keep())), list(lk.Loader(data, 3, collate_fn=Keep())))


def test_pictures_draw_nothing_and_random_clips_draw_from_the_sample(tmp_path: Path) -> None:
    clips = media(tmp_path)
    assert (clips.draws_nothing, clips.draws_only_sample_rng) == (False, True)
    assert lk.MediaDataset([{"a": None}], {"a": "image"}).draws_nothing
    middle = lk.MediaDataset([{"a": None}], {"a": "audio"}, audio={"clip_s": 1, "clips": "middle"})
    assert middle.draws_nothing


def load(value: Any, kind: Any = "image", **settings: Any) -> Any:
    return lk.MediaDataset([{"a": value}], {"a": kind}, **settings)[0]["a"]


def test_a_value_may_be_a_path_bytes_a_data_url_or_a_picture(tmp_path: Path) -> None:
    image = picture()
    content, wanted = encode(image), pixels(image)
    (tmp_path / "a.png").write_bytes(content)
    url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    values: list[Any] = [
        *["a.png", Path("a.png"), str(tmp_path / "a.png"), content, bytearray(content), memoryview(content), url],
        *[{"bytes": content, "path": None}, {"bytes": None, "path": "a.png"}, {"bytes": content}, {"path": "a.png"}],
        *[image, wanted],
    ]
    for value in values:
        assert torch.equal(load(value, root=tmp_path), wanted), value
    assert equal(load([*values[:2], None], root=tmp_path), [wanted, wanted, None])
    assert load(None) is None


def test_pictures_of_a_hugging_face_dataset_are_read_as_they_come(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    content = encode(picture())
    table = datasets.Dataset.from_dict({"a": [{"bytes": content, "path": None}], "n": [7]})
    for decode in (True, False):
        data = lk.MediaDataset(table.cast_column("a", datasets.Image(decode=decode)), {"a": "image"})
        assert equal(data[0], {"a": pixels(picture()), "n": 7})
        assert data.fingerprint() != lk.MediaDataset(table, {"a": "image"}).fingerprint()


def test_parts_of_messages_get_their_files(tmp_path: Path) -> None:
    pytest.importorskip("av")
    write_pictures(tmp_path), write_sounds(tmp_path)
    (tmp_path / "a.mp4").write_bytes(video("mp4", 9, size=(16, 16)))
    parts: list[Any] = [
        {"type": "text", "text": "What are these?"},
        {"type": "image", "image": name_of(0), "detail": "low"},
        {"type": "image_url", "image_url": {"url": name_of(2), "detail": "low"}},
        {"type": "image_url", "image_url": name_of(2)},
        {"type": "audio", "audio": "1.wav"},
        {"type": "video", "video": "a.mp4"},
        {"type": "image"},
    ]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "Things."}]
    settings: dict[str, Any] = {"root": tmp_path, "audio": {"clip_s": 0.25, "clips": "middle"}, "video": {"frames": 2}}
    found = load(messages, "parts", **settings)
    asked = found[0]["content"]
    first, second = (decode_picture((tmp_path / name_of(number)).read_bytes()) for number in (0, 2))
    assert found[1] == messages[1]
    assert asked[0] == parts[0]
    assert equal(asked[1], {"type": "image", "image": first, "detail": "low"})
    assert equal(asked[2:4], [{"type": "image", "image": second}] * 2)
    assert asked[4]["audio"]["waveform"].shape == (1, 2000)
    assert asked[5]["video"]["frames"].shape == (2, 3, 16, 16)
    assert asked[6] == {"type": "image", "image": None}
    assert equal(load(parts, "parts", **settings)[:5], asked[:5])  # the content alone
    assert load("only text", "parts") == "only text"
    assert parts[1]["image"] == name_of(0)  # the row itself is as it was


# The root


@pytest.mark.parametrize(
    "name",
    [
        *["../secret.png", "a/../../secret.png", "/etc/passwd", "b/..", "//etc/passwd"],
        *["file:///etc/passwd", "local://etc/passwd", "zip://a.png::file:///etc/passwd", "FILE:///etc/passwd"],
    ],
)
@pytest.mark.parametrize("root", ["pictures", "memory://pictures", "/absolute/pictures"])
def test_a_row_cannot_leave_the_root(name: str, root: str) -> None:
    with pytest.raises(ValueError, match=r"sample 0: field 'a': .* outside=True"):
        load(name, root=root)


def test_a_root_may_be_left_if_that_is_allowed(tmp_path: Path) -> None:
    content = encode(picture())
    (tmp_path / "a.png").write_bytes(content)
    (tmp_path / "root").mkdir()
    for name in ("../a.png", str(tmp_path / "a.png")):
        assert torch.equal(load(name, root=tmp_path / "root", outside=True), pixels(picture()))
    assert torch.equal(load(str(tmp_path / "a.png"), root=tmp_path), pixels(picture()))  # it is inside
    assert torch.equal(load(str(tmp_path / "a.png"), root="/"), pixels(picture()))


def test_a_root_may_be_a_url_and_a_row_may_name_one(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe("/multimodal/root/sub/a.png", encode(picture()))
    storage = lk.Storage(cache_dir=tmp_path / "cache")
    for name, root in (
        ("sub/a.png", "memory://multimodal/root"),
        ("sub/a.png", "memory://multimodal/root/"),
        ("memory://multimodal/root/sub/a.png", "elsewhere"),
    ):
        for cache in (storage, lk.Storage(cache_dir=None)):
            assert torch.equal(load(name, root=root, storage=cache), pixels(picture()))
    assert len(list((tmp_path / "cache").glob("*.lkshard"))) == 1
    with pytest.raises(FileNotFoundError, match=r"sample 0: field 'a': memory://multimodal/root/b.png: is not there"):
        load("b.png", root="memory://multimodal/root", storage=storage)


def test_requests_that_fail_are_tried_again(tmp_path: Path) -> None:
    server = Faulty(encode(picture(size=(200, 100))))
    try:
        storage = lk.Storage(cache_dir=tmp_path, retry=lk.Retry(attempts=3, wait_s=0.01))
        url = server.url.replace("data.jsonl", "a.png")
        server.faults = ["503", "reset"]
        assert torch.equal(load(url, storage=storage), pixels(picture(size=(200, 100))))
        assert len(server.gets) > 2
        asked = len(server.gets)
        assert torch.equal(load(url, storage=storage), pixels(picture(size=(200, 100))))
        assert len(server.gets) == asked  # from the cache
        server.faults = ["404"] * 3
        with pytest.raises(FileNotFoundError, match=r"sample 0: field 'a': http://.*/b.png: .*is not there"):
            load(url.replace("a.png", "b.png"), storage=lk.Storage(cache_dir=None, retry=storage.retry))
    finally:
        server.close()


def test_a_remote_picture_without_a_cache_costs_two_requests(tmp_path: Path) -> None:
    with run_store(tmp_path) as store:
        (store.root / "data").mkdir()
        (store.root / "data" / "a.png").write_bytes(encode(picture()))
        read = partial(load, "a.png", root="s3://data", storage=lk.Storage(store.options, cache_dir=None))
        assert torch.equal(read(), pixels(picture()))
        store.reset()
        assert torch.equal(read(), pixels(picture()))
        assert [request["method"] for request in store.requests()] == ["HEAD", "GET"]


# Bad files


def bad_rows(folder: Path) -> Any:
    """Sixteen rows, of which five name a bad file."""
    write_pictures(folder)
    good = (folder / name_of(2)).read_bytes()
    (folder / "cut.jpeg").write_bytes(good[:30])
    (folder / "cut.png").write_bytes((folder / name_of(0)).read_bytes()[:-30])
    (folder / "text.png").write_text("no picture")
    (folder / "large.png").write_bytes(encode(Image.new("1", (3000, 2000))))
    bad = {3: "cut.jpeg", 5: "missing.png", 8: "text.png", 12: "large.png", 13: "cut.png"}
    table = [{"n": n, "image": bad.get(n, name_of(n % 5))} for n in range(16)]
    return lk.JsonlDataset(json_lines(folder / "rows.jsonl", table)), bad


def test_an_error_names_the_row_the_field_and_the_file(tmp_path: Path) -> None:
    source, bad = bad_rows(tmp_path)
    data = lk.MediaDataset(source, {"image": "image"}, root=tmp_path, max_pixels=10**6)
    said = {
        3: "can be decoded",
        5: "No such file",
        8: "can be decoded",
        12: "at most max_pixels=1,000,000",
        13: "is cut",
    }
    for row, name in bad.items():
        kind = FileNotFoundError if row == 5 else ValueError
        for read in (lambda row=row: data[row], lambda row=row: data.__getitems__([0, row])):
            with pytest.raises(kind, match=rf"rows.jsonl, sample {row}, byte \d+: field 'image': .*{name}.*") as found:
                read()
            assert said[row] in str(found.value)


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("workers", [0, 2])
def test_bad_files_are_left_out_or_replaced(policy: Any, workers: int, tmp_path: Path) -> None:
    source, bad = bad_rows(tmp_path)
    data = lk.MediaDataset(source, {"image": "image"}, root=tmp_path, max_pixels=10**6)
    policy = lk.BadSamples(policy, max_rate=1)
    loader = lk.Loader(data, 4, shuffle=True, num_workers=workers, collate_fn=Keep(), bad_samples=policy)
    found = [number for batch in loader for number in ids(batch)]
    assert set(found) == set(range(16)) - set(bad)
    assert len(found) == (11 if policy.policy == "skip" else 16)
    assert {sample.index for sample in loader.bad_samples} == set(bad)
    assert all(bad[sample.index] in sample.error for sample in loader.bad_samples)


def test_a_file_that_can_be_no_picture_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(1 << 34)
    with pytest.raises(ValueError, match=r"17,179,869,184 bytes, more than any picture of max_pixels=89,478,485"):
        load("a.png", root=tmp_path)


def test_errors_say_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"fields is {'a': 'picture'}, wanted .*'image', 'audio', 'video', 'parts'"):
        load("a.png", "picture")
    with pytest.raises(ValueError, match="max_pixels is 0"):
        load("a.png", max_pixels=0)
    with pytest.raises(TypeError, match=r"MediaDataset: the source is of type str, .*lk\.JsonlDataset"):
        lk.MediaDataset("a.jsonl", {"a": "image"})  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"sample 0: MediaDataset: a row has the fields \['b'\], wanted a dict with \['a'\]"
    ):
        lk.MediaDataset([{"b": 1}], {"a": "image"})[0]
    with pytest.raises(ValueError, match=r"sample 0: .* a row has the type int"):
        lk.MediaDataset([1], {"a": "image"})[0]
    for value, said in (
        (3, "found 3 of type int, wanted a path"),
        ("", "found '' of type str"),
        (torch.zeros(3, 3), r"shape \(3, 3\), wanted a picture"),
        ("data:image/png,abc", "data URL 'data:image/png' cannot be read: no base64"),
        ("data:;base64,?", "data URL"),
        ("a\0b", "null (byte|character)"),
        (".", "[Dd]irectory"),
    ):
        with pytest.raises((ValueError, OSError), match=rf"sample 0: field 'a': .*{said}"):
            load(value, root=tmp_path)
    for part, said in (
        (
            {"type": "audio", "audio": "a.wav"},
            r"a part is audio, wanted its settings: MediaDataset\(..., audio={...}\)",
        ),
        ({"type": "scent"}, r"field 'a'\[0\] has the type 'scent', wanted 'text' or one of 'image', 'audio', 'video'"),
        ({"type": "text"}, r"field 'a'\[0\] is {'type': 'text'}, wanted a text"),
        (7, r"field 'a'\[0\] is of type int"),
    ):
        with pytest.raises(ValueError, match=said):
            load([part], "parts")


def test_settings_of_clips_are_checked() -> None:
    pytest.importorskip("av")
    with pytest.raises(ValueError, match=r"audio is {'clips': 'all', 'clip_s': 1}, wanted .* no clips='all'"):
        load(None, "audio", audio={"clips": "all", "clip_s": 1})
    with pytest.raises(ValueError, match="wanted settings of a clip"):
        load(None, "audio", audio={"labels": "folder"})
    with pytest.raises(TypeError, match=r"MediaDataset: video is {}: .*frames"):
        load(None, "video")
    with pytest.raises(ValueError, match="sample 0: field 'a': the file: not audio that can be decoded"):
        load(b"no sound", "audio")


def test_audio_of_bytes_is_that_of_its_file(tmp_path: Path) -> None:
    pytest.importorskip("av")
    (tmp_path / "a.wav").write_bytes(audio(seconds=1))
    wanted = lk.AudioDataset(str(tmp_path / "a.wav"))[0]
    assert equal(load(audio(seconds=1), "audio"), {key: wanted[key] for key in ("waveform", "sample_rate")})
    assert equal(load("a.wav", "audio", root=tmp_path), load(audio(seconds=1), "audio"))
