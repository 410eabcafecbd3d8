"""`loaderkit inspect`: say in words where a saved run stands in its data."""

import argparse
import json
import pickle
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from loaderkit.cli.arguments import Commands
from loaderkit.cli.report import complain, say
from loaderkit.files.regular_file import open_regular
from loaderkit.loader.streams.state import open_stream_state
from loaderkit.sampling.cursor import Saved, unpack_state
from loaderkit.system.state import StateError
from loaderkit.system.terminal import coloured

_LOOPS = "loops."  # begins the paths of the loops' states in Lightning's checkpoints
_IN_FOLDERS = ("meta.pt", "trainer_state.json")  # of a checkpoint that FSDP has split, and of the Hugging Face Trainer
Describe = Callable[[Any], list[str]]  # returns a state's description, in lines
_DEPTH = 6  # levels of dicts and lists that are searched for states


def add_to(commands: Commands) -> None:
    """Add the command to a parser's subcommands."""
    parser = commands.add_parser(
        "inspect",
        description="Find the states of Loaders and DataModules in a checkpoint of Lightning or torch.save, or in a JSON "
        "file, and say in words where each stands. The exit code is 1 if a state is damaged, or there is none.",
        examples=(
            ("loaderkit inspect checkpoints/last.ckpt", "a checkpoint of Lightning"),
            ("loaderkit inspect state.json", "a state that your own loop wrote with json.dump"),
        ),
    )
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a file, or a folder that FSDP or the Hugging Face Trainer wrote"
    )
    parser.add_argument(
        "--trust", action="store_true", help="load Python objects too: this runs code that the file contains"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print where the states stand, and return the exit code."""
    path = Path(arguments.checkpoint)
    content = load_file(path, trust=arguments.trust)
    found = states_in(content)
    if not found:
        raise ValueError(f"{path}: no state of a Loader or a DataModule in it; {_what_there_is(content)}")
    say(f"{path}: {_kind_of_file(content)}")
    wrong = False
    for place, state, lines_of in found:
        try:
            lines = lines_of(state)
        except (StateError, RecursionError) as error:
            wrong = True
            say(f"\n{place}")
            complain(f"  {coloured('damaged or not readable', 'bold red', sys.stderr)}: {error}")
        else:
            say("\n".join([f"\n{place}", *(f"  {line}" for line in lines)]))
    return int(wrong)


def states_in(content: object) -> list[tuple[str, Any, Describe]]:
    """Return (path, state, function that describes it) for each state of a Loader or DataModule in a checkpoint."""
    found = list(_states(content))
    if any(words is _data_module for _, _, words in found):  # then the Trainer's loops only repeat its loaders
        found = [one for one in found if not one[0].startswith(_LOOPS)]
    return found


def load_file(path: Path, *, trust: bool) -> object:
    """Return a file's content; a ValueError says what is wrong with the file."""
    if path.is_dir():
        known = [path / name for name in _IN_FOLDERS if (path / name).exists()]
        if not known:
            raise ValueError(f"{path}: a folder without {' or '.join(_IN_FOLDERS)}. Name a checkpoint's file.")
        path = known[0]
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file.")
    with open_regular(path) as file:
        start = file.read(64)
    if not start:
        raise ValueError(f"{path}: the file is empty: it is damaged. Use another checkpoint.")
    if start.lstrip()[:1] in (b"{", b"["):
        try:
            return json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: damaged, not whole JSON ({error}). Use another checkpoint.") from error
    if start.startswith(b"PK") and not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: damaged, its end is missing. Use another checkpoint.")
    try:
        return torch.load(path, map_location="cpu", weights_only=not trust)
    except pickle.UnpicklingError as error:
        if "weights_only" not in str(error) or "Unsupported" not in str(error):
            raise ValueError(f"{path}: damaged, or no file of torch.save. Use another checkpoint.") from error
        raise ValueError(
            f"{path}: it has Python objects, not only tensors and plain values. If you trust whoever wrote it, give --trust: "
            "loading them runs code that the file contains."
        ) from error
    except Exception as error:  # a damaged pickle may cause any
        raise ValueError(f"{path}: damaged, or no file of torch.save. Use another checkpoint.") from error


def _states(content: object, place: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any, Describe]]:
    if not depth or not isinstance(content, Mapping | list | tuple):
        return
    if isinstance(content, Mapping):
        if (words := _words_for(content)) is not None:
            yield place or "the whole file", content, words
            return
        inner = [(str(key), value) for key, value in content.items()]
    else:
        inner = [(str(row), value) for row, value in enumerate(content)]
    for name, value in inner:
        yield from _states(value, f"{place}.{name}" if place else name, depth - 1)


