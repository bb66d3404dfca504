"""Hashes of the material of a run."""

from __future__ import annotations

import pytest

from advsweep.backends.identity import hash_json, hash_settings, hashes_of, revisions_of
from advsweep.components import SOURCE
from advsweep.sources import SourceCode

PLAIN = {"estimator": {"name": "grpo", "revision": 1}, "steps": 3}
SOURCE_OF_MINE = SourceCode.of({"mine.py": "0" * 64})
PLUGIN = {"estimator": {"name": "mine", "revision": 1, SOURCE: SOURCE_OF_MINE.digest}, "steps": 3}


def test_a_hash_is_of_the_json_text_with_sorted_keys() -> None:
    # printf '{"a": 2, "b": 1}' | sha256sum
    digest = "21501dbaf73f5223934d22283f01caff4132bc1de4a9550c1ed0dffeb397a323"
    assert hash_json({"b": 1, "a": 2}) == digest


def test_the_seed_is_in_the_identity_and_not_in_the_hash_of_replicates() -> None:
    settings = hash_settings(PLAIN, is_final=True)
    first, second = hashes_of(settings, 0), hashes_of(settings, 1)
    assert settings.config_hash == hash_json(PLAIN)
    assert first.identity == hash_json({**PLAIN, "seed": 0})
    assert first.identity != second.identity
    assert first.definition == first.identity


def test_the_definition_leaves_sources_out() -> None:
    settings = hash_settings(PLUGIN, is_final=True)
    assert settings.sources["estimator"].name == "mine"
    found = hashes_of(settings, 0)
    bare = {"estimator": {"name": "mine", "revision": 1}, "steps": 3, "seed": 0}
    assert found.definition == hash_json(bare)
    assert found.identity == hash_json({**PLUGIN, "seed": 0})


@pytest.mark.parametrize("material", [PLAIN, PLUGIN])
def test_hashes_with_absent_data_are_marked(material: dict[str, object]) -> None:
    final, open_ended = (hash_settings(material, is_final=final) for final in (True, False))
    assert open_ended.config_hash == f"?{final.config_hash}"
    for digest, marked in zip(hashes_of(final, 0), hashes_of(open_ended, 0), strict=True):
        assert marked == f"?{digest}"


@pytest.mark.parametrize(
    ("material", "revisions"),
    [
        (PLAIN, {}),
        ({"backend": {"name": "tiny", "revision": 2}}, {"backend": 2}),
        ({"estimator": {"name": "a", "base": {"name": "b", "revision": 3}}}, {"estimator.base": 3}),
        ({"task": {"name": "a", "revision": 2, "parts": [{"revision": 4}, 1]}},
         {"task": 2, "task.parts": 4}),
    ],
)  # fmt: skip
def test_revisions_above_1_by_key(material: dict[str, object], revisions: dict[str, int]) -> None:
    assert revisions_of(material) == revisions
