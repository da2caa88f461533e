"""Replaces what may identify a person or a machine in the texts of a report. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Iterable

from vfioctl.kernel.recorded.redaction import Pseudonyms

_SERIAL = re.compile(r"(?i)\b((?:serial(?: number)?|S/N)\s*[:=]?\s*)(\S+)")
_HOME = re.compile(r"(/home/|/Users/)[^/\s:\"']+")
_IP = re.compile(
    r"(?<![\d.])(?!0\.0\.0\.0\b|127\.)(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.])"
)
_SHORTEST = 3
"""Shorter names are replaced only where they stand for an owner: they are parts of other words."""


class Redaction:
    """Gives each private word one pseudonym, the same in all texts of a report."""

    def __init__(self, private: Iterable[tuple[str, str]]) -> None:
        """`private`: (kind, word), such as ("user", "ada"); the pseudonym is `user-1`."""
        self.pseudonyms = Pseudonyms()
        self._words: dict[str, str] = {}
        numbers: dict[str, int] = {}
        for kind, word in private:
            if word and word != "root" and word not in self._words:
                numbers[kind] = numbers.get(kind, 0) + 1
                self._words[word] = f"{kind}-{numbers[kind]}"
        long = sorted((word for word in self._words if len(word) >= _SHORTEST), key=len, reverse=True)
        words = "|".join(map(re.escape, long))
        self._form = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])") if words else None

    def word(self, word: str) -> str:
        """Return the pseudonym of one private word."""
        return self._words.get(word, word)

    def text(self, text: str) -> str:
        """Return a text without UUIDs, MAC and IP addresses, serial numbers, home directories, and private words."""
        text = self.pseudonyms.redacted(text)
        text = _HOME.sub(r"\1user", _SERIAL.sub(r"\1redacted", _IP.sub("192.0.2.1", text)))
        return self._form.sub(lambda match: self._words[match[0]], text) if self._form else text
