"""`loaderkit shard`: write any dataset to shards; a rerun keeps the finished shards and writes the rest."""

import argparse
import contextlib
import dataclasses

from loaderkit.cli.arguments import Commands, add_jobs, count, executor_of, named, size
from loaderkit.cli.report import say
from loaderkit.cli.source import add_source, source_from
from loaderkit.loader.checks import check_indexed
from loaderkit.system.progress import with_progress
from loaderkit.writing.format import Format
from loaderkit.writing.manifest import read_records
from loaderkit.writing.shard_writer import FORMATS, Writing


def add_to(commands: Commands) -> None:
    """Add the command to a parser's subcommands."""
    parser = commands.add_parser(
        "shard",
        description="Write a dataset to shards. If it was stopped, run it again: it keeps the finished shards and writes "
        "the rest. The exit code is 1 if something failed.",
        examples=(
            ("loaderkit shard photos/ shards/ --shuffle", "write a folder of pictures to tar shards, in random order"),
            (
                "loaderkit shard mine:make_dataset shards/ --format parquet --samples-per-shard 10000",
                "write your own dataset to Parquet files",
            ),
        ),
    )
    add_source(parser)
    parser.add_argument("dest", metavar="DEST", help="a local folder")
    parser.add_argument("--format", choices=FORMATS, default="tar", help="the shards' format (%(default)s)")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--samples-per-shard", type=count, metavar="N")
    sizes.add_argument("--shard-bytes", type=size, metavar="SIZE", help="approximate size of a shard (256M)")
    parser.add_argument("--shuffle", action="store_true", help="write in random order")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random order (%(default)s)")
    add_jobs(parser)
    parser.add_argument("--quiet", action="store_true", help="print only failures")
    tar = parser.add_argument_group("tar and parquet")
    tar.add_argument(
        "--fields", type=lambda text: text.split(","), metavar="A,B", help="field names, if the samples are tuples"
    )
    tar.add_argument(
        "--mixed-fields",
        dest="same_fields",
        action="store_false",
        default=None,
        help="tar: samples may have different fields",
    )
    tar.add_argument("--jpeg-quality", type=count, metavar="N", help="tar: from 1 to 100")
    tar.add_argument("--row-group-size", type=count, metavar="ROWS", help="parquet: rows in a row group")
    tar.add_argument("--compression", help="parquet: a codec that pyarrow knows")
    tokens = parser.add_argument_group("tokens")
    tokens.add_argument("--dtype", choices=("uint16", "uint32"), help="the tokens' type")
    tokens.add_argument("--end-token", type=int, metavar="N", help="token to write after each document")
    tokens.add_argument("--tokenizer", metavar="MODULE:FUNCTION", help="turns a text into tokens; default: UTF-8 bytes")
    tokens.add_argument("--field", help="the field that holds the text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the shards, and return the exit code."""
    source, method = source_from(arguments)
    check_indexed(source)
    writing = Writing(
        source,
        arguments.dest,
        _format(arguments),
        arguments.samples_per_shard,
        arguments.shard_bytes,
        arguments.shuffle,
        arguments.seed,
    )
    with (
        executor_of(arguments) as (jobs, executor),
        contextlib.closing(writing.run(jobs, method, executor=executor)) as steps,
    ):
        before, total = next(steps)
        for _ in with_progress(steps, total - before, "writing"):
            pass
    if not arguments.quiet:
        records = read_records(writing.manifest)
        size_bytes = sum(record.file.size_bytes for record in records)
        kept = f", {before:,} of them by an earlier run" if before else ""
        say(
            f"{total:,} shard{'s' * (total != 1)}{kept}: {writing.size:,} samples, {size_bytes:,} bytes; {writing.manifest}"
        )
    return 0


def _format(arguments: argparse.Namespace) -> Format:
    """Return the format with its settings; raise a ValueError for settings of another format."""
    kind = FORMATS[arguments.format]
    names = dict.fromkeys(field.name for each in FORMATS.values() for field in dataclasses.fields(each))
    settings = {name: value for name in names if (value := getattr(arguments, name, None)) is not None}
    unknown = settings.keys() - {field.name for field in dataclasses.fields(kind)}
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: not for --format {arguments.format}.")
    if "tokenizer" in settings:
        settings["tokenizer"] = named(settings["tokenizer"])
    found: Format = kind(**settings)
    return found
