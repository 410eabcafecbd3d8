"""Pictures that are decoded only when a transform asks for a part of them, and at the size that it asks for.

torchvision's transforms need only the size of a picture to draw a crop. Kernels registered for `LazyImage` then decode
at the smallest scale that still has at least the output's resolution.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torchvision import tv_tensors
from torchvision.transforms.v2 import InterpolationMode, functional

from loaderkit.datasets.images.checks import MAX_PIXELS, check_max_pixels, check_size, jpeg_shape
from loaderkit.datasets.images.decode import decode_picture
from loaderkit.datasets.images.exif import jpeg_orientation, upright

_JPEG = b"\xff\xd8\xff"
_SCALES = (8, 4, 2)  # libjpeg-turbo has fast code for these
_SMOOTH = ("bilinear", "bicubic", 2, 3)  # interpolations that blend pixels, by torchvision's and Pillow's values
_TURNED = (5, 6, 7, 8)  # EXIF orientations that swap height and width
# EXIF orientations in which the upright picture's top, or its left, comes from the end of an axis of the file.
_FROM_BELOW, _FROM_RIGHT = (3, 4, 7, 8), (2, 3, 6, 7)
_ASKED_OFTEN = {Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__}  # answered from the header, without decoding


class _Box(NamedTuple):
    top: int
    left: int
    height: int
    width: int


class _Encoded:
    """An encoded picture, with its height and width after EXIF rotation.

    For a JPEG they come from the header; any other picture is decoded at once.
    """

    def __init__(self, data: bytes, max_pixels: int | None, name: str) -> None:
        self.data, self.max_pixels, self.name = data, max_pixels, name
        self.orientation = 1
        if not data.startswith(_JPEG):
            self._whole: Tensor | None = self._decode_whole()
            self.height, self.width = self._whole.shape[1:]
            return
        self._whole = None
        try:
            width, height, self.channels = jpeg_shape(data)
            check_size(width, height, max_pixels)
        except ValueError as error:
            raise ValueError(self._named(f"not a picture that can be decoded: {error}")) from error
        self.orientation = jpeg_orientation(data)
        turned = self.orientation in _TURNED
        self.height, self.width = (width, height) if turned else (height, width)

    def pixels(self, scale: int) -> Tensor:
        """Return the whole picture, uint8 (3, H, W), at about 1/scale of its height and width.

        EXIF orientation is applied. A picture that was decoded as a whole is returned at full size.
        """
        if self._whole is not None:
            return self._whole
        found = self._decode_scaled(scale) if self.channels in (1, 3) else None
        if found is None:  # four channels or damaged: another decoder may read it, or says what is wrong
            self._whole = self._decode_whole()
            if self._whole.shape[1:] != (self.height, self.width):
                raise ValueError(
                    self._named(
                        f"it decodes to {tuple(self._whole.shape[1:])}, its header says {self.height, self.width}"
                    )
                )
            return self._whole
        return upright(found, self.orientation)

    def _decode_scaled(self, scale: int) -> Tensor | None:
        turned = self.orientation in _TURNED
        height, width = (self.width, self.height) if turned else (self.height, self.width)
        least = (-(-height // scale), -(-width // scale)) if scale > 1 else (0, 0)
        try:
            found = simplejpeg().decode_jpeg(self.data, "RGB", min_height=least[0], min_width=least[1])
        except ValueError:
            return None
        return torch.from_numpy(found).permute(2, 0, 1)

    def _decode_whole(self) -> Tensor:
        try:
            return decode_picture(self.data, max_pixels=self.max_pixels)
        except ValueError as error:
            raise ValueError(self._named(str(error))) from error

    def _named(self, text: str) -> str:
        return f"{self.name}: {text}" if self.name else text


class LazyImage(tv_tensors.Image):  # type: ignore[misc]  # torchvision has no types
    """An encoded picture, of which torchvision's v2 decode only what they need.

    It is a torchvision image (3, H, W), uint8, whose size comes from the file's header. `v2.RandomResizedCrop`,
    `v2.Resize`, `v2.RandomCrop` and `v2.CenterCrop` choose and crop a part without decoding. A part that is then
    resized is decoded at the smallest of the scales 1, 1/2, 1/4 and 1/8 that has at least the output's resolution, and
    resized with antialiasing. Any other operation on a LazyImage decodes it at full resolution first. The few functions
    of torch that read a tensor's memory directly, such as `torch.tensor`, fail or find no data: call `decode()` first.

    A crop is drawn from the same random numbers as for a decoded picture, and its pixels differ only if it was decoded
    at a scale below 1. simplejpeg decodes JPEG. Other formats are decoded when the LazyImage is made.

    Args:
        data: The content of a file.
        max_pixels: Most pixels (width times height) of the picture; None for no limit.
        name: A name of the picture for errors, such as its path.

    Raises:
        ImportError: If simplejpeg or torchvision is missing.
        ValueError: If the header cannot be read, or the picture is too large. Damaged pixels raise a ValueError when
            they are decoded.

    Examples:
        >>> from PIL import Image
        >>> from torchvision.transforms import v2
        >>> Image.new("RGB", (2000, 1500)).save("large.jpg")
        >>> picture = lk.LazyImage(Path("large.jpg").read_bytes())
        >>> picture.shape
        torch.Size([3, 1500, 2000])
        >>> v2.RandomResizedCrop(224)(picture).shape
        torch.Size([3, 224, 224])
    """

    _encoded: _Encoded
    _box: _Box
    _pixels: Tensor | None  # pixels of the box, once they were decoded

    def __new__(cls, data: bytes, *, max_pixels: int | None = MAX_PIXELS, name: str = "") -> Self:
        """Read the header of a JPEG; decode a picture of another format."""
        check_max_pixels("LazyImage", max_pixels)
        simplejpeg()
        encoded = _Encoded(bytes(data), max_pixels, name)
        return cls._of(encoded, _Box(0, 0, encoded.height, encoded.width))

    def __init__(self, data: bytes, *, max_pixels: int | None = MAX_PIXELS, name: str = "") -> None:
        """Do nothing: `__new__` has made it. Tools read the signature here."""

    @classmethod
    def _of(cls, encoded: _Encoded, box: _Box) -> Self:
        # On the meta device there is no data: code that bypasses `__torch_function__` fails and reads no wrong pixels.
        empty = torch.empty(3, box.height, box.width, dtype=torch.uint8, device="meta")
        made = empty.as_subclass(cls)
        made._encoded, made._box, made._pixels = encoded, box, None
        return made

    @classmethod
    def wrap(cls, tensor: Tensor, like: object, **kwargs: object) -> object:  # noqa: ARG003 - torchvision's signature
        """Return the result of a transform of a LazyImage as a plain torchvision image."""
        return tensor.as_subclass(tv_tensors.Image)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: tuple[type[Tensor], ...],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Call a function of torch with the decoded pixels in place of each LazyImage."""
        if func in _ASKED_OFTEN:
            return super().__torch_function__(func, types, args, kwargs)
        args, kwargs = tree_map(_decoded, (tuple(args), dict(kwargs or {})))
        return func(*args, **kwargs)

    @property
    def device(self, *args: object, **kwargs: object) -> torch.device:
        """The device of the decoded pixels: the CPU."""
        return torch.device("cpu")

    def as_subclass(self, cls: Any) -> object:
        """Return the decoded pixels as another class of tensor; torch does not call `__torch_function__` here."""
        return self.decode().as_subclass(cls)

    def decode(self) -> Tensor:
        """Return the pixels (3, H, W) as a plain tensor, at full resolution."""
        if self._pixels is None:
            self._pixels = self._cut(1)
        return self._pixels

    def _cropped(self, top: int, left: int, height: int, width: int) -> "LazyImage | None":
        """Return a part of the picture without decoding.

        Return None if it is not all inside the picture, or the pixels are decoded already.
        """
        box = self._box
        inside = min(top, left) >= 0 and 0 < height <= box.height - top and 0 < width <= box.width - left
        if not inside or self._pixels is not None:
            return None
        return self._of(self._encoded, _Box(box.top + top, box.left + left, height, width))

    def _cut(self, scale: int) -> Tensor:
        """Return the pixels of the box, uint8 (3, h, w), at 1/scale. Its edges are rounded to whole pixels."""
        whole, box, encoded = self._encoded.pixels(scale), self._box, self._encoded
        if whole.shape[1:] == (encoded.height, encoded.width):
            scale = 1

        def side(begin: int, size: int, of: int, scaled: int, turned: bool) -> slice:
            # The decoder scales from the file's first pixel, so the last scaled pixel covers fewer pixels.
            shift = scaled - of / scale if turned else 0
            start = round(begin / scale + shift)
            return slice(start, max(round((begin + size) / scale + shift), start + 1))

        down = side(box.top, box.height, encoded.height, whole.shape[1], encoded.orientation in _FROM_BELOW)
        across = side(box.left, box.width, encoded.width, whole.shape[2], encoded.orientation in _FROM_RIGHT)
        return whole[:, down, across]

    def _resized(self, height: int, width: int, interpolation: object) -> Tensor:
        box = self._box
        fitting = (scale for scale in _SCALES if box.height >= height * scale and box.width >= width * scale)
        pixels = self._cut(next(fitting, 1)) if self._pixels is None else self._pixels
        resized: Tensor = functional.resize(pixels, [height, width], interpolation, antialias=True)
        return resized

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        if self._pixels is not None:  # the pixels may have been changed in place
            return tv_tensors.Image, (self._pixels,)
        encoded = self._encoded
        return _unpickled, (encoded.data, encoded.max_pixels, encoded.name, tuple(self._box))

    def __repr__(self, *, tensor_contents: object = None) -> str:
        size = f"{self._box.height:,} x {self._box.width:,}"
        return f"LazyImage({size} of {self._encoded.height:,} x {self._encoded.width:,}, {len(self._encoded.data):,} bytes)"


