"""A result that goes to a file: all of it under its name, or nothing; never over what is there unasked."""

import os
from pathlib import Path

from vfioctl.errors import BadSpec, HostError


def refuse_to_replace(path: Path, *, force: bool, otherwise: str) -> None:
    """Raises BadSpec: neither a file that someone may need nor a device node is replaced."""
    if path.exists() and not path.is_file():
        raise BadSpec(f"{path} is not a plain file", hint=otherwise)
    if os.path.lexists(path) and not force:  # a link that leads nowhere is something too
        raise BadSpec(f"{path} is there already", hint="choose another name, or --force to replace it")


def write_whole(path: Path, data: bytes) -> None:
    """Either all of it appears under that name, or nothing. A link is replaced, and what it leads to left alone."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> HostError:
    failure = HostError(f"writing {path} failed", hint="choose a directory that you may write to")
    failure.kernel_said = error.strerror or str(error)
    return failure
