"""`vfioctl tui` in a terminal of its own: how soon it paints, how soon it answers, what it costs. Figures and limits.

    python -m bench.tui [--runs N] [--seconds N] [--json FILE]

Reads synthetic hosts as directories (`--root`), so it needs no root and changes nothing. Exits with 1 when a limit is
not kept. `python -m bench.tui child MODE DIR FILE` is what it starts: the screens of one host, with a storm or none.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import pty
import resource
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from typing import Any

from bench import measure, synthetic
from bench.figures import Figure, keep, show, status

SMALL, LARGE = 256, 10_000
RATE = 50
"""Events a second of a storm."""
_EMPTY = """
from textual.app import App
from textual.widgets import Static
class Empty(App):
    def compose(self):
        yield Static("empty application")
Empty().run()
"""
_COMMAND = "from vfioctl.app import console; console()"
_WAIT = 60.0


class Terminal:
    """A program in a pseudo-terminal of 80 columns."""

    def __init__(self, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
        )
        os.close(theirs)

    def until(self, text: bytes) -> float:
        """Return the seconds until the program has written this text."""
        began, found = time.perf_counter(), b""
        while text not in found:
            if not select.select([self._ours], [], [], _WAIT)[0]:
                sys.exit(f"{text!r} has not appeared; the end: {found[-2000:]!r}")
            found += os.read(self._ours, 65536)
        return time.perf_counter() - began

    def press(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._ours, keys)

    def drain(self, seconds: float) -> None:
        """Read what the program writes for a time, as a terminal does."""
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            if select.select([self._ours], [], [], left)[0]:
                os.read(self._ours, 65536)

    def memory(self) -> float:
        """Return the resident memory in MiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))

    def cpu(self) -> float:
        """Return the seconds of CPU time so far, without children."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def end(self) -> None:
        """End the program."""
        self.process.send_signal(signal.SIGTERM)
        with suppress(OSError):  # EIO: it has closed its end
            while os.read(self._ours, 65536):
                pass
        self.process.wait()
        os.close(self._ours)


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["child"]:
        _child(*arguments[1:])
        return 0
    parser = argparse.ArgumentParser(prog="bench.tui")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=40, help="of a storm, and of doing nothing")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    samples: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="vfioctl-bench-") as folder:
        for size in (SMALL, LARGE):
            synthetic.write(Path(folder, str(size)), size)
        figures = _start(Path(folder, str(SMALL)), options.runs, samples)
        figures += _storm(Path(folder, str(SMALL)), SMALL, options.seconds, samples, blocked=0.05)
        figures += _storm(Path(folder, str(LARGE)), LARGE, options.seconds, samples, blocked=0.15)
        figures += _idle(Path(folder, str(SMALL)), options.seconds, samples)
    show(figures)
    keep(options.json, figures, samples, runs=options.runs)
    return status(figures)


def _start(host: Path, runs: int, samples: dict[str, Any]) -> list[Figure]:
    """First paint against that of an empty application; the data against `inventory --json`."""
    paint, empty, data, inventory = [list[float]() for _ in range(4)]
    for _ in range(runs):
        terminal = Terminal("-c", _EMPTY)
        empty.append(terminal.until(b"empty application"))
        terminal.end()
        terminal = Terminal("-c", _COMMAND, "tui", "--root", str(host))
        paint.append(terminal.until(b"2 Claims"))
        data.append(terminal.until(b"0000:"))
        terminal.end()
        inventory.append(measure.seconds((sys.executable, "-c", _COMMAND, "inventory", "--json", "--root", str(host))))
    samples["start"] = {"first paint": paint, "empty": empty, "data after it": data, "inventory --json": inventory}
    first, bare, after, whole = map(statistics.median, (paint, empty, data, inventory))
    return [
        Figure("first paint / an empty Textual application", first, bare, "s", 2.5),
        Figure("256 functions on screen / inventory --json", after, whole, "s", 1.3),
    ]


def _storm(host: Path, size: int, seconds: int, samples: dict[str, Any], *, blocked: float) -> list[Figure]:
    """Keys are answered, and memory stays, while 50 events arrive every second."""
    with tempfile.NamedTemporaryFile(prefix="vfioctl-bench-") as file:
        terminal = Terminal("-m", "bench.tui", "child", "storm", str(host), file.name)
        terminal.until(b"0000:")
        terminal.drain(5)
        answers, memory = list[float](), list[float]()
        until = time.perf_counter() + seconds
        for key, text in itertools.cycle([(b"2", b"[2 Claims]"), (b"1", b"[1 Devices]")]):
            if time.perf_counter() > until:
                break
            terminal.press(key)
            answers.append(terminal.until(text))
            terminal.drain(0.03)
            memory.append(terminal.memory())
        terminal.end()
        lags = json.loads(Path(file.name).read_text())
    samples[f"storm {size}"] = {"key to screen": answers, "MiB": memory[:: max(1, len(memory) // 100)], "lag": lags}
    p99 = sorted(answers)[int(len(answers) * 0.99)]
    third = max(1, len(memory) // 3)
    figures = [Figure(f"{size} functions, storm: loop blocked / limit", lags["longest"], blocked, "s", 1.0)]
    if size == SMALL:
        figures += [
            Figure("key to screen in a storm, p99 / 100 ms", p99, 0.1, "s", 1.0),
            Figure("memory, last third / first third", max(memory[-third:]), max(memory[:third]), "MiB", 1.03),
        ]
    return figures


def _idle(host: Path, seconds: int, samples: dict[str, Any]) -> list[Figure]:
    with tempfile.NamedTemporaryFile(prefix="vfioctl-bench-") as file:
        terminal = Terminal("-m", "bench.tui", "child", "quiet", str(host), file.name)
        terminal.until(b"0000:")
        terminal.drain(8)
        before, began = terminal.cpu(), time.perf_counter()
        terminal.drain(seconds)
        share = (terminal.cpu() - before) / (time.perf_counter() - began)
        terminal.end()
    samples["idle"] = share
    return [Figure("CPU while nothing happens / 0.3 %", 100 * share, 0.3, "%", 1.0)]


def _child(mode: str, root: str, file: str) -> None:
    """The screens of one host. Writes how long the event loop was blocked to a file in the end."""
    from vfioctl.host import Host
    from vfioctl.overview.model.event import EventSource, HostEvent
    from vfioctl.tui.data.feed import Feed

    host = Host.at(root)
    addresses = [gpu.address for gpu in host.inventory().gpus]

    def storm(*_: object, **__: object) -> Iterator[HostEvent]:
        for number in itertools.count():
            time.sleep(1 / RATE)
            one = addresses[number % len(addresses)]
            at = f"2026-01-01T00:00:{number % 60:02}.000+00:00"
            yield HostEvent(at=at, source=EventSource.KERNEL, action="change", subject=one, addresses=(one,))

    if mode == "storm":
        Host.watch = storm  # type: ignore[method-assign] # events of the bench's own
    feed = Feed(host)
    feed.start()
    longest, beats = 0.0, 0  # not each of them: their memory would be taken for the program's
    from vfioctl.tui.app import Tui
    from vfioctl.tui.run import run

    follow = Tui.follow_signals

    async def beat(app: Tui) -> None:
        nonlocal longest, beats
        await asyncio.sleep(5)  # starting is measured otherwise
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            if app._exit:  # noqa: SLF001 - textual waits for its thread of keys in the end
                return
            longest, beats = max(longest, time.perf_counter() - began - 0.005), beats + 1

    def follow_and_beat(app: Tui) -> None:
        follow(app)
        app.beat = asyncio.get_running_loop().create_task(beat(app))  # type: ignore[attr-defined] # kept alive by it

    if mode == "storm":
        Tui.follow_signals = follow_and_beat  # type: ignore[assignment, method-assign] # the bench's own hook
    with suppress(KeyboardInterrupt):
        run(host, feed)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    Path(file).write_text(json.dumps({"longest": longest, "peak MiB": peak, "beats": beats}))
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
