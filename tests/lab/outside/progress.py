"""What a machine that stalled had done before; reads what `../inside/progress.py` wrote."""

from pathlib import Path


def files_passed(results: Path) -> dict[str, int] | None:
    """The files of which every test had passed, with the number of their tests; None if a test had failed.

    Tests run file by file, so that the last file that has a line may have tests that did not run: it is left out.
    """
    ended = results / "ended.txt"
    lines = [line.split(" ", 1) for line in ended.read_text().splitlines()] if ended.exists() else []
    if any(outcome == "failed" for outcome, _ in lines):
        return None
    counts: dict[str, int] = {}
    for _, test in lines:
        file = test.split("::")[0]
        counts[file] = counts.get(file, 0) + 1
    return dict(list(counts.items())[:-1])


def running(results: Path) -> str:
    """Which test ran last, as the end of a sentence; empty if none did."""
    file = results / "running.txt"
    return f" while {file.read_text()} ran" if file.exists() else ""
