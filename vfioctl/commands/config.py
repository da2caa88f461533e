"""`vfioctl config`: checks and shows the configuration of this machine. May not change it."""

import json
from collections.abc import Iterator, Mapping

from vfioctl.config import ConfigFile, read_file_of
from vfioctl.console.lazy import Command, group_app
from vfioctl.console.options import AsJson
from vfioctl.console.output import emit, emit_json
from vfioctl.console.words import counted
from vfioctl.errors import BadSpec

app = group_app("config")


@app.callback(
    epilog="""[bold]Examples[/]
  vfioctl config check
  vfioctl config show""",
)
def config() -> None:
    """Check and show the configuration.

    The file is /etc/vfioctl/config.toml, or the one in VFIOCTL_CONFIG.
    """


@app.command(
    cls=Command,
    epilog="""[bold]Examples[/]
  vfioctl config check
  vfioctl config check --json""",
)
def check(*, as_json: AsJson = False) -> None:
    """Check the configuration, and list all errors with their lines.

    The exit code is 0 without errors or without a file, otherwise 2.
    """
    from vfioctl.settings import problems

    wrong = list(problems())
    if wrong:
        for problem in [] if as_json else wrong:
            emit(problem.message)
        first = wrong[0]
        place = first.facts.get("file", "the configuration")
        if not as_json and not wrong[1:]:
            raise BadSpec(f"{place} has an error", hint=first.hint)
        raise BadSpec(
            f"{place} has {counted(len(wrong), 'error')}",
            hint=first.hint,
            facts={"problems": [{"message": problem.message, **problem.facts} for problem in wrong]},
        )
    file = read_file_of()
    if as_json:
        emit_json({"file": str(file.place), "exists": file.exists, "problems": []})
    else:
        emit(f"{file.place} is in order." if file.exists else f"There is no {file.place}: the defaults are used.")


@app.command(
    cls=Command,
    epilog="""[bold]Examples[/]
  vfioctl config show
  vfioctl config show --json""",
)
def show(*, as_json: AsJson = False) -> None:
    """Show the effective settings in the format of the file.

    Settings that the file does not have are shown with their defaults.
    """
    from vfioctl.settings import effective

    tables, file = effective(), read_file_of()
    if as_json:
        emit_json({"file": str(file.place), "exists": file.exists, **tables})
        return
    for line in _lines(file, tables):
        emit(line)


def _lines(file: ConfigFile, tables: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    yield f"# {file.place}" if file.exists else f"# there is no {file.place}"
    for name, table in tables.items():
        yield ""
        yield f"[{name}]"
        given = file.tables.get(name, {})
        plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
        for key, value in plain.items():
            note = "" if isinstance(given, Mapping) and key in given else "  # default"
            yield f"# {_key(key)} is not set" if value is None else f"{_key(key)} = {json.dumps(value)}{note}"
        for key, inner in table.items():
            if isinstance(inner, Mapping) and inner:
                yield from ("", f"[{name}.{_key(key)}]")
                yield from (f"{_key(each)} = {json.dumps(value)}" for each, value in inner.items())


def _key(name: str) -> str:
    """Return a key as TOML has it: bare, or in quotes."""
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else json.dumps(name)
