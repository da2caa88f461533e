"""What the lab tells its user, on standard error: standard output is pytest's."""

import sys


def say(text: str) -> None:
    """One line, marked as the lab's own."""
    sys.stderr.write(f"lab: {text}\n")
    sys.stderr.flush()
