"""Real parts of verl for the tests: its configuration, its transfer queue, our trainers.

What needs GPUs is missing, so one part stands in: the workers that hold the weights.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

Compose = Callable[..., Any]


@pytest.fixture(scope="session")
def compose() -> Compose:
    """`compose(*overrides)`: verl's own configuration, composed by Hydra."""
    verl = pytest.importorskip("verl")
    from hydra import compose as compose_config
    from hydra import initialize_config_dir

    folder = str(Path(verl.__file__).parent / "trainer" / "config")

    @functools.cache  # Composing hundreds of keys takes a second.
    def cached(*overrides: str) -> Any:
        with initialize_config_dir(config_dir=folder, version_base=None):
            return compose_config("ppo_trainer", overrides=list(overrides))

    return lambda *overrides: copy.deepcopy(cached(*overrides))


@pytest.fixture(scope="session")
def queue() -> Iterator[Any]:
    """verl's transfer queue: its controller, a storage unit and its client, over sockets.

    verl makes Ray actors of the first two; here they are threads of this process, as starting
    Ray takes long on a busy machine, and more than half a minute is an error of Ray's.
    """
    tq = pytest.importorskip("transfer_queue")
    from omegaconf import OmegaConf
    from transfer_queue import interface
    from transfer_queue.controller import TransferQueueController
    from transfer_queue.storage.simple_storage import SimpleStorageUnit

    text = (resources.files("transfer_queue") / "config.yaml").read_text(encoding="utf-8")
    config = OmegaConf.create(text, flags={"allow_objects": True})
    config.backend.SimpleStorage.num_data_storage_units = 1
    controller = TransferQueueController.__ray_metadata__.modified_class()
    storage = SimpleStorageUnit.__ray_metadata__.modified_class(config.backend.SimpleStorage)
    config.controller.zmq_info = controller.get_zmq_server_info()
    config.backend.SimpleStorage.zmq_info = {"unit": storage.get_zmq_server_info()}
    client = interface._maybe_create_tq_client(config)
    yield tq
    client.close()
    interface._TQ_CLIENT = None
    storage.shutdown()


class Workers:
    """Stands in for the processes that hold the policy: notes what it is asked to do."""

    def __init__(self) -> None:
        self.saved: list[str] = []
        self.loaded: list[str] = []

    def save_checkpoint(self, local_path: str, *_: Any, **__: Any) -> None:
        self.saved.append(local_path)
        Path(local_path).mkdir(parents=True)

    def load_checkpoint(self, local_path: str, **_: Any) -> None:
        assert Path(local_path).is_dir()
        self.loaded.append(local_path)


MakeTrainer = Callable[..., Any]


@pytest.fixture
def make_trainer(compose: Compose, tmp_path: Path) -> MakeTrainer:
    """`make_trainer(*overrides)`: a V1 trainer as verl's task runner builds it, at step 1 of 10."""
    from omegaconf import OmegaConf
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.trainer.ppo.v1 import get_trainer_cls

    def make(*overrides: str) -> Any:
        config = compose(
            "algorithm.adv_estimator=advsweep",
            "trainer.v1.trainer_mode=advsweep_sync",
            "actor_rollout_ref.rollout.n=4",
            *overrides,
        )
        config.trainer.default_local_dir = str(tmp_path / "checkpoints")
        OmegaConf.resolve(config)
        trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
        trainer.actor_rollout_wg = Workers()
        trainer.train_dataloader = StatefulDataLoader(list(range(8)), batch_size=2)
        trainer.global_steps, trainer.total_training_steps = 1, 10
        return trainer

    return make


class Row(NamedTuple):
    """One output of an agent, as V1 keeps it in its transfer queue.

    The last token bears the reward. `mask` is 0 where a tool wrote; `entropy` is that of every
    token, and each sampled token had the log-probability `log_prob`, and half of it under the
    reference model.
    """

    uid: str
    session: int
    output: int
    reward: float
    mask: list[int]
    entropy: float = 0.5
    log_prob: float = -0.25
    padding: bool = False
    prompt: str = "2 + 2?"


PutRows = Callable[..., Any]


@pytest.fixture
def put_rows(queue: Any) -> Iterator[PutRows]:
    """`put_rows(rows, old_log_probs=True, entropy=True)`: the rows in the queue, as a batch."""
    from tensordict import TensorDict
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    put: list[str] = []

    def nested(rows: list[Row], value: Callable[[Row], float]) -> Any:
        columns = [torch.full((len(row.mask),), value(row)) for row in rows]
        return torch.nested.as_nested_tensor(columns, layout=torch.jagged)

    def put_all(rows: list[Row], *, old_log_probs: bool = True, entropy: bool = True) -> Any:
        keys = [f"{row.uid}_{row.session}_{row.output}" for row in rows]
        fields = [
            {
                "uid": row.uid,
                "raw_prompt": [{"role": "user", "content": row.prompt}],
                "response_mask": torch.tensor(row.mask),
                "rm_scores": torch.tensor([*[0.0] * (len(row.mask) - 1), float(row.reward)]),
            }
            for row in rows
        ]
        tags = [{"status": "success", "is_padding": row.padding} for row in rows]
        batch = queue.kv_batch_put(
            keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(fields), tags=tags
        )
        more = {}
        if old_log_probs:
            more["old_log_probs"] = nested(rows, lambda row: row.log_prob)
            more["ref_log_prob"] = nested(rows, lambda row: row.log_prob / 2)
        if entropy:
            more["entropy"] = nested(rows, lambda row: row.entropy)
        if more:
            batch = queue.kv_batch_put(
                keys=keys, partition_id="train", fields=TensorDict(more, batch_size=len(rows))
            )
        batch.tags = tags
        put.extend(keys)
        return batch

    yield put_all
    if put:
        queue.kv_clear(keys=put, partition_id="train")


@pytest.fixture
def advantages_of(queue: Any) -> Callable[[Any], list[list[float]]]:
    """`advantages_of(batch)`: the advantages that a trainer has put into the queue, by row."""

    def read(batch: Any) -> list[list[float]]:
        fields = ["advantages", "returns"]
        found = queue.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=fields
        )
        advantages = [row.tolist() for row in found["advantages"]]
        assert [row.tolist() for row in found["returns"]] == advantages
        return advantages

    return read
