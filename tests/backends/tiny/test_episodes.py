"""Episodes of several turns on the tiny model: sampling, what is told of tokens, and training."""

from dataclasses import replace

import pytest
import torch

from advsweep.backends.build import build_run
from advsweep.backends.randomness import Stream, torch_generator
from advsweep.backends.tiny.network import Network
from advsweep.backends.tiny.sampling import TinySampler, TokenSampling, sample
from advsweep.backends.tiny.tokens import decode
from advsweep.backends.tiny.turn_values import TurnStarts
from advsweep.backends.tiny.weights import flatten, initial_weights
from advsweep.backends.training_loop import Scores
from advsweep.errors import ConfigError
from advsweep.tasks import TASKS
from advsweep.tasks.base import Problem, Split
from advsweep.tasks.walk_episodes import CLOSED, MOVED
from tests.backends.batch_keeper import BatchKeeper

G = 6

PLAIN = {"steps": 4, "prompts_per_step": 6, "group_size": 4}


@pytest.fixture(scope="module")
def walks():
    return TASKS.build({"name": "walks", "held_out_per_level": 3, "train_per_level": 20})


@pytest.fixture
def weights(model, walks):
    generator = torch.Generator().manual_seed(1)
    return initial_weights(model, walks.vocabulary_size, generator)


@pytest.fixture
def prompts(walks):
    return [problem.prompt for problem in walks.problems(Split.HELD_OUT)]


def draw(weights, model, walks, texts, size=G, seed=0):
    how = TokenSampling(temperature=1.0, generator=torch.Generator().manual_seed(seed))
    return sample(Network.of(flatten(weights, model), model), walks, texts, size, how)


