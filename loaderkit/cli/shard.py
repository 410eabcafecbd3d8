"""`loaderkit shard`: write any dataset to shards; a rerun goes on behind what is finished."""

import argparse
import contextlib
from typing import Any

from loaderkit.cli.arguments import count, named, size
from loaderkit.cli.report import complain, complain_of, say, with_progress
from loaderkit.cli.source import add_source, given_source
from loaderkit.loader.checks import check_indexed
from loaderkit.system.process_pool import usable_cpus
from loaderkit.writing.format import Format
from loaderkit.writing.manifest import read_records
from loaderkit.writing.parquet import ParquetFormat
from loaderkit.writing.tar import TarFormat
from loaderkit.writing.tokens import TokenFormat
from loaderkit.writing.write import Writing

_FORMATS: dict[str, type[Any]] = {"tar": TarFormat, "parquet": ParquetFormat, "tokens": TokenFormat}
_SETTINGS = {
    "tar": ("fields", "same_fields", "jpeg_quality"),
    "parquet": ("fields", "row_group_size", "compression"),
    "tokens": ("dtype", "end_token", "tokenizer", "field"),
}


def add_to(commands: Any) -> None:
    """Add the command to a parser's subcommands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "shard",
        help="write a dataset to shards",
        description="Write a dataset to shards. Run it again after it was stopped: what is finished stays. "
        "The exit code is 1 if something failed.",
    )
    add_source(parser)
    parser.add_argument("dest", metavar="DEST", help="a local folder")
    parser.add_argument("--format", choices=_FORMATS, default="tar", help="of the shards (%(default)s)")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--samples-per-shard", type=count, metavar="N")
    sizes.add_argument("--shard-bytes", type=size, metavar="SIZE", help="about, such as 256M, which is the default")
    parser.add_argument("--shuffle", action="store_true", help="write in random order")
    parser.add_argument("--seed", type=int, default=0, help="of that order (%(default)s)")
    parser.add_argument("--jobs", type=count, default=usable_cpus(), help="parallel processes (%(default)s)")
    parser.add_argument("--quiet", action="store_true", help="say only what failed")
    tar = parser.add_argument_group("tar and parquet")
    tar.add_argument("--fields", type=_names, metavar="A,B", help="names for the fields of samples that are tuples")
    tar.add_argument(
        "--mixed-fields", dest="same_fields", action="store_false", default=None, help="tar: samples may differ"
    )
    tar.add_argument("--jpeg-quality", type=count, metavar="N")
    tar.add_argument("--row-group-size", type=count, metavar="ROWS")
    tar.add_argument("--compression", help="parquet: as pyarrow names it")
    tokens = parser.add_argument_group("tokens")
    tokens.add_argument("--dtype", choices=("uint16", "uint32"))
    tokens.add_argument("--end-token", type=int, metavar="N", help="written after each document")
    tokens.add_argument("--tokenizer", metavar="MODULE:FUNCTION", help="from text to tokens; UTF-8 bytes if not given")
    tokens.add_argument("--field", help="the field that holds the text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the shards, and return the exit code."""
    try:
        source, method = given_source(arguments)
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
        steps = writing.run(arguments.jobs, method)
        with contextlib.closing(steps):
            before, total = next(steps)
            for _ in with_progress(steps, total - before, "writing"):
                pass
    except (ValueError, TypeError, OSError, ImportError) as error:
        complain(f"loaderkit shard: {error}")
        return 1
    except Exception as error:  # of the user's own code
        complain_of("shard", error)
        return 1
    if not arguments.quiet:
        records = read_records(writing.manifest)
        size_bytes = sum(record.file.size_bytes for record in records)
        kept = f", {before:,} of them by an earlier run" if before else ""
        say(f"{total:,} shards{kept}: {writing.size:,} samples, {size_bytes:,} bytes; {writing.manifest}")
    return 0


def _format(arguments: argparse.Namespace) -> Format:
    """Make the format of its settings; those of another one are refused."""
    given = {name: getattr(arguments, name) for names in _SETTINGS.values() for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    unknown = [name for name in given if name not in _SETTINGS[arguments.format]]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: not for --format {arguments.format}.")
    if "tokenizer" in given:
        given["tokenizer"] = named(given["tokenizer"])
    made: Format = _FORMATS[arguments.format](**given)
    return made


def _names(text: str) -> list[str]:
    return text.split(",")
