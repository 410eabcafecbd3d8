"""The decoders that the tests of audio and video run with."""

import pytest
from media_made import need_decoder


@pytest.fixture(params=["pyav", "torchcodec"])
def decoder(request: pytest.FixtureRequest) -> str:
    need_decoder(request.param)
    return str(request.param)
