"""The reference pages of the site, made from the code: commands, keys, metrics, store, Python."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from site_json import json_page
from site_text import code, docstring, escape, keys_table, prose, stacked, table

from advsweep.components import Component, parameters
from advsweep.registry import Registry

if TYPE_CHECKING:
    from advsweep.config.groups import ConfigGroups

_WIDTH = 92
_API = {
    "advsweep": "Stores as pandas frames",
    "advsweep.estimators": "Estimators",
    "advsweep.errors": "Errors",
}
# Modules that import another trainer, which need not be installed: their source is read.
_SOURCES = {"advsweep.integrations.trl": "TRL"}


def reference_pages() -> dict[str, str]:
    """Return every page but those of estimators and objectives, by path below `reference/`."""
    return {
        "commands.md": commands_page(),
        **config_pages(),
        "json.md": json_page(),
        "metrics.md": metrics_page(),
        "store.md": store_page(),
        "python.md": python_page(),
    }


# Commands


def commands() -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each command of ours with the command and its context."""
    from advsweep.cli.app import app
    from advsweep.cli.commands import COMMANDS

    root: Any = typer.main.get_command(app)
    context = typer.Context(root, info_name="advsweep", terminal_width=_WIDTH)
    for name in (name for entries in COMMANDS.values() for name in entries):
        command = root.get_command(context, name)
        own = typer.Context(command, info_name=name, parent=context, terminal_width=_WIDTH)
        yield name, command, own


def commands_page() -> str:
    """Return the page of all commands, each with its help."""
    found = list(commands())
    listed = [
        [f"[`{name}`](#{name})", escape(command.help.partition("\n")[0])]
        for name, command, _ in found
    ]
    parts = [
        "# Commands\n",
        "Every command with its help, as `advsweep COMMAND --help` prints it. Exit codes: 0 "
        "success, 1 a run failed, 2 an error that you can correct, 130 interrupted.\n",
        table(("command", "what it does"), listed),
    ]
    for name, _, context in found:
        help_text = "\n".join(line.rstrip() for line in context.get_help().splitlines())
        parts.append(f"## {name} {{ #{name} }}\n\n```text\n{help_text}\n```\n")
    return "\n".join(parts)


# Config keys


def groups() -> dict[str, tuple[str, Registry[Any]]]:
    """Return the registries whose components have keys: a title and a registry per key."""
    from advsweep.sweep.registry import GROUPS
    from advsweep.tasks.rewards import REWARDS
    from advsweep.tasks.verifiers import VERIFIERS

    found = {key: (key.capitalize(), registry) for key, registry in GROUPS.items()}
    found["verifier"] = ("Verifiers (`task.verifier`)", VERIFIERS)
    found["reward"] = ("Rewards (`task.rewards`)", REWARDS)
    return found


def config_pages() -> dict[str, str]:
    """Return a page per config group, and one of them all."""
    from advsweep.sweep.registry import config_groups

    pages = {}
    rows = []
    with config_groups() as files:
        for key, (title, registry) in groups().items():
            pages[f"config/{key}.md"] = _group_page(key, title, registry, files)
            members = ", ".join(f"`{cls.name}`" for cls in _classes(registry))
            rows.append([f"[`{key}`]({key}.md)", members])
    pages["config/index.md"] = "\n".join(
        [
            "# Config keys\n",
            "A run has one member of each group and the numbers below. Any of them is set on "
            "the command line (`advsweep run estimator=fade optimizer.lr=1e-4`) or in a sweep "
            "file.\n",
            "## Numbers of a run\n",
            keys_table("", _run_parameters()),
            "## Groups\n",
            table(("group", "members"), rows),
            "`method=NAME` sets estimator, objective and rollout as a paper has them "
            "(`advsweep list methods`); `+experiment=NAME` is a sweep file "
            "(`advsweep list experiments`).\n",
        ]
    )
    return pages


def _run_parameters() -> list[dict[str, Any]]:
    from advsweep.backends.base import RunParameters
    from advsweep.config.groups import conf_directory
    from advsweep.yaml_files import read_yaml

    return parameters(RunParameters, read_yaml(conf_directory() / "config.yaml"))


def _classes(registry: Registry[Any]) -> list[type[Component]]:
    return sorted(registry.classes(), key=lambda cls: cls.name)


def _group_page(key: str, title: str, registry: Registry[Any], files: ConfigGroups) -> str:
    parts = [f"# {title}\n"]
    if presets := _presets(key, registry, files):
        parts += [
            "Presets:\n",
            table(("name", "values"), presets),
        ]
    for cls in _classes(registry):
        parts.append(f"## {cls.name}\n")
        if key in ("estimator", "objective"):
            parts.append(f"[{escape(cls.name)} in full](../{key}s/{cls.name}.md)\n")
        else:
            parts.append(docstring(cls))
        # The values of a member's own file beat the defaults of the class.
        found = parameters(cls, files.member_values(key, cls.name))
        parts.append(keys_table(f"{key}.", found))
    return "\n".join(parts)


