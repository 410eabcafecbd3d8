"""`loaderkit locate`: which samples were in a training step, and where they are kept."""

import argparse
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loaderkit.cli.arguments import Commands, count, number
from loaderkit.cli.inspect import load_file, states_in
from loaderkit.cli.preview import fields_of
from loaderkit.cli.report import say, table
from loaderkit.cli.source import add_source, training_source
from loaderkit.datasets.places import place_of
from loaderkit.datasets.streams.dataset import StreamDataset
from loaderkit.loader.loader import Loader
from loaderkit.loader.step_file import is_step_log
from loaderkit.loader.step_log import StepBatch, StepLog, loader_then
from loaderkit.loader.streams.locate import locate_in_stream
from loaderkit.sampling.cursor import Cursor, unpack_state
from loaderkit.system.overrides import is_map_style
from loaderkit.system.state import StateError


def add_to(commands: Commands) -> None:
    """Add the command to a parser's subcommands."""
    parser = commands.add_parser(
        "locate",
        description="Say which samples were in a training step, and in which file and place each is. No sample is read, unless "
        "--show asks for it. A checkpoint knows the steps of its epoch; they count from 0, each is a batch of every rank. A "
        "log of lk.StepLog knows all steps of a run, by the numbers of its loss plot.",
        examples=(
            ("loaderkit locate steps.log 'shards/*.tar' --step 4510 --show", "what was in step 4510 of this run?"),
            ("loaderkit locate last.ckpt mine:make_loader --ranks 8 --rank 3", "what does rank 3 read next?"),
        ),
    )
    parser.add_argument("log", metavar="LOG", help="a log of steps, or a checkpoint")
    add_source(parser)
    parser.add_argument("--step", type=number, help="number of the step; default for a checkpoint: the next one")
    parser.add_argument("--rank", type=number, help="only this rank")
    parser.add_argument("--ranks", type=count, help="ranks of the run, for a checkpoint (1)")
    parser.add_argument("--batch-size", type=count, help="of each rank, for a stream's checkpoint")
    parser.add_argument(
        "--show",
        type=count,
        nargs="?",
        const=3,
        metavar="N",
        help="also show the first N samples (3), as `preview` does",
    )
    parser.add_argument(
        "--trust", action="store_true", help="load Python objects in a checkpoint: this runs code that it contains"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a step's samples, and return the exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = training_source(arguments)
        path = Path(arguments.log)
        (_of_log if is_step_log(path) else _of_checkpoint)(arguments, path, source)
    return 0


def _of_log(arguments: argparse.Namespace, path: Path, source: object) -> None:
    log = StepLog(path)
    if arguments.step is None:
        steps = log.steps()
        raise ValueError(f"{path}: which step? It has steps from {steps[0]:,} to {steps[-1]:,}: --step N.")
    settings = log.settings(arguments.step)
    if settings["start"] is None:
        [cursor, *_] = log.find(arguments.step)
        raise ValueError(
            f"{path}: the log of a stream knows that step {arguments.step:,} was batch {cursor.batches:,} of epoch {cursor.epoch}, on "
            "each rank. Where the lanes were is in a checkpoint from before that step: loaderkit locate CHECKPOINT SOURCE "
            f"--step {cursor.batches}"
        )
    loader = _loader_of(source, settings["start"])
    found = log.locate(loader, arguments.step, rank=arguments.rank)
    _report(f"step {arguments.step:,} of {path}", loader, found, settings, arguments.show)


def _of_checkpoint(arguments: argparse.Namespace, path: Path, source: object) -> None:
    content = load_file(path, trust=arguments.trust)
    states = list(_loader_states(content))
    if len(states) != 1:
        raise ValueError(
            f"{path}: it has {len(states)} states of training data ({', '.join(name for name, _ in states) or 'none'}), wanted one. "
            "Save loader.state_dict() with the model, or give a file with one of them."
        )
    [(_, state)] = states
    if "lanes" in state:
        _of_stream(arguments, path, source, state)
        return
    loader = _loader_of(source, state)
    saved, config = unpack_state(state), loader.config
    by_plan = config.plan is not None or config.batch_sampler is not None
    ranks = arguments.ranks or 1
    if isinstance(source, Loader) and arguments.ranks is None and not by_plan:
        ranks = max(1, saved.step // (config.batch_size or 1))
    if saved.step % ranks:
        raise ValueError(f"{path}: a step of all ranks has {saved.step:,} samples, which {ranks} ranks cannot share.")
    batch_size = saved.step // ranks
    settings = {"ranks": ranks, "batch_size": batch_size, "tail": config.tail_policy, "start": state}
    step = saved.cursor.batches if arguments.step is None else arguments.step
    found = []
    for rank in range(ranks) if arguments.rank is None else [arguments.rank]:
        then = loader_then(loader, settings, rank)
        ahead = step - saved.cursor.batches
        base = saved.cursor if ahead >= 0 else Cursor(epoch=saved.cursor.epoch)
        key = then.position.indexed("replay()").plan.key(base, step - base.batches)
        cursor = then.position.cursor_at((base, step - base.batches))
        found.append(StepBatch(rank, cursor, key.positions, key.indices))
    if step < saved.cursor.batches:
        say(
            "The checkpoint is from after this step: right if ranks and batch size are the same since the epoch's start."
        )
    if arguments.ranks is None and ranks == 1 and batch_size > 1 and not isinstance(source, Loader):
        say("A checkpoint does not say how many ranks shared a step: give --ranks to see each rank's part.")
    _report(f"step {step:,} by {path}", loader, found, settings, arguments.show)


def _of_stream(arguments: argparse.Namespace, path: Path, source: Any, state: Mapping[str, Any]) -> None:
    stream: Any = source.dataset if isinstance(source, Loader) else source
    batch_size = (source.config.batch_size or 1) if isinstance(source, Loader) else arguments.batch_size
    if not isinstance(stream, StreamDataset):
        raise ValueError(
            f"{path} is the state of a stream, and SOURCE gives a {type(stream).__name__}, wanted an lk.StreamDataset or its "
            "Loader. Name a function of yours that returns it: MODULE:FACTORY."
        )
    if batch_size is None:
        raise ValueError(
            "a stream's state does not say the batch size. Give --batch-size, or a SOURCE that returns a Loader."
        )
    if isinstance(source, Loader):
        source.in_this_process().load_state_dict(state)  # compares the data
    elif (own := stream.fingerprint()) != (wanted := state["stream"].get("shards")):
        raise StateError(f"the state is for shards {wanted!r}, this stream has {own!r}. Give the stream of the run.")
    cursor = state["cursor"]
    step = cursor["batches"] if arguments.step is None else arguments.step
    batches = locate_in_stream(stream, state, step, batch_size)
    found = [each for each in batches if arguments.rank in (None, each.rank)]
    if not found:
        raise ValueError(f"rank {arguments.rank}, wanted one of the {len(state['turns'])} ranks of the checkpoint.")
    rows = [["rank", "lane", "samples"], *([str(each.rank), str(each.lane), each.where] for each in found)]
    ranks = len(state["turns"])
    say(
        f"step {step:,} by {path}: epoch {cursor['epoch']} of a stream; {ranks:,} rank{'s' * (ranks != 1)} with batches of "
        f"{batch_size:,}"
    )
    say("\n" + "\n".join(table(rows, left=(2,))))
    say("\nNobody knows without reading how many samples a shard has, or whether a lane ended before.")
    if arguments.show is not None:
        raise ValueError("--show is for data with an index. Load the state into a Loader, and read on from there.")


def _loader_of(source: object, state: Mapping[str, object]) -> Loader:
    """Return the source if it is a Loader, else a Loader of this dataset with the order that `state` names.

    Raises:
        ValueError: If the source has no index, or neither a shuffled nor a sequential order of it is the state's.
    """
    if isinstance(source, Loader):
        return source
    if not is_map_style(source):
        raise ValueError(
            f"the source is of type {type(source).__name__}, wanted a dataset with an index, a Loader, or a DataModule with one training "
            "dataset."
        )
    saved = unpack_state(state)
    for shuffle in (False, True):
        loader = Loader(source, shuffle=shuffle, seed=saved.identity.seed)
        try:
            loader.load_state_dict(state)
        except StateError as error:
            if "is for order" not in str(error):
                raise
        else:
            return loader
    raise ValueError(
        f"the run has the order {saved.identity.order!r}, which the data alone does not give. Name a function of yours that returns "
        "the run's Loader as SOURCE: MODULE:FACTORY."
    )


def _named(index: object) -> str:
    """Return an index, or the key that a user's sampler gives in place of one, as a text."""
    return f"{index:,}" if isinstance(index, int) else str(index)


def _loader_states(content: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path and the state of each Loader in a file, also of those within a DataModule's state."""
    for place, state, _ in states_in(content):
        if "train" in state:
            yield from ((f"{place}.train.{row}", inner) for row, inner in enumerate(state["train"]))
        else:
            yield place, state


def _report(
    what: str, loader: Loader, found: list[StepBatch], settings: Mapping[str, object], show: int | None
) -> None:
    cursor, ranks = found[0].cursor, settings["ranks"]
    size = (
        "" if loader.config.plan or settings["batch_size"] is None else f" with batches of {settings['batch_size']:,}"
    )
    say(
        f"{what}: epoch {cursor.epoch}, batch {cursor.batches:,} of each rank, after {cursor.samples:,} samples of all ranks; "
        f"{ranks:,} rank{'s' * (ranks != 1)}{size}"
    )
    rows = [["rank", "position", "sample", "place"]]
    for batch in found:
        for position, index in zip(batch.positions.tolist(), batch.indices.tolist(), strict=True):
            place = place_of(loader.dataset, index) if isinstance(index, int) else None
            rows.append([str(batch.rank), f"{position:,}", _named(index), "" if place is None else str(place)])
    say("\n" + "\n".join(table(rows, left=(3,))))
    indices = [index for batch in found for index in batch.indices.tolist()]
    for index in indices[: show or 0]:
        head = [f"sample {_named(index)}", "type", "dtype", "shape", "value"]
        say("\n" + "\n".join(table([head, *map(list, fields_of(loader.dataset[index]))], left=range(5))))
