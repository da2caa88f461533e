"""The two disks the lab is given: the Python environment (kept while unchanged) and the project's sources (made each run).

Starting Python over the shared root takes seconds, every time; from a disk the guest can cache it takes a tenth of
that. Writes only below the cache folder, but for the byte code the interpreter itself would write beside the
environment's modules.
"""

import compileall
import hashlib
import os
import py_compile
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# what a checkout gathers and a test in the lab has no use for
LEFT_OUT = (".git", ".lab", "__pycache__", ".*_cache", ".hypothesis", "htmlcov", "dist")
STDLIB_LEFT_OUT = ("site-packages", "dist-packages", "test", "idlelib", "tkinter", "ensurepip", "config-*", "__pycache__")


def environment_places() -> list[Path]:
    """The folders and files that make up this interpreter: what the environment disk holds, in order."""
    places = [Path(sys.prefix), Path(sysconfig.get_path("stdlib")), Path(sys.executable).resolve()]
    library = Path(sysconfig.get_config_var("LIBDIR") or "/", sysconfig.get_config_var("LDLIBRARY") or "none")
    if library.suffix != ".a" and library.is_file():
        places.append(library.resolve())
    return places


def environment_disk(cache: Path) -> tuple[Path, bool]:
    """The environment's disk, and whether it had to be made."""
    disk, mark = cache / "environment.squashfs", cache / "environment.mark"
    places = environment_places()
    now = _fingerprint(places)
    if disk.exists() and mark.exists() and mark.read_text() == now:
        return disk, False
    mark.unlink(missing_ok=True)
    for place in places[:2]:
        # a no-op where byte code is there already; some installers leave none
        compileall.compile_dir(place, quiet=2, rx=_Heavy(place), workers=0)
    stage = _fresh(cache / "environment")
    for number, place in enumerate(places):
        _link_into(place, stage / str(number))
    _squash(stage, disk)
    mark.write_text(now)
    return disk, True


def sources_disk(cache: Path, repo: Path, extras: list[Path]) -> Path:
    """The project's tree with byte code for it, and the extra files beside it."""
    stage = _fresh(cache / "sources")
    venv = Path(sys.prefix)
    leave = shutil.ignore_patterns(*LEFT_OUT)

    def ignored(folder: str, names: list[str]) -> set[str]:
        return set(leave(folder, names)) | {name for name in names if Path(folder, name) == venv}

    tree = stage / "repo"
    shutil.copytree(repo, tree, symlinks=True, ignore=ignored)
    if venv.is_relative_to(repo):
        (tree / venv.relative_to(repo)).mkdir(parents=True)
    compileall.compile_dir(
        tree,
        quiet=2,
        stripdir=str(tree),
        prependdir=str(repo),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    for extra in extras:
        shutil.copy(extra, stage / extra.name)
    disk = cache / "sources.squashfs"
    _squash(stage, disk)
    return disk


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _squash(stage: Path, disk: Path) -> None:
    disk.unlink(missing_ok=True)
    # uncompressed: unpacking costs more in an emulated machine than reading does
    command = ["mksquashfs", str(stage), str(disk), "-noI", "-noD", "-noF", "-noX", "-no-progress", "-quiet"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    shutil.rmtree(stage)
