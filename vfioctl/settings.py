"""Validates the tables of the configuration that belong to subsystems. Imports pydantic only if there is one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vfioctl.config import STEPS, Config, ConfigFile, config_of, named_config, subsystem_tables, table_of, wrong_in
from vfioctl.core.limits import json_of, read_document
from vfioctl.core.locations import import_object
from vfioctl.errors import BadSpec
from vfioctl.subsystems import Subsystem


def validated(file: ConfigFile, name: str, model: str) -> Any:
    """Return a table as its model. Raises BadSpec for the first error; its facts have the number of errors."""
    from pydantic import ValidationError

    try:
        return read_document(import_object(model), file.tables.get(name, {}))
    except ValidationError:
        raise wrong(file, name, model)[0] from None


def validated_of(config: Config, name: str, subsystems: Iterable[Subsystem]) -> Any:
    """Return a table as its model; for another host than this machine that of VFIOCTL_CONFIG. Raises BadSpec."""
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


def problems(file: ConfigFile) -> Iterator[BadSpec]:
    """Yield all errors of the configuration, in the order of its tables."""
    yield from wrong_in(file)
    for name, model in subsystem_tables().items():
        yield from wrong(file, name, model)


def missing(file: ConfigFile, session: Any, subsystems: Iterable[Subsystem]) -> Iterator[BadSpec]:
    """Yield an error for each setting that names what the host of the session does not have. Raises BadSpec."""
    for row in subsystems:
        if row.missing and row.name in file.tables:
            for keys, words in import_object(row.missing)(session, validated(file, row.name, row.settings)):
                yield file.wrong([row.name, *keys], words)


def effective(file: ConfigFile) -> Mapping[str, Mapping[str, object]]:
    """Return the effective settings by table. Raises BadSpec."""
    config = config_of(file)
    if config.problem:
        raise config.problem
    times = config.timeouts
    timeouts = {"default": times.default, "load": times.load, **{name: times.of(name) for name in sorted(STEPS)}}
    tables: dict[str, Mapping[str, object]] = {
        "timeouts": {name: f"{seconds:.3f}".rstrip("0").rstrip(".") + "s" for name, seconds in timeouts.items()},
        "holders": {"believed_users": list(config.believed_users)},
    }
    for name, model in subsystem_tables().items():
        tables[name] = json_of(validated(file, name, model))
    return tables


def sources(file: ConfigFile, tables: Mapping[str, Mapping[str, object]]) -> Mapping[str, Mapping[str, str]]:
    """Return `file` for the settings that the file has, and `default` for the others."""
    return {
        name: {key: "file" if key in table_of(file, name) else "default" for key in table}
        for name, table in tables.items()
    }


def _error(file: ConfigFile, name: str, problem: Mapping[str, Any]) -> BadSpec:
    from vfioctl.core.value import KEY, words_of

    own = problem["type"] == "value_error"
    words = f"is wrong: {problem['ctx']['error']}" if own else words_of(problem) or problem["msg"].lower()
    return file.wrong([name, *(part for part in problem["loc"] if part != KEY)], words)
