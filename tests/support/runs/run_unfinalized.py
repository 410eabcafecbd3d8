"""Runs a script, and ends its process as soon as the functions of `atexit` have run.

A thread of PyTorch's gloo may drop a tensor while Python finalizes, and the process aborts (pytorch/pytorch#190489).
`destroy_process_group` does not end these threads, since the caches of DTensor keep the mesh.
"""

import atexit
import os
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
