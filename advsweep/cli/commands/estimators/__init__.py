"""`advsweep estimators`: list estimators, and show, apply and plot one without training."""

from advsweep.cli.commands.estimators.apply import apply
from advsweep.cli.commands.estimators.describe import app, show
from advsweep.cli.commands.estimators.plot import plot

app.command("show")(show)
app.command("apply")(apply)
app.command("plot")(plot)

__all__ = ["app"]
