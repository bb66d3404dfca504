"""Who gives inputs of estimators that few batches have; without torch, as plans read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

GIVEN_BY: Mapping[str, str] = {
    "turn_rewards": "a task that rewards turns (task=walks task.stop_reward=0.5, or an environment "
    "with reward_so_far)",
    "turn_states": "a task whose environment names its states (task=walks, or one with turn_state)",
    "turn_values": "rollout=vine",
}


def hint_for_missing(names: Collection[str]) -> str:
    """Return who gives missing inputs, as the end of a message; empty where nobody is known.

    >>> hint_for_missing(["turn_values"])
    '; rollout=vine gives turn_values'
    """
    known = [f"{GIVEN_BY[name]} gives {name}" for name in sorted(names) if name in GIVEN_BY]
    return f"; {', '.join(known)}" if known else ""
