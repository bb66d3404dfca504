"""A backend: trains like `tiny` and records where the time of some steps goes."""

from dataclasses import dataclass
from typing import ClassVar

from torch.profiler import profile, schedule

from advsweep.backends.tiny.backend import TinyBackend
from advsweep.components import option


@dataclass(kw_only=True)
class Profiled(TinyBackend):
    """Trains like `tiny`; writes `trace.json` into the run's folder, for https://ui.perfetto.dev.

    The options are no part of a run's identity, as they do not change its results.
    """

    name: ClassVar[str] = "profiled"

    after: int = option(5, ge=1, identity=False, help="steps before the profile")
    profile_steps: int = option(3, ge=1, identity=False, help="steps of the profile")

    def train(self, run, directory, reporter):
        def save(result):
            result.export_chrome_trace(str(directory / "trace.json"))

        when = schedule(wait=self.after - 1, warmup=1, active=self.profile_steps, repeat=1)
        with profile(schedule=when, on_trace_ready=save) as profiler:
            super().train(run, directory, _Steps(reporter, profiler))


class _Steps:
    """A reporter that tells the profiler of each step."""

    def __init__(self, reporter, profiler):
        self._reporter, self._profiler = reporter, profiler

    def __getattr__(self, name):
        return getattr(self._reporter, name)

    def metrics(self, step, values):
        self._reporter.metrics(step, values)
        self._profiler.step()
