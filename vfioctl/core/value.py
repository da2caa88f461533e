"""`Value`, the base class of all documents. May not do input or output."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """A frozen document that refuses unknown fields and has one canonical JSON form."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", serialize_by_alias=True, validate_by_name=True, validate_by_alias=True
    )

    def canonical(self) -> str:
        """Return JSON with sorted keys and no spaces: equal values give equal text."""
        import json

        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    def digest(self) -> str:
        """Return the first twelve hexadecimal digits of SHA-256 over the canonical JSON."""
        import hashlib  # imported late: OpenSSL loads slowly, and listings need no digest

        return hashlib.sha256(self.canonical().encode()).hexdigest()[:12]