def test_the_environment_answers_every_turn_but_the_last(weights, model, walks, prompts):
    rollouts = draw(weights, model, walks, prompts)
    texts = decode(rollouts.tokens.numpy(), walks)
    transcript = walks.follow([prompt for prompt in prompts for _ in range(G)], texts)
    for row, text in enumerate(texts):
        turns = int(transcript.turns[row])
        length = int(rollouts.lengths[row])
        # A turn with the end mark is none that can be read.
        is_given_up = rollouts.tokens[row, length - 1] >= len(walks.alphabet)
        assert length == 2 * (turns + bool(is_given_up)) - 1
        places = rollouts.turns[row, :length].tolist()
        assert places == [turn for k in range(length) for turn in [k // 2 if k % 2 == 0 else -1]]
        assert set(text[1::2]) <= {MOVED, CLOSED}
        assert rollouts.truncated[row] == (turns == walks.max_turns and not is_given_up)
        assert (rollouts.turns[row, length:] == -1).all()
    assert rollouts.truncated.any()
    assert not rollouts.truncated.all()


def test_what_is_told_of_tokens_is_that_of_the_plain_forward_pass(
    weights, model, walks, prompts, plain_logits
):
    rollouts = draw(weights, model, walks, prompts[:4], 3)
    for row, length in enumerate(rollouts.lengths.tolist()):
        ids = [walks.alphabet.index(symbol) for symbol in prompts[row // 3]]
        tokens = torch.cat((torch.tensor(ids), rollouts.tokens[row, :length]))
        log_p = plain_logits(weights, model, tokens)[len(ids) - 1 : -1].log_softmax(-1)
        own = rollouts.mask[row, :length]
        expected = log_p.gather(1, rollouts.tokens[row, :length, None])[:, 0].where(own, 0.0)
        entropies = -(log_p.exp() * log_p).sum(-1).where(own, 0.0)
        torch.testing.assert_close(rollouts.log_probs[row, :length], expected, atol=2e-5, rtol=0)
        torch.testing.assert_close(rollouts.entropies[row, :length], entropies, atol=2e-5, rtol=0)
    assert rollouts.generated.tolist() == rollouts.mask.sum(dim=1).tolist()


def test_an_episode_is_continued_from_its_reply(weights, model, walks, prompts):
    first = draw(weights, model, walks, prompts[:2], 1)
    texts = decode(first.tokens.numpy(), walks)
    begun = [prompt + text[:4] for prompt, text in zip(prompts, texts, strict=False)]
    rest = draw(weights, model, walks, begun, 2)
    endings = decode(rest.tokens.numpy(), walks)
    owners = [prompts[0]] * 2 + [prompts[1]] * 2
    episodes = [texts[i // 2][:4] + ending for i, ending in enumerate(endings)]
    transcript = walks.follow(owners, episodes)
    # Two turns were made before.
    made = (rest.turns.amax(dim=1) + 1).numpy()
    ends = rest.tokens.gather(1, rest.lengths[:, None] - 1)[:, 0].numpy() >= len(walks.alphabet)
    assert (transcript.turns == made - ends + 2).all()


def test_an_evaluation_has_the_entropy_of_the_tokens_of_the_policy(weights, model, walks):
    problems = walks.problems(Split.HELD_OUT)[:2]
    flat = flatten(weights, model)
    found = TinySampler(flat, model, walks, flat).sample(problems, 8, temperature=1.0, seed=3)
    generator = torch_generator(3, Stream.EVALUATION)
    texts = [problem.prompt for problem in problems]
    how = TokenSampling(temperature=1.0, generator=generator)
    rollouts = sample(Network.of(flat, model), walks, texts, 8, how)
    own = rollouts.entropies[:8][rollouts.mask[:8]]
    assert found.token_entropy[0] == pytest.approx(own.mean().item(), rel=1e-5)
    assert found.kl_base[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["rloo", "gigpo", "turn_return", "entropy_shaped"])
def test_a_training_with_turns_goes_on_as_if_it_had_not_stopped(
    estimator, small_run, train, tmp_path
):
    run = small_run("tiny", task="walks", estimator=estimator, **PLAIN)
    whole = train(run, tmp_path / "whole")
    stopped = train(run, tmp_path / "stopped", stop_after=2)
    again = train(run, tmp_path / "stopped")
    assert list(stopped.points) == [1, 2]
    assert again.lasting[4] == whole.lasting[4]
    assert whole.lasting[4] != whole.lasting[3]


class Spy(BatchKeeper):
    """Reads the turns."""

    uses = frozenset({"turn_values", "turn_rewards"})


def test_beginnings_are_those_before_each_turn(walks):
    problems = [Problem("0/ab", "ab:", 0), Problem("0/ab", "ab:", 0), Problem("0/ac", "ac:", 0)]
    turns = torch.tensor([[0, -1, 1, -1, 2], [0, -1, 1, -1, -1], [0, -1, -1, -1, -1]])
    starts = TurnStarts.of(problems, ["c=d!e", "c=f", "c"], turns, 4)
    assert starts.prompts == ["ab:", "ab:c=", "ab:c=d!", "ac:"]
    assert starts.turns == [0, 1, 2, 0]
    assert starts.tokens == [0, 1, 2, 0]
    assert starts.numbers.tolist() == [[0, 1, 2, -1], [0, 1, -1, -1], [3, -1, -1, -1]]


def test_values_are_means_of_what_is_still_to_come(walks):
    starts = TurnStarts.of([Problem("0/ab", "ab:", 0)], ["c=d"], torch.tensor([[0, -1, 1]]), 3)
    # From the prompt 1.5 and .5; after a turn that gave .25, of 1.25 and 0.25 there are 1 and 0
    # still to come. The last one could not be scored.
    scores = Scores(
        rewards=torch.tensor([1.5, 0.5, 1.25, torch.nan]),
        verdicts=torch.zeros(4),
        truncated=torch.zeros(4, dtype=torch.bool),
        turn_rewards=torch.tensor([[0.5, 0.0]] * 2 + [[0.25, 0.5]] * 2),
    )
    values = starts.values(scores, 2)
    assert values[0, :2].tolist() == [1.0, 1.0]
    assert values[0, 2].isnan()


def test_every_turn_of_every_episode_is_measured(small_run, train, tmp_path):
    spy = Spy()
    plain = {"steps": 1, "prompts_per_step": 2, "group_size": 3}
    task = {"name": "walks", "levels": [0], "stop_reward": 0.5}
    run = small_run("tiny", task=task, rollout={"name": "vine", "rollouts": 40}, **plain)
    metrics = train(replace(run, estimator=spy), tmp_path).points[1]
    (batch,) = spy.batches
    made = batch.turn_of_token.amax(dim=-1) + 1
    places = torch.arange(run.task.max_turns)
    assert torch.equal(~batch.turn_values.isnan(), places < made[..., None])
    # Episodes of a prompt begin alike, and so have the same first value.
    assert (batch.turn_values[..., 0] == batch.turn_values[:, :1, 0]).all()
    assert metrics["cost/turns"] > 40 * made.sum().item() / 6
    assert metrics["cost/rollouts"] > 40


def test_some_episodes_are_measured_in_some_steps(small_run, train, tmp_path):
    spy = Spy()
    policy = {"name": "vine", "rollouts": 1, "episodes": 1, "every": 2}
    plain = {"steps": 2, "prompts_per_step": 2, "group_size": 3}
    run = small_run("tiny", task={"name": "walks"}, rollout=policy, **plain)
    train(replace(run, estimator=spy), tmp_path)
    first, second = spy.batches
    assert first.turn_values is None
    measured = ~second.turn_values.isnan().all(dim=-1)
    assert measured.tolist() == [[True, False, False]] * 2


@pytest.mark.slow
def test_measuring_leaves_the_training_alone(small_run, train, tmp_path):
    plain = {"steps": 3, "prompts_per_step": 4, "group_size": 3, "task": "walks"}
    measured = small_run("tiny", rollout={"name": "vine", "rollouts": 2}, **plain)
    with_values = train(measured, tmp_path / "vine").lasting
    without = train(small_run("tiny", **plain), tmp_path / "plain").lasting
    for step, values in without.items():
        kept = {name: v for name, v in values.items() if not name.startswith("cost/")}
        assert kept.items() <= with_values[step].items()


def test_values_of_some_steps_are_none_for_an_estimator(small_config):
    policy = {"name": "vine", "every": 2}
    with pytest.raises(ConfigError, match=r"needs turn_values.*rollout=vine with its own"):
        build_run(small_config("tiny", task="walks", estimator="vine", rollout=policy))


def test_a_task_of_one_turn_has_no_values_to_measure(small_config):
    with pytest.raises(ConfigError, match="has no turns"):
        build_run(small_config("tiny", task="routes", rollout={"name": "vine"}))
