"""Asks libvirt's own schema about a domain."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_SCHEMAS = Path("/usr/share/libvirt/schemas")


def validated(file: Path) -> subprocess.CompletedProcess[str]:
    """Validate a domain; without what this libvirt is too old to know, which is SEV-SNP before 10.5."""
    text = file.read_text(encoding="utf-8")
    if "sev-snp" not in (_SCHEMAS / "domaincommon.rng").read_text(encoding="utf-8"):
        text = re.sub(r"<launchSecurity type='sev-snp'>.*?</launchSecurity>", "", text, flags=re.DOTALL)
    command = ["xmllint", "--noout", "--relaxng", str(_SCHEMAS / "domain.rng"), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)