def _unpickled(data: bytes, max_pixels: int | None, name: str, box: tuple[int, int, int, int]) -> LazyImage:
    whole = LazyImage(data, max_pixels=max_pixels, name=name)
    return LazyImage._of(whole._encoded, _Box(*box))


def _decoded(value: object) -> object:
    return value.decode() if isinstance(value, LazyImage) else value


def simplejpeg() -> Any:
    """Return the module simplejpeg, or raise an ImportError that says how to install it."""
    try:
        import simplejpeg as decoder
    except ImportError as error:
        raise ImportError(
            "pictures that are decoded by region need simplejpeg: pip install '.[photographs]' in a checkout of loaderkit."
        ) from error
    return decoder


# Kernels: the functions that torchvision's transforms call for a LazyImage.


def _crop(picture: LazyImage, top: int, left: int, height: int, width: int) -> object:
    part = picture._cropped(top, left, height, width)
    return functional.crop(_as_image(picture), top, left, height, width) if part is None else part


def _center_crop(picture: LazyImage, output_size: object) -> object:
    height, width = _two(output_size)
    box = picture._box
    # Rounded as torchvision does.
    part = picture._cropped(round((box.height - height) / 2.0), round((box.width - width) / 2.0), height, width)
    return functional.center_crop(_as_image(picture), output_size) if part is None else part


