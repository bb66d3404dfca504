"""Which leases are valid: every clock that has a say, on its own and together."""

import math

import pytest

from advsweep.store.lease_guard import LEASE, LeaseEvidence, is_valid

WHOLE = LEASE.total_seconds()
FRESH, OLD, FUTURE = 0.0, WHOLE + 1, -WHOLE - 1


@pytest.mark.parametrize(
    ("heartbeat_age", "changes", "expected"),
    [
        # A heartbeat within one lease counts, whatever the other clocks say.
        (FRESH, {}, True),
        (WHOLE, {}, True),
        (-WHOLE, {}, True),
        (WHOLE, {"undisturbed": 0.0, "waited_long": True}, True),
        # An older one ends the lease, unless its process could not renew it.
        (OLD, {}, False),
        (OLD, {"is_of_this_host": True}, False),
        (OLD, {"undisturbed": WHOLE}, True),
        (OLD, {"undisturbed": WHOLE + 1}, False),
        (OLD, {"waited_long": True}, True),
        (OLD, {"observed": 0.0}, False),
        # One in the future counts for a living process of this host, and while nobody can tell
        # whether the clock was set back a moment ago.
        (FUTURE, {}, False),
        (FUTURE, {"is_of_this_host": True}, True),
        (FUTURE, {"undisturbed": WHOLE}, True),
        (FUTURE, {"waited_long": True}, True),
        (FUTURE, {"observed": WHOLE}, True),
        (FUTURE, {"observed": WHOLE + 1}, False),
    ],
)
def test_which_leases_are_valid(heartbeat_age, changes, expected):
    quiet = {"is_of_this_host": False, "undisturbed": math.inf}
    evidence = LeaseEvidence(heartbeat_age=heartbeat_age, **(quiet | changes))
    assert is_valid(evidence) is expected
