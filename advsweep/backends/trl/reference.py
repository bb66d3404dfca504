"""The model of reference rollouts: the base, or the trained model of some steps ago."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

from advsweep.backends.trl.loading import load_model, lora_config

if TYPE_CHECKING:
    from advsweep.backends.trl.config import HfModel


class ReferenceModel:
    """A reference model, which is loaded when it is first asked for.

    With LoRA it is the base model with an adapter once it is renewed, so that it computes what the
    trained model computed then, to the last bit; its file holds the adapter alone.
    """

    def __init__(self, model: HfModel) -> None:
        self._model = model
        self._loaded: Any = None
        self._renewed = False

    def loaded(self) -> Any:
        """Return the model of transformers or, once it is renewed with LoRA, of PEFT."""
        if self._loaded is None:
            self._loaded = load_model(self._model)
        return self._loaded

    def renew(self, trained: Any) -> None:
        """Take the weights of the trained model."""
        if self._model.lora_rank:
            from peft import get_peft_model_state_dict

            self._load_adapter(get_peft_model_state_dict(trained))
        else:
            self.loaded().load_state_dict(trained.state_dict())
        self._renewed = True

    def save(self, path: Path) -> None:
        """Write what `restore` reads; nothing while it is the base model."""
        if not self._renewed:
            return
        if self._model.lora_rank:
            from peft import get_peft_model_state_dict

            weights = get_peft_model_state_dict(self._loaded)
            safetensors.torch.save_file(_contiguous(weights), str(path))
        else:
            safetensors.torch.save_model(self._loaded, str(path))

    def restore(self, path: Path) -> None:
        """Load what `save` has written, if it has written anything."""
        if not path.exists():
            return
        if self._model.lora_rank:
            self._load_adapter(safetensors.torch.load_file(str(path)))
        else:
            safetensors.torch.load_model(self.loaded(), str(path))
        self._renewed = True

    def _load_adapter(self, weights: dict[str, torch.Tensor]) -> None:
        from peft import get_peft_model, set_peft_model_state_dict

        if not self._renewed:
            # Its first weights are drawn at random, which must not change the training.
            with torch.random.fork_rng():
                adapted = get_peft_model(self.loaded(), lora_config(self._model))
            self._loaded = adapted.eval()
        set_peft_model_state_dict(self._loaded, weights)


def _contiguous(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: weight.contiguous() for name, weight in weights.items()}