def _resize(
    picture: LazyImage,
    size: Any,
    interpolation: object = InterpolationMode.BILINEAR,
    max_size: int | None = None,
    antialias: bool | None = True,
) -> object:
    if (
        getattr(interpolation, "value", interpolation) not in _SMOOTH
        or not antialias
        or max_size is not None
        or size is None
    ):
        return functional.resize(_as_image(picture), size, interpolation, max_size, antialias)
    numbers = [size] if isinstance(size, int) else list(size)
    if len(numbers) == 1:  # the shorter edge
        height, width = picture._box[2:]
        short, long = sorted((height, width))
        other = int(numbers[0] * long / short)
        numbers = [numbers[0], other] if height <= width else [other, numbers[0]]
    return picture._resized(numbers[0], numbers[1], interpolation).as_subclass(tv_tensors.Image)


def _resized_crop(
    picture: LazyImage,
    top: int,
    left: int,
    height: int,
    width: int,
    size: object,
    interpolation: object = InterpolationMode.BILINEAR,
    antialias: bool | None = True,
) -> object:
    return functional.resize(_crop(picture, top, left, height, width), size, interpolation, antialias=antialias)


def _as_image(picture: LazyImage) -> tv_tensors.Image:
    return picture.decode().as_subclass(tv_tensors.Image)


def _two(size: Any) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    return (size[0], size[0]) if len(size) == 1 else (size[0], size[1])


def _of_pixels(function: Callable[..., object]) -> Callable[..., object]:
    """Return a kernel that decodes the picture first."""

    def kernel(picture: LazyImage, *args: object, **kwargs: object) -> object:
        return function(_as_image(picture), *args, **kwargs)

    return kernel


_KERNELS: dict[object, Callable[..., object]] = {
    functional.crop: _crop,
    functional.center_crop: _center_crop,
    functional.resize: _resize,
    functional.resized_crop: _resized_crop,
}
_CALLED = {  # functions that are called with a picture; some have two names
    function
    for name, function in inspect.getmembers(functional, inspect.isfunction)
    if next(iter(inspect.signature(function).parameters), "") == "inpt" and not name.startswith("get_")
}
for _function in _CALLED:  # without a kernel, torchvision before 0.27 gives the result the class LazyImage
    functional.register_kernel(_function, LazyImage)(_KERNELS.get(_function) or _of_pixels(_function))
