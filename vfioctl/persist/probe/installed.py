"""Reads what `vfioctl install`, or a package of the system, has put in place. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vfioctl.kernel.lenient import names_in, target_of, text_of
from vfioctl.kernel.protocol import FileReader
from vfioctl.persist.model.installed import (
    COMPLETIONS,
    FILES,
    IN_PACKAGE,
    LINKS,
    MARK,
    ONLY_WITH,
    OPTIONAL_LINKS,
    PAGE,
    PAGES,
    changes_of,
)


def has_package(kernel: FileReader) -> bool:
    """Return whether a package of the system has installed vfioctl."""
    return kernel.has(MARK)


def useful(kernel: FileReader, texts: Mapping[str, str]) -> Mapping[str, str]:
    """Return those of the files to install that are not for a program that this host lacks."""
    missing = tuple(f"{folder}/" for folder, mark in ONLY_WITH.items() if not kernel.has(mark))
    return {path: text for path, text in texts.items() if not path.startswith(missing)}


def differing(kernel: FileReader, texts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the files and links for the boot that are not as in `texts`, and those of a package of another release.

    Raises KernelRefused for a file that cannot be read."""
    now = for_boot(kernel)
    if not has_package(kernel):
        return tuple(change.name for change in changes_of(now, useful(kernel, texts)))
    return (*(change.name for change in changes_of(now, LINKS)), *other_release(kernel, texts))


def for_boot(kernel: FileReader) -> Mapping[str, str]:
    """Return the text of each file for the boot, and the target of each link, that is there now; empty for none. The
    files of a package are not among them. Raises KernelRefused for a file that cannot be read."""
    if has_package(kernel):  # a link to /dev/null, by which `systemctl mask` turns a unit off, is no copy of it
        files = {path: text_of(kernel, path) for path, place in IN_PACKAGE.items() if path != place}
    else:
        files = {path: kernel.read(path) if kernel.has(path) else "" for path in FILES}
    return {**files, **{path: target_of(kernel, path) for path in LINKS}}


def optional_links(kernel: FileReader) -> Mapping[str, str]:
    """Return the target of each link that the administrator may have made."""
    return {path: target_of(kernel, path) for path in OPTIONAL_LINKS}


def documents(kernel: FileReader, wanted: Iterable[str], *, pages: bool) -> Mapping[str, str]:
    """Return the text of each completion and manual page that is there now; empty for none. `wanted`: more names.
    `pages`: whether manual pages that nobody wants any more are ours."""
    own = [f"{PAGES}/{name}" for name in names_in(kernel, PAGES) if PAGE.fullmatch(name)] if pages else []
    return {path: text_of(kernel, path) for path in dict.fromkeys((*COMPLETIONS, *wanted, *own))}


def other_release(kernel: FileReader, texts: Mapping[str, str]) -> Iterable[str]:
    """Yield the files of the package that have another text. `texts`: by the path where `install` writes each."""
    for path, place in IN_PACKAGE.items():
        if text_of(kernel, place).rstrip("\n") != texts[path]:
            yield place
