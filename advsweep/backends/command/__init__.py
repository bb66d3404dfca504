"""Any training command as a backend: `backend=command backend.template=FILE`.

A template, a YAML file, says how a command is started, where it logs metrics, what its
checkpoints are and what its failures mean (`template`, `arguments`). The worker of a run starts
the command below a supervisor (`process`, `supervisor`), which ends every process of the command
when the worker stops or dies. While the command runs, the worker reads what is new of its log,
checkpoints and counts, and reports it as our own backends do (`training`, `records`).

A template starts processes. So a store never chooses one: the command line names it, and
`template` carries that choice to the processes of runs.
"""
