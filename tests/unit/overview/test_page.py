"""What `watch` shows: the host as text at three widths, compared with golden files, and the lines of events."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.unit.conftest import Golden, timeless
from vfioctl.host import Host
from vfioctl.overview.model.event import EventSource, HostEvent
from vfioctl.overview.render.page import event_line, overview_page

HOSTS = Path(__file__).resolve().parents[2] / "hosts"


def event(*, subject: str = "0000:02:00.0", detail: str = "", count: int = 1) -> HostEvent:
    return HostEvent(
        at="2026-01-01T00:00:00.000+00:00",
        source=EventSource.KERNEL,
        action="bind",
        subject=subject,
        detail=detail,
        count=count,
    )


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("name", ["busy", "a2", "hgx8", "iommu-off"])
def test_the_page(golden: Golden, name: str, width: int) -> None:
    overview = Host.recorded(str(HOSTS / f"{name}.host")).overview()
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(overview_page(overview, width=width, event=event()))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    text = timeless("\n".join(lines) + "\n").replace(overview.at[11:19], "00:00:00")
    golden(f"watch/{name}-{width}.txt", text)


def test_the_line_of_an_event() -> None:
    assert event_line(event(detail="vfio-pci", count=3)) == "00:00:00 kernel: bind 0000:02:00.0 vfio-pci (3 times)"


def test_an_event_cannot_write_to_the_terminal() -> None:
    assert "\x1b" not in event_line(event(subject="\x1b]0;title\x07", detail="\x1b[2J"))
