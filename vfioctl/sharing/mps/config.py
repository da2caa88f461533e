"""Renders the configuration file of MPS v3: a server with limits of its own for each claim. May not do input or output.

Source: NVIDIA's MPS documentation, "MPS v3 Configuration File" (driver 615): all values but uid are texts there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from vfioctl.errors import BadSpec
from vfioctl.sharing.mps.share import MpsShare, limits_of, megabytes

SCHEMA = "1.0"


def v3_config(uuid: str, shares: Sequence[MpsShare]) -> str:
    """Return the TOML text for these shares of the GPU with that UUID, in the order of their claims.

    The limits are the servers' own: no client of a claim can have more. Raises BadSpec."""
    claims = [share.claim for share in shares]
    if len({*claims}) < len(claims):
        raise BadSpec("a claim has one share of a GPU, not several")
    lines = [f"schema_version = {json.dumps(SCHEMA)}"]
    for share in sorted(shares, key=lambda share: share.claim):
        lines += ["", *_server(uuid, share)]
    return "\n".join(lines) + "\n"


def _server(uuid: str, share: MpsShare) -> Iterator[str]:
    limits = limits_of(share)
    yield f"[servers.{json.dumps(f'claim-{share.claim}')}]"
    yield f"allowed_devices = {json.dumps(uuid)}"
    if limits.memory is not None:
        yield f"pinned_memory_limit = {json.dumps(megabytes(limits.memory))}"
    if limits.threads is not None:
        yield f"active_thread_percentage = {json.dumps(str(limits.threads))}"
