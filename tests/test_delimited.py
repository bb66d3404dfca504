"""Delimited tables: the forms in which they come, and what is refused with its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.delimited import DELIMITERS, parse_table, read_table
from advsweep.errors import ConfigError

ROWS = [(2, {"name": "a", "value": "0.5"}), (3, {"name": "b", "value": ""})]


def _read(text: str) -> tuple[tuple[str, ...], list[tuple[int, dict[str, str]]]]:
    table = parse_table(text, Path("t.csv"))
    return table.columns, list(table.rows())


@pytest.mark.parametrize("delimiter", DELIMITERS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_delimiters_and_line_ends(delimiter, end):
    text = end.join(["name,value", "a,0.5", "b,", ""]).replace(",", delimiter)
    assert _read(text) == (("name", "value"), ROWS)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("name,value,\na,0.5,\nb,,\n", ROWS),  # a delimiter at the end of each line
        ("name,value\na,0.5,\nb,,\n", ROWS),  # of each line but the header
        ("name , value\na,0.5\nb,", ROWS),
        ("\n\nname,value\na,1\n", [(4, {"name": "a", "value": "1"})]),
        ("sep=;\nname;value\na,b;1\n", [(3, {"name": "a,b", "value": "1"})]),
        ("# a comment\nname,value\n# another\na,1\n", [(4, {"name": "a", "value": "1"})]),
        ("# step,reward\n1,0.5\n", [(2, {"step": "1", "reward": "0.5"})]),  # numpy's savetxt
        ('name,value\n"a\nb",1\nc,2\n', [(2, {"name": "a\nb", "value": "1"}),
                                          (4, {"name": "c", "value": "2"})]),
        ("name,value\n#1,2\n", [(2, {"name": "#1", "value": "2"})]),
        ('name;"value, in %"\na;1\n', [(2, {"name": "a", "value, in %": "1"})]),
        ("a\u2028b,value\n1,2\n", [(2, {"a\u2028b": "1", "value": "2"})]),
    ],
)  # fmt: skip
def test_forms_of_tables(text, rows):
    assert _read(text)[1] == rows


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name,value\na,1\nb\n", "line 3: expected 2 cells as in the header, got 1: b; the line"),
        ("name,value\na,1,2\n", "line 2: expected 2 cells as in the header, got 3: a,1,2; a text"),
        ("name,value,name\n", "line 1: expected each column once, got 'name' twice"),
        ('name,value\na,"1\n', "line 2: expected a table, got: unexpected end of data"),
        ("", "expected a table with a header, got an empty file"),
        ("\n \n", "expected a table with a header, got an empty file"),
    ],
)
def test_what_cannot_be_right_is_refused_with_its_line(text, told):
    with pytest.raises(ConfigError) as error:
        _read(text)
    assert told in str(error.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings_of_unicode(tmp_path, encoding):
    file = tmp_path / "t.csv"
    text = "name,value\n\u00e9,1\n"
    file.write_bytes(text.encode(encoding))
    rows = [(2, {"name": "\u00e9", "value": "1"})]
    assert list(read_table(file, most_bytes=1000).rows()) == rows
    file.write_bytes(gzip.compress(text.encode(encoding), mtime=0))
    assert list(read_table(file, most_bytes=1000).rows()) == rows


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("name\n\u00e9\n".encode("latin-1"), "line 2: expected text in UTF-8 or UTF-16, got the"),
        (b"PK\x03\x04rest", "an Excel workbook"),
        (b"PAR1rest", "a parquet table: save it as CSV"),
        (b"\x80\x04\x95", "a pickle, which is not read"),
        (
            gzip.compress(b"name,value\na,1\n" * 9, mtime=0)[:-9],
            "a whole gzip file, got one that is cut",
        ),
        (gzip.compress(b"0" * 5000, mtime=0), "at most 1,000 bytes of text, got more"),
        (b"name,value\na,\0\n", "line 2: expected text, got a zero byte"),
    ],
)
def test_what_is_no_text_is_named(tmp_path, data, told):
    file = tmp_path / "t.csv"
    file.write_bytes(data)
    with pytest.raises(ConfigError) as error:
        read_table(file, most_bytes=1000)
    assert told in str(error.value)
    assert "t.csv" in str(error.value)


def test_columns_that_nobody_reads_are_refused_with_the_nearest():
    table = parse_table("name,std\na,1\n", Path("t.csv"))
    with pytest.raises(ConfigError, match=r"line 1: .* got 'std'; did you mean 'spread'"):
        table.check_columns(known=("name", "spread"), others={"std": "spread"})
    with pytest.raises(ConfigError, match=r"got 'std'; known: name, size"):
        table.check_columns(known=("name", "size"))
    with pytest.raises(ConfigError, match=r"line 1: .* got none called value"):
        table.check_columns(known=("name", "std", "value"), needed=("name", "value"))


cell = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8)


@given(st.lists(st.tuples(cell, cell), max_size=5), st.sampled_from(DELIMITERS))
def test_what_the_csv_module_writes_is_read(rows, delimiter):
    import csv
    import io

    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerows([("name", "value"), *rows])
    read = [tuple(row.values()) for _, row in _read(stream.getvalue())[1]]
    assert read == [row for row in rows if "".join(row).strip()]
