"""`advsweep estimators`: what can be compared, and what it does, before anything is trained."""

from advsweep.cli.estimators.apply import apply
from advsweep.cli.estimators.listing import app
from advsweep.cli.estimators.plot import plot
from advsweep.cli.estimators.show import show

app.command("show")(show)
app.command("apply")(apply)
app.command("plot")(plot)

__all__ = ["app"]
