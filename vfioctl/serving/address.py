"""Where a service listens, as a text of the configuration. May not do input or output."""

from __future__ import annotations

import re
from typing import Annotated

from vfioctl.core.limits import Checked

_LISTEN = re.compile(r"|(?:[0-9.]{7,15}|\[[0-9a-f:]{2,39}\]|localhost):[0-9]{1,5}", re.ASCII)


def _listen(text: str) -> str:
    if not _LISTEN.fullmatch(text) or (text and int(text.rpartition(":")[2]) > 65535):
        raise ValueError(f'{text[:60]!r} is no address with a port: write it as "127.0.0.1:9820", or "" for none')
    return text


Listen = Annotated[str, Checked(_listen)]
"""HOST:PORT; empty for nowhere."""
