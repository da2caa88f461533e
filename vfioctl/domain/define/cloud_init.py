"""Refuses files that cloud-init would do without: only a log in the guest would say so. May not do input or output.

https://cloudinit.readthedocs.io/en/latest/explanation/format.html
"""

from __future__ import annotations

from vfioctl.domain.build.specs import kind_of_yaml
from vfioctl.errors import BadSpec

_CONFIG = "#cloud-config"
_WORDS = (
    *(_CONFIG, "#cloud-config-archive", "#cloud-config-jsonp", "#include", "#include-once"),
    *("#cloud-boothook", "#part-handler"),
)
"""First words of the first line of user-data."""
_BEGINNINGS = ("#!", "## template: jinja", "content-type:", "mime-version:", "from ")
_GZIP = b"\x1f\x8b"


def refuse_user_data(path: str, content: bytes) -> None:
    """Raise BadSpec for user-data that cloud-init does not understand."""
    if content.startswith(_GZIP):
        return
    first = content.partition(b"\n")[0].decode(errors="replace").lower().rstrip()
    word = first.partition(" ")[0]
    if word == _CONFIG:
        _refuse_other_yaml(path, content, "mapping", "")
    elif word not in _WORDS and not first.startswith(_BEGINNINGS):
        raise BadSpec(
            f"{path} is nothing that cloud-init reads",
            hint=f"its first line is {_CONFIG}, or names a program: #!/bin/sh",
        )


def refuse_network_config(path: str, content: bytes) -> None:
    """Raise BadSpec for a network configuration that cloud-init does not understand."""
    _refuse_other_yaml(path, content, "mapping")


def _refuse_other_yaml(path: str, content: bytes, *kinds: str) -> None:
    hint = "cloud-init reads settings in YAML there, one on each line: locale: C.UTF-8"
    try:
        kind = kind_of_yaml(content.decode())
    except RecursionError:
        raise BadSpec(f"{path} is nested too deeply", hint=hint) from None
    except ValueError as error:  # YAML and UTF-8 alike
        raise BadSpec(f"{path} is not understood: {error}"[:400], hint=hint) from None
    if kind not in (*kinds, None):
        raise BadSpec(f"{path} is no table of settings", hint=hint)
