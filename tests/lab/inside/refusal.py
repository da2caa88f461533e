"""How the kernel refuses a write, for tests that name the errno."""

import errno
from collections.abc import Callable

import pytest


def refused(write: Callable[[], object]) -> str:
    """The name of the errno that a write fails with; the test fails when it is taken."""
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is what is asked for
        write()
    return errno.errorcode[caught.value.errno or 0]
