"""Values in a SQLite store that do not fit their columns: SQLite keeps any value in any column.

Reading does not check every value. When a command fails, this finds the value it failed on.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Double, Enum, Integer, LargeBinary, String
from sqlalchemy.engine import Connection
from sqlalchemy.types import TypeDecorator

from advsweep.printable import printable_line
from advsweep.store.tables import METADATA, UtcDateTime

LISTS = {"problem_sets.problems", "evaluation_samples.answers"}
"""The columns of JSON that hold lists; the others hold mappings."""


def find_damage(connection: Connection) -> str | None:
    """Return the first value that does not fit its column, with its place; None if all fit."""
    for table in METADATA.sorted_tables:
        for column in table.columns:
            wrong = f"NOT COALESCE({_fits(column)}, 0)"
            if column.nullable:
                wrong = f'"{column.name}" IS NOT NULL AND {wrong}'
            query = f'SELECT "{column.name}" FROM {table.name} WHERE {wrong} LIMIT 1'
            row = connection.exec_driver_sql(query).first()
            if row is not None:
                value = printable_line(repr(row[0])[:40])
                return f"a row of {table.name} has {value} in the column {column.name}"
        broken = connection.exec_driver_sql(f"PRAGMA foreign_key_check({table.name})").first()
        if broken is not None:
            return f"a row of {table.name} refers to one of {broken[2]} that does not exist"
    return None


def _fits(column: Column[object]) -> str:
    """Return an SQL condition that is true of the values which fit the column."""
    name, kind = f'"{column.name}"', column.type
    if isinstance(kind, UtcDateTime):
        return f"typeof({name}) = 'text' AND datetime({name}) IS NOT NULL"
    if isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    if isinstance(kind, JSON):
        expected = "array" if f"{column.table.name}.{column.name}" in LISTS else "object"
        # A nullable document is written as JSON's null.
        known = f"json_type({name}) IN ('{expected}', 'null')"
        return f"CASE WHEN json_valid({name}) THEN {known} END"
    if isinstance(kind, Enum):
        return f"{name} IN ({str(list(kind.enums))[1:-1]})"
    if isinstance(kind, Boolean | BigInteger):
        return f"typeof({name}) = 'integer'"
    if isinstance(kind, Integer):
        return f"typeof({name}) = 'integer' AND {name} BETWEEN -{2**31} AND {2**31 - 1}"
    if isinstance(kind, Double):
        return f"typeof({name}) IN ('real', 'integer')"
    if isinstance(kind, LargeBinary):
        return f"typeof({name}) = 'blob'"
    assert isinstance(kind, String), kind
    fits = f"typeof({name}) = 'text' AND instr({name}, char(0)) = 0"
    return f"{fits} AND length({name}) <= {kind.length}" if kind.length else fits
