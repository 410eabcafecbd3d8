"""From the host to the device, ahead of use."""
