"""Our trainers of verl's V1, on real batches in its transfer queue."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("verl", minversion="0.9.1", reason="verl is absent: make test-verl")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


from advsweep.errors import BatchError, CheckpointError, ConfigError  # noqa: E402
from advsweep.estimators import GroupBatch, build_estimator  # noqa: E402
from tests.integrations.verl.conftest import MakeTrainer, PutRows, Row  # noqa: E402

ReadAdvantages = Callable[[Any], list[list[float]]]

SEPARATE = [
    "trainer.v1.trainer_mode=advsweep_separate_async",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
]
MODES = {
    "sync": ["trainer.v1.trainer_mode=advsweep_sync"],
    "colocate_async": ["trainer.v1.trainer_mode=advsweep_colocate_async"],
    "separate_async": SEPARATE,
}
MIXED = [[1.0, 0, 0, 0], [1.0, 1, 1, 1], [1.0, 0, 1]]
PADDING = Row("pad" + "0f" * 16, 0, 0, 0.0, [0], padding=True)


def single(rewards: list[list[float]], **values: Any) -> list[Row]:
    """One output for each reward, of one token more for each rollout; a group per list."""
    return [
        Row(f"prompt{group}", session, 0, reward, [1] * (session + 1), **values)
        for group, column in enumerate(rewards)
        for session, reward in enumerate(column)
    ]


def table(rewards: list[list[float]], fill: float = 0.0) -> Tensor:
    width = max(map(len, rewards))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rewards])


def step(trainer: Any, batch: Any) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    trainer._compute_advantage(batch, metrics)
    return metrics


@pytest.mark.parametrize("mode", MODES)
def test_a_step_writes_advantages_into_the_queue(
    mode: str, make_trainer: MakeTrainer, put_rows: PutRows, advantages_of: ReadAdvantages
) -> None:
    options = ["+algorithm.advsweep.name=asym_grpo", "+algorithm.advsweep.delta=0.5"]
    trainer = make_trainer(*options, *MODES[mode])
    # Balancing moves rows about, and fills up with padding.
    rows = [*single(MIXED), PADDING]
    rows = [rows[place] for place in (8, 3, 11, 0, 10, 5, 1, 7, 2, 4, 9, 6)]
    batch = put_rows(rows)
    metrics = step(trainer, batch)
    batch_of_groups = GroupBatch(rewards=table(MIXED), mask=table(MIXED, fill=2) < 2)
    expected = build_estimator("asym_grpo", delta=0.5)(batch_of_groups)
    for row, advantages in zip(rows, advantages_of(batch), strict=True):
        one = 0.0 if row.padding else expected[int(row.uid[6:]), row.session].item()
        assert advantages == pytest.approx([one] * len(row.mask), abs=1e-6)
    assert metrics["collapse/acr"] == pytest.approx(1 / 3)
    # Of the three groups, one has a single success, one two and one four.
    assert metrics["solved/1"] == pytest.approx(1 / 3)
    assert metrics["mass/success"] > 0
    assert "reward/mean" not in metrics


# One success whose agent gave three outputs, and three failures.
SESSIONS = [Row("a", 0, output, 1.0, [1, 1]) for output in range(3)]
SESSIONS += [Row("a", session, 0, 0.0, [1, 1]) for session in (1, 2, 3)]


def test_a_session_of_several_outputs_counts_once_as_in_verls_grpo(
    make_trainer: MakeTrainer, put_rows: PutRows, advantages_of: ReadAdvantages
) -> None:
    grpo = ["+algorithm.advsweep.name=grpo", "+algorithm.advsweep.preset=verl"]

    def advantages(*options: str) -> list[float]:
        trainer = make_trainer(*grpo, *options)
        batch = put_rows(SESSIONS)
        step(trainer, batch)
        rows = advantages_of(batch)
        assert all(row[0] == row[1] for row in rows)
        return [row[0] for row in rows]

    ours = advantages()
    assert ours == pytest.approx([1.5] * 3 + [-0.5] * 3, abs=1e-5)
    theirs = advantages("trainer.v1.trainer_mode=sync", "algorithm.adv_estimator=grpo")
    assert ours == pytest.approx(theirs, abs=1e-6)
    # The function alone cannot see sessions: in verl's own trainer each output is a rollout.
    alone = advantages("trainer.v1.trainer_mode=sync")
    assert alone == pytest.approx([0.912871] * 3 + [-0.912871] * 3, abs=1e-5)


def test_fade_gets_the_entropy_of_the_tokens_that_the_policy_generated(
    make_trainer: MakeTrainer, put_rows: PutRows, advantages_of: ReadAdvantages
) -> None:
    trainer = make_trainer("+algorithm.advsweep.name=fade", "+algorithm.advsweep.h_star=0.2")
    direct = build_estimator("fade", h_star=0.2)
    for number, log_prob in enumerate([-0.25, -0.125], start=1):
        trainer.global_steps = number
        rows = single(MIXED[:2], log_prob=log_prob)
        # A tool wrote the middle; two outputs are one rollout.
        rows[3] = rows[3]._replace(mask=[1, 0, 1])
        rows.append(rows[3]._replace(output=1, mask=[1], log_prob=4 * log_prob))
        batch = put_rows([*rows, PADDING._replace(log_prob=-9.0)])
        metrics = step(trainer, batch)
        # Three tokens of that rollout: twice the common one, once four times as much.
        entropy = torch.full((2, 4), -log_prob)
        entropy[0, 3] *= (2 + 4) / 3
        expected = direct.compute(GroupBatch(rewards=table(MIXED[:2]), token_entropy=entropy))
        for name, value in expected.info.items():
            assert metrics[f"estimator/{name}"] == pytest.approx(value, abs=1e-6)
        first = [row[0] for row in advantages_of(batch)]
        assert first[:8] == pytest.approx(expected.values.flatten().tolist(), abs=1e-6)
        assert first[8:] == [first[3], 0]
    assert trainer.estimator.state_dict() == pytest.approx(direct.state_dict(), abs=1e-6)


def test_the_kl_of_the_tokens_that_the_policy_generated_is_in_the_reward(
    make_trainer: MakeTrainer, put_rows: PutRows, advantages_of: ReadAdvantages
) -> None:
    trainer = make_trainer("+algorithm.advsweep.name=kl_in_reward", "+algorithm.advsweep.beta=0.5")
    rows = [Row("a", 0, 0, 1.0, [1, 0, 1], log_prob=-0.5), Row("a", 1, 0, 0.0, [1, 1])]
    batch = put_rows([*rows, PADDING])
    step(trainer, batch)
    # Rewards of 1 + 0.5 · 2 · 0.25 and 0 + 0.5 · 2 · 0.125.
    assert advantages_of(batch)[:2] == [[1.125, 0, 1.125], [-1.125, -1.125]]


def test_advantages_per_token_follow_the_entropies_past_what_a_tool_wrote(
    make_trainer: MakeTrainer, put_rows: PutRows, advantages_of: ReadAdvantages
) -> None:
    spec = ["+algorithm.advsweep.name=entropy_shaped", "+algorithm.advsweep.base=dr_grpo"]
    rows = [
        Row("a", 0, 0, 1.0, [1, 0, 1], entropy=1.0),
        Row("a", 0, 1, 1.0, [1], entropy=0.1),
        Row("a", 1, 0, 0.0, [0, 1], entropy=0.1),
    ]
    batch = put_rows(rows)
    metrics = step(make_trainer(*spec), batch)
    # A is 1/2 and -1/2; the bonus is 0.4 H, at most |A|/2 = 1/4.
    expected = [[0.75, 0, 0.75], [0.54], [0, -0.46]]
    for row, advantages in zip(expected, advantages_of(batch), strict=True):
        assert advantages == pytest.approx(row, abs=1e-6)
    assert metrics["mass/failure"] == pytest.approx(0.46 / 2, abs=1e-6)


def test_prompts_are_known_again_in_the_next_epoch(
    make_trainer: MakeTrainer, put_rows: PutRows
) -> None:
    trainer = make_trainer("+algorithm.advsweep=dcpo")

    def epoch(uids: str) -> dict[str, Any]:
        rows = [
            Row(uid, session, 0, float(session == 0), [1, 1], prompt=f"question {place}")
            for place, uid in enumerate(uids)
            for session in range(3)
        ]
        step(trainer, put_rows([*rows, PADDING]))
        state: dict[str, Any] = trainer.estimator.state_dict()
        return state

    first = json.loads(json.dumps(epoch("ab")))
    second = epoch("cd")
    assert first != second
    key = next(name for name, value in first.items() if isinstance(value, dict))
    assert len(first[key]) == 2
    assert first[key].keys() == second[key].keys()


MEMORIES = {
    "fade": ["+algorithm.advsweep.name=fade", "+algorithm.advsweep.ema=slow"],
    "ha_dw": ["+algorithm.advsweep=ha_dw"],
    "avspo": ["+algorithm.advsweep=avspo"],
    "dcpo": ["+algorithm.advsweep=dcpo"],
}
# Some groups have collapsed, where AVSPO's memory matters.
STEPS = [
    [[1.0, 0, 0, 0], [0.0, 0, 0, 0]],
    [[0.0, 1, 1, 1], [1.0, 1, 1, 1]],
    [[1.0, 1, 0, 0], [0.0, 0, 0, 0]],
    [[0.0, 0, 0, 1], [1.0, 0, 1, 1]],
]


@pytest.mark.parametrize("name", MEMORIES)
def test_memory_survives_a_checkpoint(
    name: str, make_trainer: MakeTrainer, put_rows: PutRows, advantages_of: ReadAdvantages
) -> None:
    def train(trainer: Any, steps: range) -> list[list[list[float]]]:
        written = []
        for number in steps:
            trainer.global_steps = number
            rows = single(STEPS[number - 1], log_prob=-0.5 / number, entropy=0.7 / number)
            batch = put_rows(rows)
            step(trainer, batch)
            written.append(advantages_of(batch))
        return written

    whole = train(make_trainer(*MEMORIES[name]), range(1, 5))
    first = make_trainer(*MEMORIES[name])
    begun = train(first, range(1, 3))
    first._save_checkpoint()
    second = make_trainer(*MEMORIES[name])
    second._load_checkpoint()
    assert second.global_steps == 2
    assert second.estimator.state_dict() == first.estimator.state_dict()
    assert begun + train(second, range(3, 5)) == whole
    # A memory that begins afresh would be another.
    fresh = make_trainer(*MEMORIES[name])
    train(fresh, range(3, 5))
    assert fresh.estimator.state_dict() != second.estimator.state_dict()


def test_a_checkpoint_is_verls_with_one_file_more(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    fade = "+algorithm.advsweep=fade"
    trainer = make_trainer(fade)
    trainer.global_steps = 3
    trainer._save_checkpoint()
    folder = tmp_path / "checkpoints" / "global_step_3"
    assert sorted(path.name for path in folder.iterdir()) == ["actor", "data.pt", "estimator.json"]
    assert trainer.actor_rollout_wg.saved == [str(folder / "actor")]
    assert (folder.parent / "latest_checkpointed_iteration.txt").read_text() == "3"

    chosen = make_trainer(
        fade, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder}"
    )
    chosen._load_checkpoint()
    assert chosen.global_steps == 3
    assert chosen.actor_rollout_wg.loaded == [str(folder / "actor")]
    fresh = make_trainer(fade, "trainer.resume_mode=disable")
    fresh._load_checkpoint()
    assert (fresh.global_steps, fresh.actor_rollout_wg.loaded) == (0, [])


@pytest.fixture
def saved(make_trainer: MakeTrainer, tmp_path: Path) -> Path:
    """The file with FADE's memory in a checkpoint."""
    make_trainer("+algorithm.advsweep=fade")._save_checkpoint()
    return tmp_path / "checkpoints" / "global_step_1" / "estimator.json"


