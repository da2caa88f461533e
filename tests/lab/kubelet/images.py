"""The one image of all containers, written by hand: busybox. Without a command it sleeps, as a pod's sandbox does."""

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

NAME = "localhost/lab:1"
TOOLS = ("sh", "sleep", "test", "cat")


def archive(place: Path) -> Path:
    """A Docker archive, as `ctr images import` takes it."""
    layer = _layer()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/bin/sleep", "2147483647"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
    with tarfile.open(place, "w") as image:
        for name, content in (
            ("layer.tar", layer),
            ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            _add(image, name, content)
    return place


def _layer() -> bytes:
    busybox = shutil.which("busybox")
    assert busybox
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as layer:
        _add(layer, "bin/busybox", Path(busybox).read_bytes())
        for tool in TOOLS:
            link = tarfile.TarInfo(f"bin/{tool}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(link)
    return out.getvalue()


def _add(to: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o755
    to.addfile(member, io.BytesIO(content))
