"""Boots the lab, a real kernel in an emulated machine, and runs pytest in it: `tests/lab/boot.py [-- PYTEST ARGS]`.

Exit status: pytest's own; 3 when the lab cannot run here; 124 when a test took too long; 125 when the machine broke.
Touches nothing outside the cache folder `.lab/` and the results folder; the machine sees a copy-on-write view.
"""

import argparse
import fcntl
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# of a script, Python puts only the folder there
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab.outside import (
    disks,
    kubelet,
    machine,
    modules,
    progress,
    requirements,
    second_level,
    topology,
    vmlinux,
)
from tests.lab.outside.say import say

REPO = Path(__file__).resolve().parents[2]
CACHE = REPO / ".lab"
# what the simulated kernel promises, the real one must keep
TESTS = ("tests/lab/inside", "tests/contract")
# in a machine of their own, with a disk that has the kubelet and what it runs
WITH_KUBELET = "tests/lab/kubelet"
# of another topology than the tests', only this is of interest
CAPTURE = "tests/lab/inside/capture.py"
START = Path(__file__).with_name("outside") / "start.sh"
CANNOT_RUN = 3
# the first writes into a folder that is thrown away, the second takes five emulated seconds to import
FASTER = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
PROGRESS = ("-p", "tests.lab.inside.progress", "--durations=20")
# QEMU 7.2 sometimes stops a processor for ever, or resets it, when that runs a guest of its own (see l2.py); and it has
# failed an assertion. A later machine runs only what no earlier one passed.
ATTEMPTS = 3
# seconds that booting or one test may take; the slowest takes one minute on an idle machine, and several on a busy one
LIMIT = 900


def main(arguments: list[str]) -> int:
    """Runs the lab once; the result is the exit status."""
    options = _parsed(arguments)
    # an ended run must end its machine too, however often it is told
    signal.signal(signal.SIGTERM, _end)
    try:
        found = requirements.look()
        results = options.output.resolve()
        with _alone(results):
            return _run(found, options.topology, results, options.limit, options.pytest)
    except requirements.LabError as error:
        say(f"{error}")
        return CANNOT_RUN


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=CACHE / "results", help="folder for the results; emptied")
    parser.add_argument("--topology", choices=topology.TOPOLOGIES, default="lab", help="which machine (lab)")
    parser.add_argument(
        "--limit", type=int, default=LIMIT, metavar="SECONDS", help=f"the longest that one test may take ({LIMIT})"
    )
    parser.add_argument(
        "pytest", nargs="*", metavar="PYTEST ARG", help=f"after --; without a path, {' and '.join(TESTS)}"
    )
    return parser.parse_args(arguments)


def _run(found: requirements.Found, name: str, results: Path, limit: int, pytest: list[str]) -> int:
    began = time.monotonic()
    with disks.making(CACHE):
        kernel = vmlinux.unpacked(found.kernel, CACHE)
        environment, made = disks.environment_disk(CACHE, kernel)
        extras = [second_level.initramfs(CACHE, found), *modules.built(CACHE, found)]
        images = {
            "environment": environment,
            "sources": disks.sources_disk(CACHE / "sources.squashfs", REPO, extras),
        }
        if any(argument.startswith(WITH_KUBELET) for argument in pytest):
            images["kubelet"] = disks.programs_disk(CACHE, "kubelet", kubelet.programs())
    say(f"disks in {time.monotonic() - began:.1f} s ({'made' if made else 'environment kept'})")
    tests = pytest or ([CAPTURE] if name != "lab" else [])
    for attempts_left in reversed(range(ATTEMPTS)):
        _start_script(results, kernel, limit, tests, name)
        booted = time.time()
        with disks.busy_disk(CACHE) as busy:
            devices = topology.qemu_arguments(name, images, busy)
            status = machine.run(found, devices, results, limit)
        _report(results, booted, status)
        if status != machine.STALLED:
            break
        passed = progress.files_passed(results)
        say("the emulated processor stalled or was reset")
        if passed is None or not attempts_left:
            break
        say(f"{sum(passed.values())} passed before it, in {len(passed)} files; the other files run in a new machine")
        tests = [*tests, *(f"--deselect={file}::" for file in passed)]
    return status


def _start_script(results: Path, kernel: Path, limit: int, pytest: list[str], topology_name: str) -> None:
    if results.is_dir() and any(results.iterdir()) and not (results / "start.sh").exists():
        raise requirements.LabError(f"{results} holds something else; name a folder of the lab's own")
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    places = [str(place) for place in disks.environment_places()]
    lines = [
        f"repo={shlex.quote(str(REPO))}",
        f"places=({shlex.join(places)})",
        f"pytest=({shlex.join(_pytest_command(pytest))})",
        f"limit={limit}",
        f"export VFIOCTL_LAB_KERNEL={shlex.quote(f'/run/lab/environment{kernel}')}",
        f"export VFIOCTL_LAB_TOPOLOGY={shlex.quote(topology_name)}",
        f"export VFIOCTL_LAB_RESULTS={machine.RESULTS_IN_LAB} COVERAGE_FILE={machine.RESULTS_IN_LAB}/.coverage",
    ]
    (results / "start.sh").write_text("\n".join([*lines, START.read_text()]))


def _pytest_command(arguments: list[str]) -> list[str]:
    command = [sys.executable, "-m", "pytest", f"--junitxml={machine.RESULTS_IN_LAB}/junit.xml", *FASTER, *PROGRESS]
    has_path = any((REPO / argument.split("::")[0]).exists() for argument in arguments)
    return [*command, *arguments, *([] if has_path else TESTS)]


def _report(results: Path, booted: float, status: int) -> None:
    marks = (results / "phases.txt").read_text().splitlines() if (results / "phases.txt").exists() else []
    times = [(name, float(at) - booted) for at, name in (mark.split(" ", 1) for mark in marks)]
    times.append(("machine gone", time.time() - booted))
    say(", ".join(f"{name} at {at:.1f} s" for name, at in times))
    if status in (machine.NO_PROGRESS, machine.NO_VERDICT, machine.STALLED):
        say(f"no verdict{progress.running(results)}; the end of {results}/console.log:")
        for line in (results / "console.log").read_text(errors="replace").splitlines()[-10:]:
            say(line)


@contextmanager
def _alone(results: Path) -> Iterator[None]:
    """Let no other run of this checkout have these results; others may run beside it."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"lock-{results.name}").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run of this checkout writes there; waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
