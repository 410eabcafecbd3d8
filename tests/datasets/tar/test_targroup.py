"""Samples put together many at once are those that a look at one name after the other gives, errors too."""

import random
from collections import Counter

import pytest

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.tar import index as tartable
from loaderkit.datasets.tar.group import Grouper
from loaderkit.datasets.tar.headers import File, Files
from loaderkit.datasets.tar.index import group

EXTENSIONS = ["cls", "jpg", "TXT", "seg.png", "json", "x" * 9, "y" * 17, "é", "txt"]
STRAYS = ["README", ".hidden.cls", "d/.x.y", "a.", "d.e/", "noext"]
STRANGE = [
    "__meta__/a.json",
    "__info__",
    "__0.cls",
    "/a.cls",
    "a/../b.cls",
    "a..b",
    "0.cls",
    "0.Cls",
    "q.__key__",
    "a\0.b",
    "",
]


def names(draw: random.Random) -> list[str]:
    """Make the names of a shard: usual ones, in most with a few of the others."""
    found = []
    extensions = draw.sample(EXTENSIONS, draw.randrange(1, len(EXTENSIONS)))
    width, folder = draw.choice([1, 6]), draw.choice(["", "", "./", "a/b.c/", "long" * 20 + "/"])
    for number in range(draw.randrange(0, 40)):
        key = f"{draw.choice([folder, folder, ''])}{number:0{width}d}"
        mine = draw.sample(extensions, draw.randrange(1, len(extensions) + 1)) if draw.random() < 0.2 else extensions
        found += [f"{key}.{extension}" for extension in mine]
        if draw.random() < 0.1:
            found.append(draw.choice(STRAYS))
    for _ in range(draw.choice([0, 0, 0, 1, 2])):
        found.insert(draw.randrange(len(found) + 1), draw.choice(STRANGE))
    if draw.random() < 0.1:
        draw.shuffle(found)
    return found


def chunks(draw: random.Random, files: list[File]) -> list[list[File] | Files]:
    """Cut files to pieces as a walk may give them, also to none."""
    cuts = sorted(draw.randrange(len(files) + 1) for _ in range(draw.randrange(4)))
    parts = [files[start:end] for start, end in zip([0, *cuts], [*cuts, len(files)], strict=True)]
    return [part if draw.random() < 0.3 or (found := Files.of(part)) is None else found for part in parts]


def outcome(function, *given) -> object:
    try:
        table = function(*given)
    except ShardError as error:
        return str(error)
    return table.members.tolist(), table.ends.tolist(), bytes(table.keys), table.extensions


def test_samples_are_those_found_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: Counter[str] = Counter()
    draw = random.Random(0)
    finish = Grouper.finish
    quick = []
    monkeypatch.setattr(Grouper, "finish", lambda self: quick.append(finish(self)) or quick[-1])
    for _ in range(3000):
        files = [(name.encode(), 512 + 1024 * number, draw.randrange(2000)) for number, name in enumerate(names(draw))]
        quick.clear()
        wanted = outcome(tartable._group_one_by_one, [files], "x.tar")
        assert outcome(group, chunks(draw, files), "x.tar") == wanted
        kind = "error" if isinstance(wanted, str) else "quick" if quick and quick[0] is not None else "slow"
        outcomes[kind] += 1
    assert min(outcomes["error"], outcomes["quick"]) > 500  # else the law above is about little
    assert outcomes["slow"] > 50


@pytest.mark.parametrize("keys", ["{:06d}", "{}", "d/{}", "d.e/{:06d}", "{:06d} of ours"])
@pytest.mark.parametrize("step", [1, -1])
def test_usual_names_are_not_left_to_the_slow_way(keys: str, step: int) -> None:
    """Keys of one length or of several, in folders or not, in rising order or any other."""
    order = range(300)[::step]
    files = [(f"{keys.format(n)}.{end}".encode(), n, 1) for n in order for end in ("cls", "seg.png", "README")]
    grouper = Grouper()
    for start in range(0, len(files), 600):
        found = Files.of(files[start : start + 600])
        assert found is not None
        assert grouper.add(found)
    quick = grouper.finish()
    assert quick is not None
    slow = tartable._group_one_by_one([files], "x.tar")
    assert [quick[0].tolist(), quick[1].tolist(), quick[2]] == [slow.members.tolist(), slow.ends.tolist(), slow.keys]
    assert len(slow.ends) == 300


def test_more_extensions_than_bits_are_found_too() -> None:
    files = [(b"a.%d" % number, number, 1) for number in range(100)] + [
        (b"b.%d" % number, number, 1) for number in range(100)
    ]
    table = group([found] if (found := Files.of(files)) else [], "x.tar")
    assert (len(table.ends), len(table.extensions)) == (2, 100)
    with pytest.raises(ShardError, match="has a file with this extension already"):
        group([files + files[-1:]], "x.tar")


def test_what_is_wrong_first_is_named_first() -> None:
    def broken(bad: bytes):
        yield [(b"a.cls", 512, 1), (bad, 2048, 1)]
        raise ShardError("x.tar, offset 4,096: the archive is damaged.")

    with pytest.raises(ShardError, match="the archive is damaged"):
        group(broken(b"b.cls"), "x.tar")
    for bad in (b"a.CLS", b"/b.cls"):
        with pytest.raises(ShardError, match="offset 2,048"):
            group(broken(bad), "x.tar")