def test_the_memory_of_another_estimator_is_refused(saved: Path, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("+algorithm.advsweep=ha_dw")
    message = "memory of estimator 'ha_dw', got that of 'fade'; resume with"
    with pytest.raises(CheckpointError, match=message):
        trainer._load_checkpoint()
    saved.unlink()
    trainer._load_checkpoint()
    assert trainer.global_steps == 1


def test_a_checkpoint_of_verls_own_trainer_begins_a_memory_with_a_warning(
    saved: Path, make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    saved.unlink()
    with caplog.at_level(logging.WARNING):
        make_trainer("+algorithm.advsweep=rloo")._load_checkpoint()
        assert caplog.text == ""
        make_trainer("+algorithm.advsweep=fade")._load_checkpoint()
    assert "estimator.json: not found, so the memory of estimator 'fade' begins" in caplog.text


REFUSED = [
    (
        ["algorithm.adv_estimator=grpo", "+algorithm.advsweep=rloo"],
        ConfigError,
        r"trainer_mode=advsweep_sync expects advsweep, got grpo; set .*, or .*trainer_mode=sync",
    ),
    ([], ConfigError, r"algorithm\.advsweep: expected an estimator, got None"),
    (["+algorithm.advsweep=intuitor"], BatchError, "needs self_certainty; verl does not provide"),
    (["+algorithm.advsweep=gdpo"], BatchError, "needs reward_parts; verl does not provide"),
    (["+algorithm.advsweep=aapo"], BatchError, "needs ref_rewards; verl does not provide"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_what_cannot_train_is_refused_before_anything_starts(
    options: list[str], error: type[Exception], message: str, make_trainer: MakeTrainer
) -> None:
    with pytest.raises(error, match=message):
        make_trainer(*options)
