"""Bandits: prompts whose answers are a few behaviours with known rewards."""

from advsweep.tasks.bandit.base import Arms, BanditTask
from advsweep.tasks.bandit.levels import Bandit
from advsweep.tasks.bandit.toy import Toy

__all__ = ["Arms", "Bandit", "BanditTask", "Toy"]
