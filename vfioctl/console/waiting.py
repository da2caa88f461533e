"""`--wait`: until those who hold a device have let go of it, with a list of them that lives meanwhile. Kills nobody."""

import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from vfioctl.console.failure import printable
from vfioctl.console.output import say
from vfioctl.errors import BadSpec, DeviceInUse

if TYPE_CHECKING:
    from vfioctl.core.change import Plan

_PAUSE = 0.5
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def seconds_in(text: str | None) -> float:
    """`60s`, `5m`, `1h` or plain seconds; 0 for none. Raises BadSpec."""
    if text is None:
        return 0.0
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(s|m|h|)", text, re.ASCII)
    if match is None:
        raise BadSpec(f"not a duration: {text[:40]!r}", hint="write it as 60s, 5m or 1h")
    return float(match[1]) * _UNITS[match[2]]


def planned(make: "Callable[[], Plan]", *, wait: str | None) -> "Plan":
    """`make()`, tried again for as long as somebody holds a device and there is time left. Raises what it raises."""
    until = time.monotonic() + seconds_in(wait)
    told: tuple[str, ...] = ()
    with _Board() as board:
        while True:
            try:
                return make()
            except DeviceInUse as error:
                left = until - time.monotonic()
                holders = error.facts.get("holders")
                if left <= 0 or not isinstance(holders, list) or not holders:
                    raise
            now = tuple(_lines(holders))
            board.show(now, left, changed=now != told)
            told = now
            time.sleep(min(_PAUSE, left))


def _lines(holders: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for holder in holders:
        pid = f"process {holder['pid']}" if holder.get("pid") is not None else str(holder.get("kind", ""))
        parts = (holder.get("user"), holder.get("guest") or holder.get("container") or holder.get("unit"))
        who = ", ".join(str(part) for part in (pid, *parts) if part)
        line = f"{holder['address']} is held by {holder['name']} ({who}): {holder.get('path', '')}".rstrip(": ")
        yield printable(line).replace("\n", " ")  # anybody may call a process what they like


class _Board:
    """The list on stderr: redrawn in place on a terminal, else said again whenever it changes."""

    def __init__(self) -> None:
        self._live: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, lines: tuple[str, ...], left: float, *, changed: bool) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            self._redraw("\n".join([f"Waiting {left:.0f} s more for them to let go (Ctrl-C ends it):", *lines]))
        elif changed:
            for line in lines:
                say(f"waiting for up to {left:.0f} s: {line}")

    def _redraw(self, text: str) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(Text(text), refresh=True)
