"""Pictures: folders of images, decoding, torchvision's datasets."""
