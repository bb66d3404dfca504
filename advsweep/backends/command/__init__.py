"""Any training command as a backend: `backend=command backend.template=FILE`.

A template, a YAML file, says how a command is started, where it logs metrics, what its
checkpoints are and what its failures mean (`template`, `placeholders`). The worker of a run
starts the command below a supervisor (`supervisor`, `process`), which ends every process of the
command when the worker stops or dies. While the command runs, the worker reads what is new of its
log and reports it as our own backends do (`metric_feed`, `evaluations`, `checkpoints`,
`training`).

A template starts processes. So a store never chooses one: the command line names it, and
`consent` carries that choice to the processes of runs.
"""
