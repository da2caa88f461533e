"""What the kernel does with mdevs and VFs, and the stand-ins' own rules: nothing that a change of vfioctl changes.

`make test` does not run these. Run them after a change of the kernel or of a stand-in: `boot.py -- tests/lab/facts`.
"""

from tests.lab.inside.conftest import (
    bind_vfs,
    collect_ignore_glob,
    drivers_put_back,
    hold,
    lab,
    load,
    original_drivers,
    pytest_collection_finish,
    pytest_runtest_setup,
    write_apart,
)

__all__ = [
    "bind_vfs",
    "collect_ignore_glob",
    "drivers_put_back",
    "hold",
    "lab",
    "load",
    "original_drivers",
    "pytest_collection_finish",
    "pytest_runtest_setup",
    "write_apart",
]
