"""A program that lists S3 folders and reads ranges of objects through obstore, until its input ends.

obstore's threads do not survive a fork. So a process that may fork workers later starts this program for its first
requests. The program does not import loaderkit, and starts in 50 ms. Importing s3fs and connecting takes ten times as
long.
"""

import pickle
import sys
from typing import Any

FOUND, NOT_FOUND = "found", "not found"  # what an answer begins with; then comes the result


def main() -> None:
    """Read tasks from standard input, and write an answer to each to standard output; all are pickled."""
    sys.path[:] = pickle.load(sys.stdin.buffer)
    from obstore.store import S3Store

    while True:
        try:
            bucket, settings, call, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        store = S3Store(bucket, **settings)
        answer: tuple[str, object]
        if call == "list":
            answer = FOUND, list_folder(store, *arguments)
        else:
            try:
                answer = FOUND, read(store, *arguments)
            except FileNotFoundError:
                answer = NOT_FOUND, None
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


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
