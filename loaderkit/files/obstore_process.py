"""A program that lists an S3 folder, or reads one range of an object, through obstore.

obstore's threads do not survive a fork. So a process that may fork workers later starts this program for its first
requests. The program does not import loaderkit, and starts in 50 ms. Importing s3fs and connecting takes ten times as
long.
"""

import pickle
import sys
from typing import Any

NOT_FOUND = 4  # exit code


def main() -> None:
    """Read a task from standard input, and write its result to standard output; both are pickled."""
    path, bucket, settings, call, arguments = pickle.load(sys.stdin.buffer)
    sys.path[:] = path
    from obstore.store import S3Store

    store = S3Store(bucket, **settings)
    try:
        result = list_folder(store, *arguments) if call == "list" else read(store, *arguments)
    except FileNotFoundError:
        sys.exit(NOT_FOUND)
    pickle.dump(result, sys.stdout.buffer)


def list_folder(store: Any, folder: str, recursive: bool) -> list[tuple[str, int, Any, str | None]]:
    """Return the key, size in bytes, time of last change and entity tag of each object in a folder."""
    import obstore

    pages = obstore.list(store, folder) if recursive else [obstore.list_with_delimiter(store, folder)["objects"]]
    return [(one["path"], one["size"], one["last_modified"], one["e_tag"]) for page in pages for one in page]


def read(store: Any, key: str, start: int, stop: int) -> bytes:
    """Return an object's bytes from `start` to before `stop`."""
    import obstore

    return bytes(obstore.get_range(store, key, start=start, end=stop))


if __name__ == "__main__":
    main()