def _words_for(state: Mapping[object, object]) -> Describe | None:
    """Return the function that describes a state, chosen by its keys; None if the mapping is not a state.

    A damaged state may lack some keys.
    """
    kinds = (
        ({"cursor", "identity", "step", "bad", "judged"}, _loader),
        ({"stream", "cursor", "turns", "lanes", "missing"}, _stream),
        ({"train", "batches", "epoch_over", "ended"}, _data_module),
    )
    keys, words = max(kinds, key=lambda kind: len(kind[0] & set(state)))
    signed = "version" in state or "checksum" in state
    return words if len(keys & set(state)) >= (2 if signed else len(keys)) else None


def _loader(state: Mapping[str, object]) -> list[str]:
    saved = unpack_state(state)
    cursor, identity = saved.cursor, saved.identity
    where = _after(cursor.batches)
    if cursor.samples and not cursor.batches:
        where = "at a place that seek() chose"
    lines = [
        f"epoch {cursor.epoch}, {where}: {_number(cursor.samples, 'sample')} of the epoch are done, over all ranks",
        f"data: {identity.dataset}",
        f"order: {identity.order}",
        f"seed: {identity.seed}",
        _step(saved),
    ]
    lines += [
        f"left out of epoch {epoch}: samples {start:,} to {stop - 1:,} of its order"
        for epoch, start, stop in saved.skips.stretches
    ]
    return lines + _bad(saved.bad, f" of {saved.judged:,}")


def _step(saved: Saved) -> str:
    # An order begins with its plan's name. The steps of plans without a fixed number of samples have another unit.
    if saved.identity.order.startswith("tokenbudget-"):
        return f"a step of all ranks took up to {_number(saved.step, 'token')}, padding included"
    if saved.identity.order.startswith("packplan-"):
        return f"a step of all ranks took {_number(saved.step, 'row')} of packed samples"
    return f"a step of all ranks took {_number(saved.step, 'sample')}"


def _stream(state: Mapping[str, object]) -> list[str]:
    fields = open_stream_state(state)
    cursor, ranks, lanes = fields["cursor"], len(fields["turns"]), len(fields["lanes"])
    where = _after(cursor["batches"])
    lines = [f"epoch {cursor['epoch']}, {where}: a stream in {_number(lanes, 'lane')}, on {_number(ranks, 'rank')}"]
    lines += [f"{name}: {value}" for name, value in fields["stream"].items()]
    if fields["missing"]:
        names = ", ".join(map(str, fields["missing"]))
        lines.append(f"incomplete: rank {names} did not answer. Merge the ranks' states: loaderkit.merge_states.")
    return lines + _bad(sum(cursor["bad"]), "")


def _data_module(state: Mapping[str, Any]) -> list[str]:
    from loaderkit.lightning.position import open_position  # lightning takes seconds to import

    fields = open_position(state)
    if not fields["train"]:
        return ["before the first batch: no training loader existed yet"]
    done = f"{_number(fields['batches'], 'batch', 'batches')} of the epoch are trained on"
    lines = ["an epoch is over, the next has not begun" if fields["epoch_over"] else done]
    for row, inner in enumerate(fields["train"]):
        words = _words_for(inner)
        if words is None:
            raise StateError(
                f"training data {row}: not the state of a Loader (found the keys {sorted(map(str, inner))})."
            )
        lines += [f"training data {row}:" if len(fields["train"]) > 1 else "training data:"]
        lines += [f"  {line}" for line in words(inner)]
    if "statistics" in state:
        from loaderkit.datasets.tables.columns import TableStatistics

        found = TableStatistics.from_state(state["statistics"])
        lines.append(f"statistics of {len(found.numeric)} numeric and {len(found.categorical)} categorical columns")
    return lines


def _after(batches: int) -> str:
    return f"after {_number(batches, 'batch', 'batches')} of each rank" if batches else "at its start"


def _bad(bad: int, among: str) -> list[str]:
    return [f"bad samples: {bad:,}{among} of this epoch left out"] if bad else []


def _number(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _kind_of_file(content: object) -> str:
    if isinstance(content, Mapping) and "pytorch-lightning_version" in content:
        step = content.get("global_step")
        steps = f", after {_number(step, 'optimizer step')}" if isinstance(step, int) else ""
        return f"a checkpoint of Lightning {content['pytorch-lightning_version']}{steps}"
    return "a saved state"


def _what_there_is(content: object) -> str:
    if isinstance(content, Mapping):
        names = ", ".join(map(repr, list(content)[:8])) + (", ..." if len(content) > 8 else "")
        return f"it has the keys {names or '(none)'}. Save loader.state_dict() with the model, or give the DataModule to fit."
    return f"it holds a {type(content).__name__}."
