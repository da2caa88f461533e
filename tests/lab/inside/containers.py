"""Containers from a local root file system in the lab: busybox, run by Debian's own runc, crun, podman and containerd.

No image, no network, no registry. What each runtime keeps is in a folder of the test's own.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lab.inside.in_use import within_seconds

SECONDS = 180.0
"""Programs in Go start slowly in an emulated machine."""
OPENED, MISSING, REFUSED = "opened", "no such file", "Operation not permitted"


def root_file_system(place: Path) -> Path:
    """A root file system with busybox as its only program."""
    for name in ("bin", "dev", "proc", "sys", "tmp", "etc", "run", "var"):
        (place / name).mkdir(parents=True, exist_ok=True)
    busybox = shutil.which("busybox")
    assert busybox
    shutil.copy(busybox, place / "bin/busybox")
    for name in ("sh", "mknod", "test", "ls", "sleep", "true"):
        (place / "bin" / name).symlink_to("busybox")
    return place


def opens(*nodes: str) -> str:
    """A script that opens each node for reading and writing, and says which it did. It creates none."""
    return "".join(
        f"(test -e {node} || {{ echo {MISSING}; exit; }}; exec 3<>{node} && echo {OPENED}); " for node in nodes
    )


def makes_its_own(node: str) -> str:
    """A script that creates a node with the numbers of another, as root in a container may try, and opens it."""
    status = os.stat(node)
    numbers = f"{os.major(status.st_rdev)} {os.minor(status.st_rdev)}"
    return f"(mknod /dev/own c {numbers} && exec 3<>/dev/own && echo {OPENED}); "


def ran(*command: str | Path) -> tuple[int, str]:
    """Runs a command to its end; its exit code, and what it said."""
    done = subprocess.run(
        [*map(str, command)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    return done.returncode, f"{done.stdout}{done.stderr}"


def bundle(place: Path, runtime: str, script: str) -> Path:
    """A bundle as the runtime itself makes one, with a script of ours, which may make device nodes."""
    root_file_system(place / "rootfs")
    code, said = ran("sh", "-c", f"cd {place} && {runtime} spec")
    assert code == 0, said

    def edit(config: Any) -> None:
        config["process"].update(terminal=False, args=["/bin/sh", "-c", script])
        for names in config["process"]["capabilities"].values():
            names.append("CAP_MKNOD")

    change(place, edit)
    return place


def change(place: Path, edit: Any) -> None:
    """Edits the config.json of a bundle by hand."""
    file = place / "config.json"
    config = json.loads(file.read_text())
    edit(config)
    file.write_text(json.dumps(config))


def run_bundle(runtime: str, place: Path, name: str) -> tuple[int, str]:
    """Runs a bundle's container to its end."""
    state = place.parent / f"{runtime}-state"
    return ran(runtime, "--root", state, "run", "--bundle", place, name)


@contextmanager
def running(runtime: str, place: Path, name: str) -> Iterator[str]:
    """Runs a bundle's container until the block ends; gives the first line that it says."""
    own = [runtime, "--root", str(place.parent / f"{runtime}-state")]
    command = [*own, "run", "--bundle", str(place), name]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline()
        finally:
            ran(*own, "kill", name, "KILL")
            process.wait(SECONDS)


def run_podman(rootfs: Path, script: str, *options: str, hooks: Path | None = None) -> tuple[int, str]:
    """Runs a script in a container of podman, which may make device nodes. `hooks`: a folder with files of hooks."""
    with tempfile.TemporaryDirectory(dir="/run") as short:  # podman takes at most 50 characters
        own = ["--root", f"{short}/storage", "--runroot", f"{short}/run", "--tmpdir", f"{short}/tmp"]
        own += ["--hooks-dir", str(hooks)] if hooks else []
        return _run_podman(own, rootfs, script, *options)


def _run_podman(own: list[str], rootfs: Path, script: str, *options: str) -> tuple[int, str]:
    how = ["--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none", "--runtime=crun"]
    more = ["--rm", "--network=none", "--security-opt=seccomp=unconfined", "--log-driver=none", "--cap-add=MKNOD"]
    return ran("podman", *own, *how, "run", *more, *options, "--rootfs", rootfs, "/bin/sh", "-c", script)


@contextmanager
def containerd(place: Path) -> Iterator[Path]:
    """Debian's containerd, started by hand; its address. It has ended with the block, and what it started too."""
    place.mkdir(parents=True, exist_ok=True)
    address, settings = place / "containerd.sock", place / "config.toml"
    settings.write_text('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
    command = ["containerd", "--config", settings, "--address", address, "--root", place / "root"]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen([*map(str, command), "--state", str(place / "state")], stdout=log, stderr=log)
        try:
            within_seconds(SECONDS, lambda: address.exists() and ran("ctr", "-a", address, "version")[0] == 0)
            yield address
        finally:
            process.terminate()
            process.wait(SECONDS)
