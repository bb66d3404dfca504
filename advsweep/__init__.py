"""advsweep: compare advantage estimators for RLVR on equal terms."""

__version__ = "0.1.0"
