"""Pretraining of the base model, once per recipe; later runs take it from the cache folder."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from filelock import FileLock, Timeout

from advsweep.backends.checkpoints import Checkpoints
from advsweep.backends.identity import hash_json
from advsweep.backends.randomness import Stream, numpy_generator, torch_generator
from advsweep.backends.tiny.network import Continuations
from advsweep.backends.tiny.tokens import Encoded, encode
from advsweep.backends.tiny.weights import (
    Weights,
    flatten,
    from_bytes,
    initial_weights,
    to_bytes,
    unflatten,
)
from advsweep.backends.work_clock import Work
from advsweep.components import identity_of
from advsweep.errors import CheckpointError, reason_of
from advsweep.local_files import cache_folder
from advsweep.tasks.base import CorpusShares
from advsweep.tasks.episodes import EpisodeTask

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from advsweep.backends.models import TinyModel
    from advsweep.backends.reporter import Reporter
    from advsweep.tasks.base import SymbolTask

# Increased when a fix changes the weights that a recipe gives.
REVISION = 2

_WEIGHTS = "model.safetensors"
_BETAS = (0.9, 0.95)
_MAX_GRAD_NORM = 1.0
_UPDATES_PER_REPORT = 10
_WAIT_SECONDS = 0.5
_STAGE = "pretraining"


class PretrainingStoppedError(Exception):
    """The reporter asked to stop."""


def base_key(model: TinyModel, task: SymbolTask) -> str:
    """Return the identity of a recipe's base model, in hex.

    Raises:
        ConfigError: the seed of the pretraining is that of a run; see `TinyModel.for_seed`.
    """
    recipe = {**identity_of(model.for_task(task)), "pretraining_seed": model.base_seed}
    material = {"revision": REVISION, "model": recipe, "corpus": task.corpus_identity()}
    return hash_json(material)


def base_weights(model: TinyModel, task: SymbolTask, reporter: Reporter | None = None) -> Weights:
    """Return the base model's weights, from the cache or pretrained now.

    If several processes need them at once, one pretrains and the others wait. A damaged cache
    entry is replaced.

    Args:
        reporter: gets the progress, and may ask to stop.

    Raises:
        PretrainingStoppedError: the reporter asked to stop.
        CheckpointError: the cache folder cannot be written.
    """
    key = base_key(model, task)
    folder = _folder()
    entry = _entry(key)
    cached = _cached(entry, reporter)
    if cached is not None:
        return cached
    lock = FileLock(folder / f"{key[:16]}.lock", timeout=_WAIT_SECONDS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        told = False
        while not lock.is_locked:
            # The lock of a process that was killed is free, so none waits endlessly.
            try:
                with _doing(reporter, Work.WAITING):
                    lock.acquire()
            except Timeout:
                if reporter and not told:
                    reporter.log("another run is pretraining the base model; waiting for it")
                told = True
                _poll(reporter)
    except OSError as error:
        raise CheckpointError(
            f"the cache folder {folder} cannot be written: {reason_of(error)}; set ADVSWEEP_CACHE "
            f"to a writable folder"
        ) from error
    try:
        # Another process may have made it while this one waited for the lock.
        cached = _cached(entry, reporter)
        if cached is not None:
            return cached
        entry.discard_unfinished()
        with _doing(reporter, Work.PRETRAINING, model.pretraining_steps):
            weights = pretrain(model, task, reporter)
        entry.save(model.pretraining_steps, {_WEIGHTS: to_bytes(weights)})
    finally:
        lock.release()
    return weights


def is_cached(model: TinyModel, task: SymbolTask) -> bool:
    """Return whether the cache has the base weights, sound or not."""
    return bool(_entry(base_key(model, task)).steps())


def _entry(key: str) -> Checkpoints:
    return Checkpoints(_folder() / key[:16], key)


def _folder() -> Path:
    return cache_folder() / "base-models"


def _doing(reporter: Reporter | None, work: Work, units: float = 0) -> AbstractContextManager[None]:
    return nullcontext() if reporter is None else reporter.doing(work, units)


def _cached(entry: Checkpoints, reporter: Reporter | None) -> Weights | None:
    def log(message: str) -> None:
        if reporter:
            reporter.log(f"cached base model: {message}")

    newest = entry.newest_sound(log)
    return from_bytes(newest.files[_WEIGHTS]) if newest else None


def _poll(reporter: Reporter | None) -> None:
    if reporter and reporter.stop_requested():
        raise PretrainingStoppedError


def pretrain(model: TinyModel, task: SymbolTask, reporter: Reporter | None = None) -> Weights:
    """Train new weights on the prompts and answers of the corpus.

    AdamW with linear warm-up and cosine decay; the loss is the mean over answer tokens, end marks
    included and those of an environment left out.

    Raises:
        PretrainingStoppedError: the reporter asked to stop.
    """
    model = model.for_task(task)
    steps = model.pretraining_steps
    batch = model.pretraining_batch
    generator = torch_generator(model.base_seed, Stream.WEIGHTS)
    weights = initial_weights(model, task.vocabulary_size, generator)
    if steps == 0:
        return weights
    pairs = task.pretraining_pairs(
        steps * batch,
        numpy_generator(model.base_seed, Stream.CORPUS),
        shares=CorpusShares(model.random_share or 0.0, model.left_to_right_share or 0.0),
    )
    prompts = encode(pairs[0], task)
    # An episode has no end mark: its environment ends it.
    completions = encode(pairs[1], task, end=not isinstance(task, EpisodeTask))
    learnt = completions.mask
    if isinstance(task, EpisodeTask):
        learnt &= ~np.isin(completions.tokens, task.environment_ids)
    flat = flatten(weights, model).requires_grad_()
    optimizer = torch.optim.AdamW([flat], betas=_BETAS, weight_decay=0.0, fused=True)
    for step in range(steps):
        if reporter and step % _UPDATES_PER_REPORT == 0:
            reporter.progress(_STAGE, step, steps)
        _poll(reporter)
        optimizer.param_groups[0]["lr"] = model.pretraining_lr * _schedule(step, model)
        rows = slice(step * batch, (step + 1) * batch)
        loss = _loss(flat, model, prompts[rows], completions[rows], learnt[rows])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(flat, _MAX_GRAD_NORM)
        optimizer.step()
    if reporter:
        reporter.progress(_STAGE, steps, steps)
    return unflatten(flat.detach(), model)


def _schedule(step: int, model: TinyModel) -> float:
    """Return the learning rate of an update (from 0), as a share of its peak."""
    warmup = model.pretraining_warmup
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, model.pretraining_steps - warmup)
    return 0.5 * (1 + math.cos(math.pi * done))


def _loss(
    flat: Float[Tensor, " weights"],
    model: TinyModel,
    prompts: Encoded,
    completions: Encoded,
    learnt: Bool[np.ndarray, "texts columns"],
) -> Float[Tensor, ""]:
    """Return the mean of -log p over the tokens of the completions that are to be learnt."""
    rows = np.arange(len(prompts.lengths))
    layout = Continuations.lay_out(prompts, rows, completions.tokens, completions.lengths)
    log_probs, _ = layout.log_probs(flat, model, temperature=1.0)
    mask = torch.from_numpy(learnt)
    return -log_probs.where(mask, 0.0).sum() / mask.sum()
