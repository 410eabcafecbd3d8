"""Rows whose fields name pictures, audio or video: each file is decoded in its place."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from loaderkit.datasets.base import MapStyle
from loaderkit.datasets.images.checks import MAX_PIXELS
from loaderkit.datasets.images.decoders import PictureDecoder, decoder_fingerprint
from loaderkit.datasets.media.audio_dataset import AudioDataset
from loaderkit.datasets.media.clips import ClipDataset
from loaderkit.datasets.media.video_dataset import VideoDataset
from loaderkit.datasets.rows.encoder import records_of
from loaderkit.datasets.rows.files import FileReader
from loaderkit.datasets.rows.named_rows import NamedRows, naming
from loaderkit.datasets.rows.parts import is_list, is_text, reference
from loaderkit.files.storage import Storage
from loaderkit.seeding.draws import Draws, draws, thread_safe

Kind = Literal["image", "audio", "video", "parts"]


class MediaDataset(NamedRows[dict[str, Any]]):
    r"""Rows whose pictures, audio and video, named by fields, are decoded.

    The rows come from any dataset.

    A field holds a file or a list of files, each as a path, a URL, a data URL, the file's bytes, or a dict of Hugging
    Face's layout, {"bytes": ..., "path": ...}. None stays None. Other fields stay as they are. The kind of a field
    decides what it becomes:

    - "image": a tensor (3, H, W) uint8, as `ImageFolder` decodes it.
    - "audio": a dict with `"waveform"` and `"sample_rate"`, as a sample of `AudioDataset`.
    - "video": a dict with `"frames"`, `"times"` and `"length"`, as a sample of `VideoDataset`.
    - "parts": content of a chat, or a list of messages with such content. In its parts `{"type": "image", "image": "a.png"}`,
      `{"type": "image_url", "image_url": {"url": "a.png"}}`, and the same for audio and video, the decoded file takes the file's place.

    Relative paths are relative to `root`. A path that leaves it ("../a.png", "/a.png") raises a ValueError, because
    rows often come from others. Links in the root are followed. URLs of web servers and object stores are read through
    `storage`, with its retries and its cache.

    A random clip is drawn under the sample's own seed. An error names the row, the field and the file; `BadSamples` may
    skip the row.

    Args:
        source: Rows by index: any dataset of dicts, a list, or a `datasets.Dataset`.
        fields: The kind of each field that names files.
        root: The folder or URL of the files: "pictures", "s3://bucket/pictures".
        storage: How to reach URLs, and where to keep copies.
        outside: Whether rows may name local files outside the root.
        max_pixels: The largest picture to decode, width times height; None for any.
        decoder: What decodes JPEG pictures, as for `ImageFolder`.
        audio: Settings of `AudioDataset`: {"clip_s": 2, "sample_rate": 16000}. A row has one clip, so `clips` is not "all".
        video: Settings of `VideoDataset`: {"frames": 8, "fps": 2}.

    Raises:
        TypeError: If the source, or a setting of audio or video, is of another type.
        ValueError: If a kind or a setting is wrong. On reading: if a file cannot be decoded, is too large or outside of the root.
        ImportError: If PyAV is missing for audio or video.

    Examples:
        >>> from PIL import Image
        >>> Image.new("RGB", (6, 8)).save("a.png")
        >>> _ = Path("rows.jsonl").write_text('{"image": "a.png", "text": "black"}\n')
        >>> dataset = lk.MediaDataset(lk.JsonlDataset("rows.jsonl"), {"image": "image"}, root=".")
        >>> dataset[0]["image"].shape, dataset[0]["text"]
        (torch.Size([3, 8, 6]), 'black')
    """

    def __init__(
        self,
        source: MapStyle,
        fields: Mapping[str, Kind],
        *,
        root: str | os.PathLike[str] = ".",
        storage: Storage | None = None,
        outside: bool = False,
        max_pixels: int | None = MAX_PIXELS,
        decoder: PictureDecoder | None = None,
        audio: Mapping[str, object] | None = None,
        video: Mapping[str, object] | None = None,
    ) -> None:
        name = type(self).__name__
        wrong = [kind for kind in fields.values() if kind not in get_args(Kind)]
        if wrong or not fields:
            raise ValueError(f"{name}: fields is {dict(fields)}, wanted fields and for each one of {get_args(Kind)}.")
        clips: dict[str, ClipDataset] = {}
        for kind, settings, make in (("audio", audio, AudioDataset), ("video", video, VideoDataset)):
            if settings is not None or kind in fields.values():
                clips[kind] = _clip_reader(f"{name}: {kind}", make, settings or {}, storage)
        files = FileReader(
            owner=name, root=root, storage=storage, outside=outside, max_pixels=max_pixels, decoder=decoder
        )
        super().__init__(records_of(source, name), _Loaded(dict(fields), files, clips))

    def fingerprint(self) -> str:
        """Return the rows' fingerprint, with the picture decoder if its pixels may differ from the default's."""
        loaded: Any = self.transform
        return super().fingerprint() + decoder_fingerprint(loaded.files.decoder)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A function from a row to the row with its files decoded."""

    fields: Mapping[str, Kind]
    files: FileReader
    clips: Mapping[str, ClipDataset]  # decode audio and video, by kind

    @property
    def draws_nothing(self) -> bool:
        return all(draws(reader) is Draws.NOTHING for reader in self.clips.values())

    @property
    def draws_only_sample_rng(self) -> bool:
        return True

    @property
    def thread_safe(self) -> bool:
        return all(map(thread_safe, self.clips.values()))

    def __call__(self, row: Any) -> dict[str, object]:
        missing = [name for name in self.fields if not isinstance(row, Mapping) or name not in row]
        if missing:
            found = f"the fields {list(row)}" if isinstance(row, Mapping) else f"the type {type(row).__name__}"
            raise ValueError(f"{self.files.owner}: a row has {found}, wanted a dict with {missing}")
        return {name: self._field(value, name) if name in self.fields else value for name, value in row.items()}

    def _field(self, value: object, name: str) -> Any:
        kind = self.fields[name]
        if kind == "parts":
            return self._parts(value, f"field {name!r}")
        if is_list(value):
            return [self._one(file, kind, f"field {name!r}[{number}]") for number, file in enumerate(value)]
        return self._one(value, kind, f"field {name!r}")

    def _one(self, value: object, kind: str, place: str) -> object:
        if value is None:
            return None
        with naming(place):
            if kind == "image":
                return self.files.picture(value)
            if kind not in self.clips:
                raise ValueError(f"a part is {kind}, wanted its settings: {self.files.owner}(..., {kind}={{...}})")
            found = self.files.find(value)
            with naming("the file" if isinstance(found, bytes) else found):
                return self.clips[kind].decode(found)

    def _parts(self, value: object, place: str) -> Any:
        """Return the content of a message, or a list of messages, with the files of its parts decoded."""
        if not is_list(value):
            return value
        made = []
        for number, part in enumerate(value):
            here = f"{place}[{number}]"
            if isinstance(part, Mapping) and "content" in part:
                made.append({**part, "content": self._parts(part["content"], f"{here}['content']")})
            elif is_text(part, here):
                made.append(part)
            else:
                kind, file = reference(part, here, ("image", "audio", "video"))
                rest = {key: given for key, given in part.items() if key != f"{kind}_url"}
                made.append({**rest, "type": kind, kind: self._one(file, kind, here)})
        return made


def _clip_reader(
    owner: str, make: Callable[..., ClipDataset], settings: Mapping[str, object], storage: Storage | None
) -> ClipDataset:
    """Return a dataset without files that decodes clips with these settings."""
    known = {"clip_s", "clips", "sample_rate", "mono", "max_s", "decoder", "frames", "fps", "stride", "max_pixels"}
    if settings.get("clips") == "all" or not settings.keys() <= known:
        raise ValueError(f"{owner} is {dict(settings)}, wanted settings of a clip, and no clips='all': a row has one.")
    try:
        made: ClipDataset = make((), storage=storage, **settings)
    except TypeError as error:
        raise TypeError(f"{owner} is {dict(settings)}: {error}") from error
    return made
