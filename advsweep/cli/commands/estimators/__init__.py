"""`advsweep estimators`: list estimators, and show, apply and plot one without training."""

from advsweep.cli.commands.estimators.apply import apply
from advsweep.cli.commands.estimators.listing import app
from advsweep.cli.commands.estimators.plot import plot
from advsweep.cli.commands.estimators.show import show

app.command("show")(show)
app.command("apply")(apply)
app.command("plot")(plot)

__all__ = ["app"]
