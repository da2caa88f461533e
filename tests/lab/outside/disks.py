"""The lab's disks: the Python environment (kept while unchanged), the project's sources and an empty one (each run).

Starting Python over the shared root takes seconds, every time; from a disk the guest can cache it takes a tenth of
that. Writes only below the cache folder, but for the byte code the interpreter itself would write beside the
environment's modules. Processes that run machines side by side share the cache folder: under `making` one at a time
makes what is missing there, and a disk is replaced, not written to, since a machine of another may read it.
"""

import compileall
import fcntl
import hashlib
import os
import py_compile
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# what a checkout gathers and no test in the lab has a use for
NOT_SOURCES = (".git", ".lab", "__pycache__", ".*_cache", ".hypothesis", "htmlcov", "dist")
NOT_STDLIB = ("site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "config-*")
SQUASH_SECONDS = 120
# sparse, and enough for a file system of any kind
BUSY_BYTES = 64 << 20


@contextmanager
def making(cache: Path) -> Iterator[None]:
    """Keep other processes from making anything in the cache folder meanwhile."""
    cache.mkdir(exist_ok=True)
    with (cache / "making").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def environment_places() -> list[Path]:
    """The folders and files that make up this interpreter and its environment."""
    places = [Path(sys.prefix), Path(sysconfig.get_path("stdlib")), Path(sys.executable).resolve()]
    library = Path(sysconfig.get_config_var("LIBDIR") or "/", sysconfig.get_config_var("LDLIBRARY") or "none")
    if ".so" in library.name and library.is_file():
        places.append(library.resolve())
    return places


def environment_disk(cache: Path, extra: Path) -> tuple[Path, bool]:
    """The environment's disk, each place and `extra` under its own full path; and whether it had to be made."""
    disk, mark = cache / "environment.squashfs", cache / "environment.mark"
    fingerprint = _fingerprint([*_environment_files(), extra])
    if disk.exists() and mark.exists() and mark.read_text() == fingerprint:
        return disk, False
    mark.unlink(missing_ok=True)
    # a no-op where byte code is there already, which some installers leave out
    compileall.compile_dir(Path(sys.prefix), quiet=2, workers=0)
    _squash([*environment_places(), extra], disk, "-no-strip", "-e", *map(str, _not_wanted()))
    mark.write_text(fingerprint)
    return disk, True


def sources_disk(disk: Path, repo: Path, extras: list[Path]) -> Path:
    """The project's tree with byte code for it, in the folder `repo`, and the files `extras` beside that."""
    stage = disk.with_suffix(".stage")
    shutil.rmtree(stage, ignore_errors=True)
    tree = stage / "repo"
    _copy_sources(repo, tree)
    compileall.compile_dir(
        tree,
        quiet=2,
        stripdir=str(tree),
        prependdir=str(repo),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    for extra in extras:
        shutil.copy(extra, stage / extra.name)
    _squash([stage], disk)
    shutil.rmtree(stage)
    return disk


def programs_disk(cache: Path, name: str, programs: list[Path]) -> Path:
    """A disk with these programs in its root, made anew when one has changed."""
    disk, mark = cache / f"{name}.squashfs", cache / f"{name}.mark"
    fingerprint = _fingerprint(programs)
    if not (disk.exists() and mark.exists() and mark.read_text() == fingerprint):
        mark.unlink(missing_ok=True)
        _squash(programs, disk)
        mark.write_text(fingerprint)
    return disk


@contextmanager
def busy_disk(cache: Path) -> Iterator[Path]:
    """An empty disk that tests may write to, gone with the block."""
    disk = cache / f"busy-{os.getpid()}.raw"
    with disk.open("wb") as image:
        image.truncate(BUSY_BYTES)
    try:
        yield disk
    finally:
        disk.unlink()


def _copy_sources(repo: Path, tree: Path) -> None:
    venv = Path(sys.prefix)
    by_pattern = shutil.ignore_patterns(*NOT_SOURCES)

    def ignored(folder: str, names: list[str]) -> set[str]:
        return set(by_pattern(folder, names)) | {name for name in names if Path(folder, name) == venv}

    shutil.copytree(repo, tree, symlinks=True, ignore=ignored)
    if venv.is_relative_to(repo):
        # the place to mount the environment on
        (tree / venv.relative_to(repo)).mkdir(parents=True)


def _not_wanted() -> list[Path]:
    stdlib = Path(sysconfig.get_path("stdlib"))
    return [path for pattern in NOT_STDLIB for path in stdlib.glob(pattern)]


def _environment_files() -> Iterator[Path]:
    not_wanted = _not_wanted()
    for place in environment_places():
        if place.is_file():
            yield place
        for folder, folders, files in os.walk(place):
            # byte code appears as modules are first used, which is no change
            folders[:] = sorted(one for one in folders if one != "__pycache__" and Path(folder, one) not in not_wanted)
            yield from (Path(folder, name) for name in sorted(files))


def _fingerprint(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        state = path.lstat()
        digest.update(f"{path}\0{state.st_mtime_ns}\0{state.st_size}\n".encode())
    return digest.hexdigest()


def _squash(sources: list[Path], disk: Path, *options: str) -> None:
    # uncompressed: unpacking costs more in an emulated machine than reading does
    plain = ["-noappend", "-noI", "-noD", "-noF", "-noX", "-no-progress", "-quiet"]
    new = disk.with_suffix(".new")
    command = ["mksquashfs", *map(str, sources), str(new), *plain, *options]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=SQUASH_SECONDS)
    new.replace(disk)
