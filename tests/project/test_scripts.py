"""What tests compare of a script's output is its own."""

import scripts

TRITON = """Exception ignored in atexit callback <function release at 0x7f>:
Traceback (most recent call last):
  File "/site-packages/triton/knobs.py", line 3, in release
    raise RuntimeError("no driver")
RuntimeError: no driver
"""
OURS = TRITON.replace("triton", "loaderkit")


def test_only_what_triton_says_at_exit_is_left_out() -> None:
    assert scripts.without_triton(f"ready\n{TRITON}0 threads\n") == "ready\n0 threads\n"
    assert scripts.without_triton(f"ready\n{OURS}{TRITON}{TRITON}0 threads\n") == f"ready\n{OURS}0 threads\n"
    assert scripts.without_triton("RuntimeError: triton\n") == "RuntimeError: triton\n"
