"""Pictures: folders of images, decoding and encoding, torchvision's datasets."""
