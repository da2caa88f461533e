"""Where a service listens, as a text of the configuration. May not do input or output."""

from __future__ import annotations

import re
from typing import Annotated

from vfioctl.core.limits import Checked

_LISTEN = re.compile(r"(?:[0-9.]{7,15}|\[[0-9a-f:]{2,39}\]|localhost):[0-9]{1,5}", re.ASCII)


def is_address(text: str) -> bool:
    """Return whether a text is HOST:PORT."""
    return bool(_LISTEN.fullmatch(text)) and int(text.rpartition(":")[2]) <= 65535


def split(address: str) -> tuple[str, int]:
    """Return the host and the port of an address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _listen(text: str) -> str:
    if text and not is_address(text):
        raise ValueError(f'{text[:60]!r} is no address with a port: write it as "127.0.0.1:9820", or "" for none')
    return text


Listen = Annotated[str, Checked(_listen)]
"""HOST:PORT; empty for nowhere."""
