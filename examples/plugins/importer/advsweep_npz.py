"""A reader: archives of NumPy, one for each run of a training loop of one's own."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from advsweep.errors import ConfigError
from advsweep.logs import ImportedRun, LoggedStep, Reader


@dataclass(kw_only=True)
class Npz(Reader):
    """Reads what `numpy.savez("grpo-s0.npz", step=[1, 2], reward=[0.1, 0.2], ...)` wrote.

    The source is an archive or a folder of archives. Each has an array per metric, a value for
    each step. `--name-pattern '{estimator}-s{seed}'` reads settings from the names.
    """

    name: ClassVar[str] = "npz"

    def runs(self, source, options):
        paths = sorted(Path(source).glob("*.npz")) if Path(source).is_dir() else [Path(source)]
        if not paths or not paths[0].is_file():
            raise ConfigError(f"expected an .npz file, or a folder with some, got '{source}'")
        for path in paths:
            left_out = Counter()
            steps = list(_steps(path, options.names, left_out))
            yield ImportedRun(source=path.name, config={}, steps=steps, left_out=left_out)


def _steps(path, names, left_out):
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for index, step in enumerate(arrays.pop("step")):
        values = {name: float(array[index]) for name, array in arrays.items()}
        finite = {name: value for name, value in values.items() if np.isfinite(value)}
        left_out["values that are NaN or infinite"] += len(values) - len(finite)
        yield LoggedStep(int(step), names.apply(finite))
