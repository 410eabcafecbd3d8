"""Audio and video: files and bytes, decoded by PyAV or torchcodec."""
