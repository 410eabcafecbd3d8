"""A program that lists or reads S3 objects through obstore, and ends.

obstore's threads do not survive a fork. So a process whose workers are forked later starts this program for its first requests.
It does not import loaderkit, and takes 50 ms to start. Importing s3fs and connecting takes ten times as long.
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
    """Return the key, size, time and tag of each object in a folder."""
    import obstore

    pages = obstore.list(store, folder) if recursive else [obstore.list_with_delimiter(store, folder)["objects"]]
    return [(one["path"], one["size"], one["last_modified"], one["e_tag"]) for page in pages for one in page]


def read(store: Any, key: str, start: int, stop: int) -> bytes:
    """Return a range of an object."""
    import obstore

    return bytes(obstore.get_range(store, key, start=start, end=stop))


if __name__ == "__main__":
    main()
