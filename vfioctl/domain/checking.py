"""Checks a domain's XML, by itself and against a host. May not write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfioctl.domain.check.check import check
from vfioctl.domain.model.finding import CheckDocument, Severity
from vfioctl.domain.xml import parse

if TYPE_CHECKING:
    from vfioctl.session import Session


def judged(session: Session | None, text: str | bytes, version: tuple[int, ...] | None) -> CheckDocument:
    """Return what is wrong with a domain's XML, against a session's host if one is given. Raises BadDocument."""
    document = parse(text)
    findings = check(document, version=version)
    name = (document.root.findtext("name") or "").strip()
    return CheckDocument(
        ok=not any(each.severity is Severity.ERROR for each in findings),
        domain=name or None,
        host=session is not None,
        findings=findings,
    )