def _presets(key: str, registry: Registry[Any], files: ConfigGroups) -> list[list[str]]:
    rows = []
    for name in files.members(key):
        if name not in registry:
            values = files.member_values(key, name)
            shown = ", ".join(f"{k}={v}" for k, v in values.items())
            rows.append([code(name), code(shown)])
    return rows


# Metrics


def metrics_page() -> str:
    """Return the page of all metrics and columns."""
    from advsweep.report.data.metrics import read_catalogue

    parts = [
        "# Metrics and columns\n",
        "Every metric has the same definition on every backend. Words in capitals stand for "
        "numbers or names. *Better* says which values reports mark as best. "
        "[What is recorded](../diagnostics.md) explains the less common ones; "
        "[Columns](../columns.md) has the windows (`@end`, `@first100`) and filters "
        "(`[level=3]`) that any column takes.\n",
    ]
    for subject, metrics in read_catalogue().items():
        rows = [
            [
                code(metric.name),
                escape(metric.unit),
                "" if metric.better.value == "neither" else metric.better.value,
                escape(metric.paper),
                escape(metric.meaning),
            ]
            for metric in metrics
        ]
        header = ("metric", "unit", "better", "source", "what it is")
        parts += [f"## {subject}\n", stacked("keys metrics", table(header, rows))]
    return "\n".join(parts)


# The store


def store_page() -> str:
    """Return the schema of the store."""
    from advsweep.store.tables import METADATA

    parts = [
        "# Schema of the store\n",
        "A store is an SQLite file or a PostgreSQL database. The schema may change between "
        "releases, with a migration (`advsweep db upgrade`); the "
        "[Python API](python.md) hides such changes. Times are in UTC. Arrays are little-endian "
        "bytes in the order of the problem set.\n",
    ]
    for entity in METADATA.sorted_tables:
        rows = []
        for column in entity.columns:
            keys = ["primary key"] if column.primary_key else []
            keys += [f"→ `{key.target_fullname}`" for key in column.foreign_keys]
            keys += ["unique"] if column.unique else []
            kind = _sql_type(column.type)
            rows.append(
                [code(column.name), kind, "yes" if column.nullable else "", ", ".join(keys)]
            )
        parts.append(f"## {entity.name}\n")
        parts.append(prose(entity.info["about"].splitlines()))
        parts.append(table(("column", "type", "may be null", "key"), rows))
    return "\n".join(parts)


def _sql_type(kind: Any) -> str:
    dtypes = {"<u4": "array of uint32", "<f8": "array of float64", "<f4": "array of float32"}
    return dtypes.get(getattr(kind, "dtype", ""), escape(type(kind).__name__))


# Python


def python_page() -> str:
    """Return the page of the Python API, from its docstrings."""
    parts = [
        "# Python API\n",
        "[Python](../python.md) and "
        "[Using an estimator elsewhere](../library.md) show these at work.\n",
    ]
    for name, title in _API.items():
        module = importlib.import_module(name)
        parts.append(f"## {title}: `{name}`\n")
        for thing in _public(module):
            parts.append(_documented(thing, getattr(module, thing)))
    for name, title in _SOURCES.items():
        parts += [f"## {title}: `{name}`\n", _documented_source(name)]
    return "\n".join(parts)


def _public(module: Any) -> list[str]:
    own = [
        name
        for name, each in vars(module).items()
        if inspect.isclass(each) and each.__module__ == module.__name__ and name[0] != "_"
    ]
    names = getattr(module, "__all__", own)
    return [name for name in names if not isinstance(getattr(module, name), (str, dict))]


def _documented(name: str, thing: Any) -> str:
    if inspect.ismodule(thing):  # the packages `advsweep.report` and `advsweep.sweep` are callable
        module = {"report": "advsweep.report.api", "sweep": "advsweep.api"}[name]
        thing = getattr(importlib.import_module(module), name)
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return f"### {name}\n\n{docstring(type(thing))}"
    signature = f"{name}{_signature(thing)}"
    parts = [f"### {name}\n", f"```python\n{signature}\n```\n", docstring(thing)]
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        for method, function in vars(thing).items():
            if method[0] != "_" and inspect.isfunction(function) and function.__doc__:
                lines = inspect.cleandoc(function.__doc__).splitlines()
                parts += [f"**`{name}.{method}{_signature(function)}`**\n", prose(lines)]
    return "\n".join(parts)


def _documented_source(name: str) -> str:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    parts = []
    for node in ast.parse(Path(spec.origin).read_text("utf-8")).body:
        if not isinstance(node, ast.ClassDef) or node.name[0] == "_":
            continue
        methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
        init = next((each for each in methods if each.name == "__init__"), None)
        given = "" if init is None else ast.unparse(init.args).removeprefix("self, ")
        parts += [f"### {node.name}\n", f"```python\n{node.name}({given})\n```\n"]
        parts.append(prose((ast.get_docstring(node) or "").splitlines()))
    return "\n".join(parts)


def _signature(thing: Any) -> str:
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""
    if dataclasses.is_dataclass(thing):
        text = text.replace(" -> None", "")
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    return text if "<" not in text else "(...)"
