"""`loaderkit shard`: write any dataset to shards; a rerun keeps the finished shards and writes the rest."""

import argparse
import contextlib
from typing import Any

from loaderkit.cli.arguments import count, named, size
from loaderkit.cli.report import complain, complain_of, say
from loaderkit.cli.source import add_source, source_from
from loaderkit.loader.checks import check_indexed
from loaderkit.system.process_pool import usable_cpus
from loaderkit.system.progress import with_progress
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
        description="Write a dataset to shards. If it was stopped, run it again: it keeps the finished shards and writes "
        "the rest. The exit code is 1 if something failed.",
    )
    add_source(parser)
    parser.add_argument("dest", metavar="DEST", help="a local folder")
    parser.add_argument("--format", choices=_FORMATS, default="tar", help="the shards' format (%(default)s)")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--samples-per-shard", type=count, metavar="N")
    sizes.add_argument("--shard-bytes", type=size, metavar="SIZE", help="approximate size of a shard (256M)")
    parser.add_argument("--shuffle", action="store_true", help="write in random order")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random order (%(default)s)")
    parser.add_argument("--jobs", type=count, default=usable_cpus(), help="parallel processes (%(default)s)")
    parser.add_argument("--quiet", action="store_true", help="print only failures")
    tar = parser.add_argument_group("tar and parquet")
    tar.add_argument("--fields", type=_names, metavar="A,B", help="field names, if the samples are tuples")
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
    try:
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
        steps = writing.run(arguments.jobs, method)
        with contextlib.closing(steps):
            before, total = next(steps)
            for _ in with_progress(steps, total - before, "writing"):
                pass
    except (ValueError, TypeError, OSError, ImportError) as error:
        complain(f"loaderkit shard: {error}")
        return 1
    except Exception as error:  # from the user's code
        complain_of("shard", error)
        return 1
    if not arguments.quiet:
        records = read_records(writing.manifest)
        size_bytes = sum(record.file.size_bytes for record in records)
        kept = f", {before:,} of them by an earlier run" if before else ""
        say(f"{total:,} shards{kept}: {writing.size:,} samples, {size_bytes:,} bytes; {writing.manifest}")
    return 0


def _format(arguments: argparse.Namespace) -> Format:
    """Return the format with its settings; refuse settings of another format."""
    settings = {name: getattr(arguments, name) for names in _SETTINGS.values() for name in names}
    settings = {name: value for name, value in settings.items() if value is not None}
    unknown = [name for name in settings if name not in _SETTINGS[arguments.format]]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: not for --format {arguments.format}.")
    if "tokenizer" in settings:
        settings["tokenizer"] = named(settings["tokenizer"])
    found: Format = _FORMATS[arguments.format](**settings)
    return found


def _names(text: str) -> list[str]:
    return text.split(",")
