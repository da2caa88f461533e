"""Debian's kubelet, built once from its source package. `python -m tests.lab.outside.kubelet` builds it if need be.

Debian ships no kubelet, but the source of one. It is kept outside the tree, in $XDG_CACHE_HOME/vfioctl, so that a new
checkout does not build it again. Nothing is installed, and nothing outside that folder is written.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.lab.outside.requirements import LabError
from tests.lab.outside.say import say

VERSION = "1.20.2"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
TREE = "k8s.io/kubernetes"
# relative to GOPATH, since modules are off
VERSION_PACKAGE = f"{TREE}/vendor/k8s.io/component-base/version"
GO = "/usr/lib/go-1.19/bin/go"
# program -> the Debian package that brings it
BUILT_WITH = {
    "/usr/lib/go-1.19/bin/go": "golang-1.19-go",
    "dpkg-source": "dpkg-dev",
}
RUN_WITH = {
    "containerd": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "ctr": "containerd",
    "runc": "runc",
}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BUILD_SECONDS = 3600
DOWNLOAD_SECONDS = 600
FREE_BYTES = 3 << 30


def cache() -> Path:
    """The folder of this version."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "vfioctl", f"kubelet-{VERSION}")


def kubelet() -> Path:
    """The program, built if it is missing; raises LabError. Waits for another process that builds it."""
    program = cache() / "kubelet"
    if program.exists():
        return program
    _found(BUILT_WITH)
    cache().mkdir(parents=True, exist_ok=True)
    with _locked(cache() / "lock"):
        if not program.exists():
            _build(program)
    return program


def programs() -> list[Path]:
    """The kubelet, and the programs that it runs containers with."""
    return [kubelet(), *_found(RUN_WITH)]


def _found(packages: Mapping[str, str]) -> list[Path]:
    places = {program: shutil.which(program, path=PATH) for program in packages}
    if missing := sorted({packages[program] for program, place in places.items() if place is None}):
        raise LabError(f"missing Debian packages: apt-get install {' '.join(missing)}")
    # runc is a link
    return [Path(place).resolve() for place in places.values() if place]


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process builds the kubelet in {file.parent}; waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(program: Path) -> None:
    if shutil.disk_usage(program.parent).free < FREE_BYTES:
        raise LabError(f"building the kubelet needs 3 GiB in {program.parent}; or set XDG_CACHE_HOME")
    began = time.monotonic()
    say(f"kubelet {VERSION} is built once, in {program.parent}: five minutes of processor time")
    for left in program.parent.glob("building-*"):
        # of a build that was killed: its lock is ours
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=program.parent) as name:
        folder = Path(name)
        description = _downloaded(folder)
        say(f"its source is here after {time.monotonic() - began:.0f} s")
        _compile(folder, description)
        (folder / "kubelet").rename(program)
    say(f"kubelet built in {time.monotonic() - began:.0f} s")


def _downloaded(folder: Path) -> Path:
    """Fetch the source package from where this machine's packages come from, with lists of our own."""
    lines = "".join(f"deb-src [signed-by={KEYRING}] {archive} {release} main\n" for archive, release in _archives())
    (folder / "sources.list").write_text(lines)
    for place in ("lists/partial", "archives/partial"):
        (folder / place).mkdir(parents=True)
    own = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache::archives": folder / "archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    apt = ["apt-get", "--quiet=2", *(f"--option={name}={value}" for name, value in own.items())]
    _ran([*apt, "update"], folder, DOWNLOAD_SECONDS)
    _ran([*apt, "source", "--download-only", "kubernetes"], folder, DOWNLOAD_SECONDS)
    (description,) = folder.glob("*.dsc")
    if f"really{VERSION}-" not in description.name and f"_{VERSION}-" not in description.name:
        raise LabError(f"the lab needs kubernetes {VERSION} of Debian 12, and apt-get source found {description.name}")
    return description


def _archives() -> list[tuple[str, str]]:
    """Debian's archives, and the release of each, as apt is set up here."""
    form = "$(ORIGIN)|$(COMPONENT)|$(REPO_URI)|$(RELEASE)"
    text = _ran(["apt-get", "indextargets", "--format", form, "Created-By: Packages"], Path("/"), 60)
    found = re.findall(r"^Debian\|main\|([^|\n]+)\|([^|\n]+)$", text, re.MULTILINE)
    if not found:
        raise LabError("apt knows no archive of Debian: apt-get update")
    return list(dict.fromkeys(found))


def _compile(folder: Path, description: Path) -> None:
    tree = folder / "go/src" / TREE
    tree.parent.mkdir(parents=True)
    _ran(["dpkg-source", "--no-check", "--extract", str(description), str(tree)], folder, DOWNLOAD_SECONDS)
    stamps = {"gitVersion": f"v{VERSION}", "gitMajor": "1", "gitMinor": "20", "gitTreeState": "clean"}
    flags = " ".join(["-s -w", *(f"-X {VERSION_PACKAGE}.{name}={value}" for name, value in stamps.items())])
    settings = {
        "GOPATH": str(folder / "go"),
        "GOCACHE": str(folder / "objects"),
        "GOTMPDIR": str(folder),
        "GO111MODULE": "off",
        "GOFLAGS": "",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
    }
    # the source of all that it imports is vendored: nothing is fetched
    command = ["nice", "-n", "10", GO, "build", "-p", "2", "-ldflags", flags, "-o", str(folder / "kubelet")]
    _ran([*command, "./cmd/kubelet"], tree, BUILD_SECONDS, settings)


def _ran(command: list[str], folder: Path, seconds: float, settings: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **(settings or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{command[0]} did not end within {seconds:.0f} s: {' '.join(command)}") from error
    if done.returncode != 0:
        raise LabError(f"the kubelet cannot be built: {' '.join(command)}\n{done.stderr.strip()[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{kubelet()}\n")
    except LabError as problem:
        say(f"{problem}")
        sys.exit(3)
