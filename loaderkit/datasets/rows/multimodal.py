"""Documents of texts and pictures as rows of token ids, tokenized when a sample is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from loaderkit.datasets.base import MapStyle
from loaderkit.datasets.rows.encoder import Cut, RowDataset, RowEncoder, RowSettings, records_of
from loaderkit.datasets.rows.messages import check_text
from loaderkit.datasets.rows.parts import Part, is_list, is_text, reference, text_of
from loaderkit.datasets.rows.pictures import Pictures, Placeholders, Row, id_of
from loaderkit.datasets.rows.template import tokenizer_digest
from loaderkit.seeding.draws import Draws, draws
from loaderkit.system.arrays import Int64Array
from loaderkit.system.digests import digest

DOCUMENT_COLUMNS = ("content", "texts", "images")


class MultimodalDataset(RowDataset):
    """Interleaved documents of texts and pictures as rows of tokens.

    Each document is one row, in the order of its parts. Rows are made in the workers. A sample is a dict: `input_ids`
    (T,) int64 with a placeholder for each token of a picture, `labels` (T,) int64: the ids, but -100 at pictures, and
    `images`, a list of tensors (3, H, W) uint8. `MultimodalCollate` with the same `Patches` makes batches, and so does
    `PackCollate(..., fields={"labels": -100, "images": patches})` for a `PackPlan`.

    `measure_lengths(dataset)` counts tokens for plans. It reads only the headers of pictures.

    A record has one of these layouts:

    - `texts` and `images`: lists of equal length; at each position at least one of the two is None (OBELICS).
    - `content`: a list of texts and parts: `{"type": "text", "text": "..."}`, `{"type": "image", "image": "a.png"}`, or
      `{"type": "image_url", "image_url": {"url": "a.png"}}` (OpenAI).

    A picture is a file as in `MediaDataset`, or a decoded picture. For conversations with pictures use
    `ChatDataset(pictures=...)`.

    Args:
        source: Records by index: any dataset, a list, or a `datasets.Dataset`.
        tokenizer: A tokenizer of the package `transformers`, or any function from a text to ids. Each text is tokenized by itself,
            without special tokens.
        pictures: How pictures are read, and the tokens that stand for them.
        columns: Names of columns in the data, by standard name: {"content": "parts"}.
        end: A token to append to each document: its text, or its id; None appends none.
        max_length: Largest number of tokens in a row; None for any.
        too_long: What happens to a longer row. "error": reading it fails; `BadSamples` or a plan may leave it out.
            "truncate_right" and "truncate_left" cut it at that end. A picture that does not fit as a whole is left out.

    Raises:
        TypeError: If the source or the tokenizer is of another type.
        ValueError: If a setting is wrong. When a sample is read: if it has none of the layouts, is empty or too long, a part is of
            another type, a picture cannot be read, or nothing is left to train on.

    Examples:
        >>> patches = lk.Patches(size=14, merge=2)
        >>> rows = [{"texts": ["a red square: ", None], "images": [None, torch.zeros(3, 30, 60, dtype=torch.uint8)]}]
        >>> data = lk.MultimodalDataset(rows, str.encode, lk.Pictures(patches, placeholder=256))
        >>> data[0]["input_ids"][-3:], data[0]["labels"][-3:]
        (tensor([ 32, 256, 256]), tensor([  32, -100, -100]))
        >>> lk.measure_lengths(data)
        array([16])
        >>> collate = lk.MultimodalCollate({"input_ids": lk.Pad(), "labels": lk.Pad(value=-100), "images": patches})
        >>> next(iter(lk.Loader(data, collate_fn=collate)))["images"]["grids"]
        tensor([[2, 4]])
    """

    def __init__(
        self,
        source: MapStyle,
        tokenizer: object,
        pictures: Pictures,
        *,
        columns: Mapping[str, str] | None = None,
        end: str | int | None = None,
        max_length: int | None = None,
        too_long: Cut = "error",
    ) -> None:
        name = type(self).__name__
        if not callable(tokenizer):
            raise TypeError(
                f"{name}: the tokenizer is of type {type(tokenizer).__name__}, wanted one of the package transformers, or a function "
                "from a text to ids, such as str.encode."
            )
        placeholders = Placeholders.of(pictures, tokenizer, name)
        settings = RowSettings.of(
            name,
            known=DOCUMENT_COLUMNS,
            columns=columns,
            max_length=max_length,
            too_long=too_long,
            cuts=get_args(Cut),
            placeholders=placeholders,
        )
        before, after = placeholders.around
        picture = tuple(token for token in (before, placeholders.placeholder, after) if token is not None)
        encoder = _Encoder(settings=settings, tokenizer=tokenizer, picture=picture, end=id_of(end, tokenizer, name))
        super().__init__(records_of(source, name), encoder)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Encoder(RowEncoder):
    """The encoder of documents."""

    tokenizer: Callable[..., Any]
    picture: tuple[int, ...]  # the ids that stand for one picture
    end: int | None

    @property
    def draws_nothing(self) -> bool:
        return self._is_theirs() or draws(self.tokenizer) is Draws.NOTHING

    def read(self, record: object) -> tuple[list[str | None], list[Part]]:
        """Return the document's parts, texts or None for a picture, and the references of its pictures."""
        record = self.columns.checked(record)
        content = self.columns.get(record, "content")
        content = self._side_by_side(record) if content is None else content
        if not is_list(content):
            raise ValueError(f"{self.owner}: the content is of type {type(content).__name__}, wanted a list of parts.")
        texts: list[str | None] = []
        pictures: list[Part] = []
        for number, part in enumerate(content):
            place = f"part {number}"
            if is_text(part, place):
                check_text(text_of(part), place, self.owner)
                texts.append(text_of(part))
            else:
                texts.append(None)
                pictures.append((place, reference(part, place)[1]))
        if not texts:
            raise ValueError(f"{self.owner}: the document is empty, wanted texts or pictures.")
        return texts, pictures

    def row(self, content: list[str | None], sizes: list[tuple[int, int]]) -> tuple[Row, slice]:
        pieces = [self.picture if text is None else self._ids(text) for text in content]
        ids = np.concatenate([*pieces, [] if self.end is None else [self.end]]).astype(np.int64)
        return self.cut(self.spread(ids, np.ones(len(ids), dtype=bool), sizes))

    def _side_by_side(self, record: Mapping[str, object]) -> list[object]:
        """Return the parts of a record with `texts` and `images`."""
        texts, images = self.columns.get(record, "texts"), self.columns.get(record, "images")
        if not is_list(texts) or not is_list(images) or len(texts) != len(images):
            raise ValueError(
                f"{self.owner}: a record has the fields {list(record)}, wanted 'content', or 'texts' and 'images' of one length. "
                "Name them: columns={'content': ...}. Conversations: lk.ChatDataset."
            )
        both = [place for place in range(len(texts)) if texts[place] is not None and images[place] is not None]
        if both:
            raise ValueError(f"{self.owner}: place {both[0]} has a text and a picture, wanted one of them and None.")
        parts = zip(texts, images, strict=True)
        return [
            {"type": "image", "image": image} if text is None else text
            for text, image in parts
            if text is not None or image is not None
        ]

    def _ids(self, text: str) -> Int64Array:
        if self._is_theirs():
            return np.array(self.tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int64)
        return np.array(list(self.tokenizer(text)), dtype=np.int64)

    def _is_theirs(self) -> bool:
        return hasattr(self.tokenizer, "get_vocab")

    def fingerprint(self) -> str:
        tokenizer: Any = self.tokenizer
        name = getattr(tokenizer, "__qualname__", type(tokenizer).__qualname__)
        name = tokenizer_digest(tokenizer) if self._is_theirs() else name
        settings = (self.columns.names, self.end, self.settings.max_length, self.settings.too_long)
        return f"tokenizer {name}{self._pictures()}, settings {digest(repr(settings))}"
