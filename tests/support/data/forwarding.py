"""A wrapper that forwards the names it lacks, as many wrappers of users do."""

from typing import Any


class Forwards:
    """Speaks with the data's own voice for every name that it lacks."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)
