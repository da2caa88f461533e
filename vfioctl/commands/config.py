"""`vfioctl config`: checks and shows the configuration of this machine. May not change it."""

import json
from collections.abc import Iterator, Mapping, Sequence

import typer

from vfioctl.config import read_file_of
from vfioctl.console.choice import opened
from vfioctl.console.lazy import group_app
from vfioctl.console.options import AsJson
from vfioctl.console.output import emit, emit_document
from vfioctl.console.words import counted
from vfioctl.errors import BadSpec

app = group_app("config")


@app.group_with_examples("""
  vfioctl config check
  vfioctl config show""")
def config() -> None:
    """Check and show the configuration.

    The file is /etc/vfioctl/config.toml, or the one in VFIOCTL_CONFIG."""


@app.with_examples("""
  vfioctl config check
  vfioctl config check --json""")
def check(ctx: typer.Context, *, as_json: AsJson = False) -> None:
    """Check the configuration, and list all errors with their lines.

    Devices and CPUs that the host does not have are errors, too. The exit code is 0 without errors or without a file,
    otherwise 2."""
    wrong = _problems(ctx)
    if wrong:
        for problem in [] if as_json else wrong:
            emit(problem.message)
        raise BadSpec(
            f"{wrong[0].facts.get('file', 'the configuration')} has "
            f"{'an error' if len(wrong) == 1 else counted(len(wrong), 'error')}",
            hint=wrong[0].hint,
            facts={"problems": [{"message": problem.message, **problem.facts} for problem in wrong]},
        )
    file = read_file_of()
    if as_json:
        emit_document({"file": str(file.place), "exists": file.exists, "problems": []})
    else:
        emit(f"{file.place} is in order." if file.exists else f"There is no {file.place}: the defaults are used.")


def _problems(ctx: typer.Context) -> list[BadSpec]:
    """Return the errors of the file, by line; if it has none, what the host does not have of it."""
    from vfioctl.settings import missing, problems

    try:
        file = read_file_of()
    except BadSpec as error:
        return [error]
    session = opened(ctx)
    wrong = list(problems(file)) or list(missing(file, session, session.subsystems))
    return sorted(wrong, key=lambda problem: int(str(problem.facts["line"] or 0)))


@app.with_examples("""
  vfioctl config show
  vfioctl config show --json""")
def show(*, as_json: AsJson = False) -> None:
    """Show the effective settings of all tables in the format of the file.

    Settings that the file does not have are shown with their defaults, and marked."""
    from vfioctl.settings import effective, sources

    file = read_file_of()
    tables = effective(file)
    if as_json:
        emit_document({"file": str(file.place), "exists": file.exists, **tables, "sources": sources(file, tables)})
        return
    emit(f"# {file.place}" if file.exists else f"# there is no {file.place}")
    for name, source in sources(file, tables).items():
        for line in _lines(name, tables[name], source):
            emit(line)


def _lines(name: str, table: Mapping[str, object], sources: Mapping[str, str]) -> Iterator[str]:
    yield from ("", f"[{name}]")
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping) and value}
    lists = {key: value for key, value in table.items() if isinstance(value, list) and _has_tables(value)}
    for key, value in table.items():
        if key not in inner and key not in lists:
            note = "  # default" if sources[key] == "default" else ""
            text = "{}" if value == {} else json.dumps(value)
            yield f"# {_key(key)} is not set" if value is None else f"{_key(key)} = {text}{note}"
    for key, settings in inner.items():
        yield from ("", f"[{name}.{_key(key)}]")
        yield from (f"{_key(setting)} = {json.dumps(value)}" for setting, value in settings.items())
    for key, entries in lists.items():
        for settings in entries:
            yield from ("", f"[[{name}.{_key(key)}]]")
            yield from (f"{_key(setting)} = {json.dumps(value)}" for setting, value in settings.items())


def _has_tables(values: Sequence[object]) -> bool:
    return bool(values) and all(isinstance(value, Mapping) for value in values)


def _key(name: str) -> str:
    """Return a key as TOML has it: bare, or in quotes."""
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else json.dumps(name)
