"""Pictures: folders of images, decoding and encoding, torchvision's datasets."""

from loaderkit.datasets.images.decode import decode_picture, decode_pictures, encode_picture, is_picture
from loaderkit.datasets.images.folder import EXTENSIONS, ImageFolder

__all__ = ["EXTENSIONS", "ImageFolder", "decode_picture", "decode_pictures", "encode_picture", "is_picture"]
