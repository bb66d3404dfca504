"""Countdown: reach a target with the given digits, each used once."""

from advsweep.tasks.countdown.expressions import ALPHABET
from advsweep.tasks.countdown.task import Countdown

__all__ = ["ALPHABET", "Countdown"]
