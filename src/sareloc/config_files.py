"""Config dataclasses: their options are checked by their types, documented below their fields, and read from TOML.

A config is a frozen dataclass whose fields are numbers, texts, choices (Literal), paths, tuples of these, or another
config, each with a docstring below it.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import json
import math
import textwrap
import tomllib
import warnings
from collections.abc import Collection, Iterable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from sareloc.errors import ArgumentError
from sareloc.files import read_regular

Config = TypeVar("Config")

LARGEST_BYTES = 1_000_000
TYPE_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}


def check_options(config: Any) -> None:
    """Raise ArgumentError if an option of a config has a value of another type, or a number that is negative or not
    finite."""
    for field in fields(config):
        value = getattr(config, field.name)
        _check_value(type(config), field.name, value)
        if isinstance(value, int | float) and value < 0:
            raise ArgumentError(f"{field.name} must not be negative, found {value}")


def read_options(path: Path, config: type) -> dict[str, Any]:
    """The options that a TOML file sets, for `config(**options)`.

    Args:
        path: the file.
        config: the dataclass of the options; a field that is a dataclass itself is a table of the file.

    Raises:
        ArgumentError: if the file is not TOML, if an option is unknown, or if a value has the wrong type.
    """
    try:
        options = tomllib.loads(read_regular(path, LARGEST_BYTES).decode())
    except (ValueError, RecursionError) as error:  # the former: TOMLDecodeError or UnicodeDecodeError
        raise ArgumentError(f"{path} is not a TOML file: {error}") from error
    try:
        return _from_toml(options, config)
    except ArgumentError as error:
        raise ArgumentError(f"{path}: {error}") from None


def _from_toml(options: dict[str, Any], config: type) -> dict[str, Any]:
    known, found = _types(config), {}
    for name, value in options.items():
        if name not in known:
            raise ArgumentError(f"unknown option {name!r}{_nearest(name, known)}: known are {', '.join(known)}")
        table = next((one for one in known[name] if is_dataclass(one)), None)
        if isinstance(value, dict) and isinstance(table, type):
            value = table(**_from_toml(value, table))
        elif isinstance(value, list):
            value = tuple(value)
        if isinstance(value, str | tuple) and any(_is_path(one) for one in known[name]):
            value = Path(value) if isinstance(value, str) else tuple(map(Path, value))
        _check_value(config, name, value)
        found[name] = value
    return found


def options_text(config: Any, title: str, *, defaults: bool = False) -> str:
    """A TOML file with every option of a config, its documentation and its value.

    Args:
        config: a config dataclass.
        title: the first line of the file, written as a comment.
        defaults: write values that equal the default too; default: as comments (`#lr = 0.001`).
    """
    kind: type = type(config)
    lines = [
        f"# {title}",
        '# A line such as "#option = value" shows a default: remove the "#" to set the option.',
        "# The command line takes precedence over this file.",
    ]
    docs = option_docs(kind)
    for field in fields(config):
        value = getattr(config, field.name)
        lines += ["", *_wrapped(docs[field.name]), *_wrapped(_choices(kind, field.name))]
        if value is None:
            lines.append(f"#{field.name} =  # not set")
        else:
            commented = "" if defaults or value != field.default else "#"
            lines.append(commented + toml_line(field.name, value))
    return "\n".join(lines) + "\n"


def merge_options(config: Config, options: dict[str, Any], *, records: Collection[str] = ()) -> Config:
    """The config with options that were given as keyword arguments of a function, as until version 0.1.

    Args:
        config: a config dataclass.
        options: the keyword arguments.
        records: names of arguments that are records of several options.

    Raises:
        TypeError: for an argument that is not an option.
    """
    if not options:
        return config
    config_type: type = type(config)
    kind, known = config_type.__name__, [*records, *_types(config_type)]
    for name in options:
        if name not in known:
            raise TypeError(f"unexpected argument {name!r}: the options of {kind} are {', '.join(known)}")
    given = ", ".join(f"{name}=..." for name in options)
    warnings.warn(
        f"{given} as arguments will end with the next version: use config={kind}(...)", DeprecationWarning, stacklevel=3
    )
    parts = [vars(options[name]) for name in records if options.get(name) is not None]
    plain = {name: value for name, value in options.items() if name not in records}
    merged: Any = config
    found: Config = replace(merged, **{name: value for part in (*parts, plain) for name, value in part.items()})
    return found


def toml_line(name: str, value: Any) -> str:
    """`name = value` in TOML."""
    return f"{name} = {json.dumps(value, ensure_ascii=False, default=str)}"


@functools.cache
def option_docs(config: type) -> dict[str, str]:
    """The documentation of every option, one paragraph each: the docstring below its field."""
    docs = {}
    for owner in reversed([one for one in config.__mro__ if is_dataclass(one)]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef)
        for field, after in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                assert isinstance(after, ast.Expr), field.target.id
                assert isinstance(after.value, ast.Constant), field.target.id
                docs[field.target.id] = " ".join(str(after.value.value).split())
    return docs


@functools.cache
def _types(config: type) -> dict[str, tuple[Any, ...]]:
    """For every option its alternatives: types, NoneType included, tuples, or the values of a Literal."""
    hints = get_type_hints(config)
    return {field.name: tuple(_alternatives(hints[field.name])) for field in fields(config)}


def _alternatives(hint: Any) -> Iterable[Any]:
    if get_origin(hint) is tuple or not get_args(hint):
        return (hint,)
    if get_origin(hint) is Literal:
        return get_args(hint)
    return (one for part in get_args(hint) for one in _alternatives(part))


def _is_path(kind: Any) -> bool:
    return kind is Path or (get_origin(kind) is tuple and get_args(kind)[0] is Path)


def _check_value(config: type, name: str, value: Any) -> None:
    """Raises ArgumentError if the option cannot have this value, whatever the others are."""
    allowed = _types(config)[name]
    choices = [one for one in allowed if isinstance(one, str)]
    if (value is None and NoneType in allowed) or (choices and value in choices):
        return
    if choices:
        raise ArgumentError(f"{name} must be one of {', '.join(choices)}; found {value!r}")
    several = next((get_args(one)[0] for one in allowed if get_origin(one) is tuple), None)
    if several is not None and not isinstance(value, tuple):
        raise ArgumentError(f"{name} must be a list, each of it {TYPE_NAMES[several]}; found {value!r}")
    kinds = [one for one in allowed if isinstance(one, type)] if several is None else [several]
    for one in (value,) if several is None else value:
        _check_one(name, one, kinds)


def _check_one(name: str, value: Any, kinds: list[type]) -> None:
    expected = next((TYPE_NAMES[kind] for kind in kinds if kind in TYPE_NAMES), "a table of options")
    number = float in kinds and type(value) in (int, float)
    # a subclass of int is another type here: true is not 1
    if not number and not any(type(value) is kind or (kind is not int and isinstance(value, kind)) for kind in kinds):
        raise ArgumentError(f"{name} must be {expected}, found {value!r}")
    if isinstance(value, int | float) and not math.isfinite(value):
        raise ArgumentError(f"{name} must be a finite number, found {value}")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.replace("-", "_"), list(known), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _choices(config: type, name: str) -> str:
    choices = [one for one in _types(config)[name] if isinstance(one, str)]
    return f"One of: {', '.join(choices)}." if choices else ""


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 118, initial_indent="# ", subsequent_indent="# ")
