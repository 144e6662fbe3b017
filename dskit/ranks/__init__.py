"""Rank processes: where they run, how a notebook or a script gets them, and how they end.

In a notebook: ``from dskit import ranks``, ``ranks.start(world_size, device)``, then ``%%px`` cells. For a
script: ``dskit run``.
"""

import importlib

_PLACES = {
    "RankGroup": "dskit.ranks.group",
    "RankFailure": "dskit.ranks.failures",
    "RanksError": "dskit.ranks.session",
    "current": "dskit.ranks.notebook",
    "start": "dskit.ranks.notebook",
    "stop": "dskit.ranks.notebook",
    "launch": "dskit.ranks.launch",
    "run_script": "dskit.ranks.launch",
}


def __getattr__(name: str):
    if name in _PLACES:  # looked up late, so that a rank process imports none of the notebook's side
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'dskit.ranks' has no attribute {name!r}")
