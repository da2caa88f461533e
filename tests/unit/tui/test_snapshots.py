"""The screens as text, at three sizes, and as pictures: compared with golden files (`pytest --renew-golden`)."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, MONOKAI, TerminalTheme

from docs.pictures import FOLDER, svg
from tests.unit.conftest import Golden
from tests.unit.tui.conftest import LARGE, MIDDLE, SMALL, TERMINAL, Drive, Driver, timeless
from vfioctl.tui.app import Tui

SCREENS: dict[str, tuple[str, list[str | tuple[str, str]], list[str]]] = {
    "devices": ("hgx8", [], ["0000:df:00.0"]),
    "holders": ("busy", ["down", "down", "space", "down"], ["1 selected", "guest win"]),
    "vgpus": ("a2", ["3", "down"], ["A2-4C", "nvidia-742"]),
    "vfs": ("l40s", ["down", "right"], ["32 VFs", "0000:41:00.4"]),
    "marked": ("iommu-off", [], ["IOMMU"]),
    "menu": ("hgx8", ["enter"], ["WHY NOT"]),
    "plan": ("hgx8", ["b"], ["y: apply this plan"]),
    "refused": ("busy", ["b"], ["a: plan again"]),
    "done": ("hgx8", ["b", ("y: apply this plan", "y")], ["[>Close<]"]),
    "help": ("hgx8", ["question_mark"], ["Everywhere"]),
    "doctor": ("shared-group", ["7"], ["group-sharing"]),
}
"""Host, keys, and words to wait for: before a key, and at the end."""
PAGES = ("menu", "refused", "done", "help", "marked")
"""They look the same on the largest terminal."""
CASES = [(name, size) for name in SCREENS for size in (SMALL, MIDDLE, LARGE) if size != LARGE or name not in PAGES]


@pytest.mark.parametrize(
    ("name", "size"), CASES, ids=lambda part: part if isinstance(part, str) else "x".join(map(str, part))
)
def test_the_screens_as_text(drive: Drive, golden: Golden, name: str, size: tuple[int, int]) -> None:
    host, keys, words = SCREENS[name]
    shown = []

    async def work(driver: Driver) -> None:
        await settled(driver)
        for key in keys:
            if isinstance(key, tuple):
                await driver.shows(key[0])
            await driver.press(key if isinstance(key, str) else key[1])
        await driver.shows(*words)
        if name == "done":
            await driver.until(lambda: "Done." in driver.text)
        await settled(driver)
        shown.append(timeless(driver.text))

    drive(work, host, size=size)
    golden(f"tui/{name}-{size[0]}x{size[1]}.txt", shown[0])


async def settled(driver: Driver) -> None:
    """Wait until the whole host was read, and what was drawn stays the same."""
    await driver.until(lambda: driver.app.feed.reading_since is None)
    before = ""
    for _ in range(100):
        await driver.pilot.pause(0.05)
        if (text := driver.text) == before:
            return
        before = text


def test_ascii_marks_where_the_locale_is_not_utf8(drive: Drive, golden: Golden) -> None:
    shown = []

    async def work(driver: Driver) -> None:
        await driver.shows("guest win")
        await settled(driver)
        filters = driver.app.get_line_filters()
        strips = driver.app.screen._compositor.render_strips()
        lines = [strip.apply_filter(filters[-1], driver.app.screen.background_colors[1]) for strip in strips]
        shown.append(timeless("\n".join(line.text.rstrip() for line in lines) + "\n"))

    drive(work, "busy", size=MIDDLE, environment={"LC_ALL": "C", "TERM": "xterm"})
    assert shown[0].isascii()
    golden("tui/ascii-120x30.txt", shown[0])


def picture(app: Tui, theme: TerminalTheme) -> str:
    """Return the screen as SVG, with the sixteen colours of a terminal."""
    width, height = app.size
    console = Console(
        width=width, height=height, file=io.StringIO(), force_terminal=True, color_system="truecolor", record=True
    )
    console.print(app.screen._compositor.render_update(full=True))
    return svg(console, "vfioctl tui", theme)


PICTURES: dict[str, tuple[list[str], list[str]]] = {
    "devices": (["down", "down"], ["guest win"]),
    "menu": (["enter"], ["WHY NOT"]),
}
"""Keys, and words to wait for. The second has the colours of a dialog above those of a table."""
THEMES = {"dark": MONOKAI, "light": DEFAULT_TERMINAL_THEME}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", [SMALL, MIDDLE, LARGE], ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("name", PICTURES)
def test_the_screens_as_pictures(drive: Drive, golden: Golden, name: str, size: tuple[int, int], theme: str) -> None:
    keys, words = PICTURES[name]
    drawn = []

    async def work(driver: Driver) -> None:
        await driver.shows("guest win")
        await driver.press(*keys)
        await driver.shows(*words)
        await settled(driver)
        drawn.append(picture(driver.app, THEMES[theme]))

    drive(work, "busy", size=size)
    golden(f"tui/{name}-{theme}-{size[0]}x{size[1]}.svg", drawn[0])


def test_the_picture_of_the_screens_in_the_documents(drive: Drive, golden: Golden) -> None:
    drawn = []

    async def work(driver: Driver) -> None:
        await driver.press("b")
        await driver.shows("y: apply this plan")
        await driver.press("y")
        await driver.close()
        await driver.shows("vfio-pci  ready")
        await driver.press("down")
        await settled(driver)
        drawn.append(picture(driver.app, MONOKAI))

    drive(work, size=MIDDLE)
    golden(f"{FOLDER}/tui.svg", drawn[0])


def colours(drive: Drive, environment: dict[str, str]) -> set[str]:
    """Return the colours of the segments that are sent to the terminal."""
    found: set[str] = set()

    async def work(driver: Driver) -> None:
        await driver.shows("guest win")
        for line in driver.app.screen._compositor.render_strips():
            strip = line
            for each in driver.app.get_line_filters():
                strip = strip.apply_filter(each, driver.app.screen.background_colors[1])
            for segment in strip:
                if segment.style and (segment.style.color or segment.style.bgcolor):
                    found.add(str(segment.style))

    drive(work, "busy", environment=environment)
    return found


def test_no_color_means_none(drive: Drive) -> None:
    assert colours(drive, TERMINAL)
    assert not colours(drive, {**TERMINAL, "NO_COLOR": "1"})
