"""What is said when memory runs out: what needs less of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from advsweep.errors import NoMemoryError, is_out_of_memory

TRAINING = (
    "started again with a smaller backend.rollout_batch (rollouts generated at once), "
    "backend.device_batch (trained on at once) or backend.evaluation_batch, or with more processes "
    "(resources.gpus), the run goes on from its last checkpoint; "
    "backend.gradient_checkpointing=true, model.lora_rank=16, model.dtype=bfloat16 and a smaller "
    "generation.max_tokens need less memory too, the last three as another run"
)
EVALUATION = (
    "a smaller backend.evaluation_batch (fewer answers at once) needs less memory, and so do a "
    "smaller generation.max_tokens and model.dtype=bfloat16, as another evaluation"
)


@contextmanager
def remedied(remedies: str) -> Iterator[None]:
    """Adds what helps to an error that says that there is no memory left.

    Raises:
        NoMemoryError: in the place of such an error.
    """
    try:
        yield
    except NoMemoryError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        said = str(error).strip().splitlines() or ["no memory is left"]
        raise NoMemoryError(f"{said[0]}; {remedies}") from error
