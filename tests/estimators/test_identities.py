"""The identity of every estimator's defaults: with another one, runs of a store are other runs."""

from __future__ import annotations

import hashlib
import json

from advsweep.estimators import build_estimator, estimator_names

DIGEST = "7ccd10245a243a16"
"""A change of a default or of a name needs `absent`, a change of results another `revision`; a new
estimator changes it alone."""


def test_defaults_keep_their_identity() -> None:
    identities = {name: build_estimator(name).identity() for name in estimator_names()}
    text = json.dumps(identities, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGEST
