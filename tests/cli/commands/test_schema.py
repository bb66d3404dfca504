"""`advsweep schema`: every key that `advsweep keys` lists, for editors."""

from __future__ import annotations

import json

import pytest

from advsweep.sweep.registry import GROUPS

JSON = ["--format", "json"]


@pytest.fixture
def printed(in_process):
    def called(*arguments):
        code, out, err = in_process(*arguments)
        assert (code, err) == (0, "")
        return json.loads(out)

    return called


def test_has_every_key_that_keys_lists_with_default_and_meaning(printed):
    definitions = printed("schema")["$defs"]
    block = definitions["block"]["properties"]
    # Those of all other components are in tests/sweep/test_json_schema.py.
    listed = [row for part in ([], ["optimizer"]) for row in printed("keys", *part, *JSON)]
    for row in listed:
        assert row["key"] in block
        if row["key"] in GROUPS:
            assert row["of"] in block_choices(definitions, row["key"])
            continue
        known = definitions[row["key"]]
        assert row["meaning"] in known["description"]
        if "default" in known:
            assert row["default"] in (known["default"], "null")


def block_choices(definitions, group):
    return definitions[f"swept-{group}"]["anyOf"][0]["enum"]


def test_files_of_config_folders_are_in_it(printed, tmp_path):
    (tmp_path / "estimator").mkdir()
    (tmp_path / "estimator" / "mine.yaml").write_text("name: fade\nh_star: 0.25\n")
    assert "mine" not in block_choices(printed("schema")["$defs"], "estimator")
    found = printed("schema", "--config-dir", str(tmp_path))["$defs"]
    assert "mine" in block_choices(found, "estimator")


def test_unknown_kinds_are_answered_with_the_nearest(refused):
    refused(["no kind of file", "did you mean 'estimator'?"], "schema", "estimators")
