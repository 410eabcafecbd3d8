"""Hashes of arrays and texts, for fingerprints."""

import hashlib

from loaderkit.system.types import Array


def digest(*parts: Array | bytes | str) -> str:
    """Return one hash of all given arrays, bytes and texts: 16 hexadecimal digits."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        content = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        found.update(content if isinstance(content, bytes) else content.tobytes())
    return found.hexdigest()


def shortened(text: str) -> str:
    """Return a text of at most 200 characters as it is, and the hash of a longer one."""
    return text if len(text) <= 200 else digest(text)
