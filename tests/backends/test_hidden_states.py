"""What backends give to analyses: the states that predicted tokens, and weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from advsweep.backends.base import Run
from advsweep.diagnostics.weight_changes import weight_changes
from advsweep.errors import CheckpointError, ConfigError
from advsweep.estimators import GroupBatch
from advsweep.estimators.base import Estimator
from advsweep.estimators.group_stats import Groups

MakeRun = Callable[..., Run]


@dataclass(kw_only=True)
class Counting(Estimator):
    """Advantages are how many batches it has seen; keeps them."""

    name: ClassVar[str] = "counting"
    needs: ClassVar[frozenset[str]] = frozenset({"token_entropy", "token_entropy_exact"})
    stateful: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batches: list[GroupBatch] = []
        self.count = 0

    def __deepcopy__(self, memo: object) -> Counting:
        copied = Counting()
        copied.batches, copied.count = self.batches, self.count
        return copied

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Any) -> None:
        self.count = state["count"]

    def reset(self) -> None:
        self.count = 0

    def _advantages(self, groups: Groups, info: dict[str, float]) -> Tensor:
        self.batches.append(groups.batch)
        self.count += 1
        return torch.full_like(groups.rewards, float(self.count))


@pytest.fixture(params=["tiny", pytest.param("trl", marks=pytest.mark.slow)])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "trl":
        pytest.importorskip("trl", minversion="1.16")
    return str(request.param)


def test_states_are_those_that_predicted_the_tokens_and_weights_are_there(
    backend: str, small_run: MakeRun, train: Any, tmp_path: Path
) -> None:
    estimator = Counting()
    run = replace(small_run(backend), estimator=estimator)
    train(run, tmp_path)
    trained = estimator.batches[4]  # of step 5
    sampled = run.backend.sampled_tokens(run, tmp_path, 4, 8, advantages=True)
    drawn = estimator.batches[5]
    log_p = (sampled.hidden @ sampled.head.T / sampled.temperature).log_softmax(dim=1)
    lengths = torch.bincount(sampled.owner)

    def token_mean(values: Tensor) -> Tensor:
        sums = torch.zeros(len(lengths)).index_add(0, sampled.owner, values)
        return (sums / lengths).view(8, 6)

    # As the sampler has it, which keeps keys and values in another way.
    surprisal = -log_p.gather(1, sampled.tokens[:, None])[:, 0]
    torch.testing.assert_close(token_mean(surprisal), drawn.token_entropy, atol=1e-4, rtol=1e-4)
    entropy = token_mean(torch.special.entr(log_p.exp()).sum(dim=1))
    torch.testing.assert_close(entropy, drawn.token_entropy_exact, atol=1e-4, rtol=1e-4)
    assert sampled.outcomes.view(8, 6).tolist() == drawn.rewards.tolist()
    # The memory is that of the checkpoint, which had seen four batches.
    assert sampled.advantages is not None
    assert sampled.advantages.unique().tolist() == [5]
    # And its weights can be compared with those of the base.
    change = weight_changes(*(run.backend.weights(run, tmp_path, step) for step in (0, 4)))
    assert (change.tied, change.left_out) == (True, {})
    assert all(matrix.norm > 0 for matrix in change.matrices)
    if backend == "tiny":
        torch.testing.assert_close(drawn.token_entropy, trained.token_entropy)
        assert drawn.rewards.tolist() == trained.rewards.tolist()


@pytest.mark.parametrize("tied", [True, False])
def test_the_base_has_states_without_any_checkpoint(
    tied: bool, small_run: MakeRun, tmp_path: Path
) -> None:
    run = small_run("tiny", model={"tied_embeddings": tied})
    sampled = run.backend.sampled_tokens(run, tmp_path, 0, 3, advantages=False)
    weights = run.backend.weights(run, tmp_path, 0)
    name = "model.embed_tokens.weight" if tied else "lm_head.weight"
    assert sampled.head.tolist() == weights.rows(name, 0, 17).tolist()
    assert sampled.outcomes.shape == (3 * run.group_size,)
    assert sampled.advantages is None


def test_what_has_no_states_is_refused(small_run: MakeRun, tmp_path: Path) -> None:
    tiny = small_run("tiny")
    with pytest.raises(CheckpointError, match="no checkpoint of step 3"):
        tiny.backend.sampled_tokens(tiny, tmp_path, 3, 2, advantages=False)
    fake = small_run("fake")
    with pytest.raises(ConfigError, match="'fake' has no hidden states"):
        fake.backend.sampled_tokens(fake, tmp_path, 0, 2, advantages=False)
