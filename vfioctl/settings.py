"""Validates the tables of the configuration that belong to subsystems. Each error has its file, line and key.

Imports pydantic only if there is a table to validate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vfioctl.config import Config, ConfigFile, named_config, read_config, read_file_of, subsystem_tables
from vfioctl.core.limits import json_of, read_document
from vfioctl.core.locations import import_object
from vfioctl.errors import BadSpec
from vfioctl.subsystems import Subsystem


def validated(file: ConfigFile, name: str, model: str) -> Any:
    """Return a table as its model. Raises BadSpec for the first error; its facts have the number of errors."""
    reason = wrong(file, name, model)
    if reason:
        raise reason[0]
    return read_document(import_object(model), file.tables.get(name, {}))


def validated_of(config: Config, name: str, subsystems: Iterable[Subsystem]) -> Any:
    """Return a subsystem's table of a configuration as its model, with its defaults if there is none. Raises BadSpec.

    That of another host than this machine is in the file that VFIOCTL_CONFIG names, if it names one.
    """
    config = config if config.file or config.problem else named_config()
    if config.problem:
        raise config.problem
    assert config.file is not None
    model = next(row.settings for row in subsystems if row.name == name)
    return validated(config.file, name, model) if name in config.file.tables else import_object(model)()


def wrong(file: ConfigFile, name: str, model: str) -> Sequence[BadSpec]:
    """Return the errors of a table."""
    from pydantic import ValidationError

    try:
        read_document(import_object(model), file.tables.get(name, {}))
    except ValidationError as error:
        return [_error(file, name, {**problem}) for problem in error.errors(include_url=False, include_input=False)]
    return ()


def problems(file: ConfigFile | None = None) -> Iterator[BadSpec]:
    """Yield all errors of the configuration: at most one of the file as a whole, then those of each table."""
    if problem := read_config(file.place if file else None).problem:
        yield problem
        return
    configuration = file or read_file_of()
    for name, model in subsystem_tables().items():
        yield from wrong(configuration, name, model)


def effective() -> Mapping[str, Mapping[str, object]]:
    """Return the effective settings by table. Raises BadSpec."""
    config = read_config()
    if config.problem:
        raise config.problem
    assert config.file is not None
    times = config.timeouts
    tables: dict[str, Mapping[str, object]] = {
        "timeouts": {
            name: f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
            for name, seconds in {"default": times.default, "load": times.load, **times.steps}.items()
        },
        "holders": {"believed_users": list(config.believed_users)},
    }
    for name, model in subsystem_tables().items():
        tables[name] = json_of(validated(config.file, name, model))
    return tables


def _error(file: ConfigFile, name: str, problem: Mapping[str, Any]) -> BadSpec:
    from vfioctl.core.value import KEY, words_of

    own = problem["type"] == "value_error"
    words = f"is wrong: {problem['ctx']['error']}" if own else words_of(problem) or problem["msg"].lower()
    return file.wrong([name, *(part for part in problem["loc"] if part != KEY)], words)
