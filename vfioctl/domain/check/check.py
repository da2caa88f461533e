"""Runs the rules on a document. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

from vfioctl.domain.check.document import is_domain
from vfioctl.domain.check.domain import Domain
from vfioctl.domain.check.fault import Fault
from vfioctl.domain.check.table import RULES
from vfioctl.domain.model.finding import Finding
from vfioctl.domain.xml import Document

MOST = 20
"""Findings of one rule: a document that has more is repaired before it is read to the end."""


def check(document: Document, *, version: tuple[int, ...] | None = None) -> tuple[Finding, ...]:
    """Return what is wrong with a document by itself, in its order.

    `version`: of the libvirt that will get it, such as (9, 0); None if it is not known.
    """
    domain = Domain(document, version)
    if wrong := tuple(findings_of(document, "domain", is_domain(domain))):
        return wrong
    return in_order(finding for name, rule in RULES.items() for finding in findings_of(document, name, rule(domain)))


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order of the document; those of one line stay as they are."""
    return tuple(sorted(findings, key=lambda each: each.line or 0))


def findings_of(document: Document, name: str, faults: Iterable[Fault]) -> Iterator[Finding]:
    """Yield the faults that a rule found as findings, at most MOST."""
    return map(partial(_finding, document, name), islice(faults, MOST))


def _finding(document: Document, name: str, fault: Fault) -> Finding:
    return Finding(
        rule=name,
        severity=fault.severity,
        path=document.path(fault.element),
        line=document.line(fault.element),
        reason=fault.reason,
        remedy=fault.remedy,
    )
