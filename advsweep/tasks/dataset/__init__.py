"""Problems out of files or from the Hugging Face hub, each set one YAML file of `conf/task`."""

from advsweep.tasks.dataset.task import Dataset

__all__ = ["Dataset"]
