"""Reads files of a guest through its agent, for `vfioctl.kernel.libvirt`. The only module that imports libvirt_qemu.

The agent is a program in the guest: its answers may be anything, or never come.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from typing import Any

from vfioctl.untrusted_text import parse_json

_ANSWER_SECONDS, _ALL_SECONDS = 3, 15.0
"""Timeouts for one answer, and for all."""
_MOST_FILES, _LONGEST = 1000, 256
_INTERNAL_ERROR = 1
"""VIR_ERR_INTERNAL_ERROR: what libvirt makes of an agent's refusal, such as for a file that is not there."""


def read_files(domain: Any, paths: Sequence[str], refusal: type[Exception]) -> dict[str, str]:
    """Return the beginnings of files, by path, without those that the agent does not read.

    Raises `refusal`, which is libvirt's error, for an agent that does not answer.
    """
    until, files = time.monotonic() + _ALL_SECONDS, {}
    for path in paths[:_MOST_FILES]:
        if time.monotonic() > until:
            break
        try:
            files[path] = _file(domain, path)
        except refusal as error:
            if getattr(error, "get_error_code", lambda: None)() != _INTERNAL_ERROR:
                raise
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):  # that is no answer of an agent
            continue
    return files


def _file(domain: Any, path: str) -> str:
    handle = int(_asked(domain, "guest-file-open", {"path": path, "mode": "r"}))
    try:
        content = str(_asked(domain, "guest-file-read", {"handle": handle, "count": _LONGEST})["buf-b64"])
        return base64.b64decode(content[: 2 * _LONGEST]).decode("utf-8", "replace")[:_LONGEST]
    finally:
        _asked(domain, "guest-file-close", {"handle": handle})


def _asked(domain: Any, command: str, arguments: dict[str, Any]) -> Any:
    import libvirt_qemu

    said = json.dumps({"execute": command, "arguments": arguments})
    return parse_json(libvirt_qemu.qemuAgentCommand(domain, said, _ANSWER_SECONDS, 0))["return"]
