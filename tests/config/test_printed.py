"""PublishedTime times in sweep files: which runs have them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from advsweep.config.overrides import parse_overrides
from advsweep.config.space import PublishedTime
from advsweep.config.sweep_file import read_published, read_space
from advsweep.errors import ConfigError

TIME = {"gpu_hours": 20, "steps": 500, "source": "Table 7"}
OTHER = {"gpu_hours": 3.5, "steps": 100, "source": "Table 4"}
NODE = {
    "common": {"printed": TIME},
    "blocks": [
        {"estimator": ["grpo", "fade"]},
        {"estimator": "aapo", "printed": OTHER},
    ],
}


def printed(*overrides: str) -> list[PublishedTime | None]:
    space = read_space(NODE, parse_overrides(overrides))
    return [block.published for block in space.blocks]


def test_a_block_has_its_own_time_or_the_common_one() -> None:
    assert printed() == [PublishedTime(**TIME), PublishedTime(**OTHER)]
    assert [len(list(block.assignments())) for block in read_space(NODE, []).blocks] == [2, 1]


@pytest.mark.parametrize("override", ["seed=0,1", "steps=9", "estimator=grpo", "task.data=here"])
def test_it_stays_where_an_override_keeps_the_pace(override: str) -> None:
    assert printed(override) == [PublishedTime(**TIME), PublishedTime(**OTHER)]


@pytest.mark.parametrize("override", ["model.path=tiny", "backend=fake", "group_size=4"])
def test_it_is_of_no_use_for_another_kind_of_run(override: str) -> None:
    assert printed(override) == [None, None]


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (12, r"^at: expected a mapping of gpu_hours, steps, source, got 12$"),
        ({"gpu_hours": 12, "steps": 3}, r"^at: expected .* which lacks source$"),
        ({**TIME, "gpu_hours": 0}, r"^at\.gpu_hours: expected > 0, got 0$"),
        ({**TIME, "steps": "many"}, r"^at\.steps: expected an integer, got 'many'$"),
        ({**TIME, "gpus": 8}, r"^at\.gpus: printed has no parameter 'gpus'"),
    ],
)
def test_what_does_not_fit_is_refused(node: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_published(node, "at")
