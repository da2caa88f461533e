"""The lab's kernel modules, built on the build machine: the kernel's own mdev samples and the project's stand-ins.

The samples come from Debian's package of the kernel's source. Writes only below the cache folder, and there only when
the kernel, that package or the stand-ins have changed.
"""

import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path

from tests.lab.outside.requirements import Found, LabError

OWN = Path(__file__).resolve().parents[1] / "modules"
# mdpy-fb.c beside these is a driver for guests
SAMPLES = ("mtty.c", "mdpy.c", "mdpy-defs.h", "mbochs.c")
BUILD_SECONDS = 300


def built(cache: Path, found: Found) -> list[Path]:
    """The modules, built for the lab's kernel; raises LabError with the compiler's words when one cannot be."""
    folder, mark = cache / "modules", cache / "modules.mark"
    fingerprint = _fingerprint(found)
    if not mark.exists() or mark.read_text() != fingerprint:
        mark.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(OWN, folder)
        for sample in _samples(cache, found.kernel_source):
            shutil.copy(sample, folder)
        _build(folder, found.kernel_headers)
        mark.write_text(fingerprint)
    return sorted(folder.glob("*.ko"))


def _fingerprint(found: Found) -> str:
    digest = hashlib.sha256(f"{found.release}\0{_state(found.kernel_source)}\0".encode())
    for source in sorted(OWN.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def _state(path: Path) -> str:
    state = path.stat()
    return f"{path} {state.st_mtime_ns} {state.st_size}"


def _samples(cache: Path, archive: Path) -> list[Path]:
    # kept apart from what is built: the archive takes ten seconds to read
    folder, mark = cache / "samples", cache / "samples.mark"
    if not mark.exists() or mark.read_text() != _state(archive):
        mark.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        _unpack(archive, folder)
        mark.write_text(_state(archive))
    return [folder / name for name in SAMPLES]


def _unpack(archive: Path, folder: Path) -> None:
    wanted = {f"samples/vfio-mdev/{name}" for name in SAMPLES}
    # as a stream: looking a member up by name would read the whole archive once more
    with tarfile.open(archive, "r|xz") as members:
        for member in members:
            inner = member.name.partition("/")[2]
            if inner in wanted and (file := members.extractfile(member)):
                (folder / Path(inner).name).write_bytes(file.read())
                wanted.remove(inner)
            if not wanted:
                return
    raise LabError(f"{archive} has no {', '.join(sorted(wanted))}")


def _build(folder: Path, headers: Path) -> None:
    command = ["make", "--silent", "-C", str(headers), f"M={folder}", "modules"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    if done.returncode != 0:
        raise LabError(f"the lab's kernel modules do not build:\n{done.stderr.strip()}")
