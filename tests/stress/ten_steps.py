"""One training run on ranks under ``dskit run``; every rank writes its losses to FOLDER/rank-N.json.

Usage: dskit run --ranks 2 tests/stress/ten_steps.py FOLDER MODE BACKEND [STEPS]
"""

import json
import os
import sys
from pathlib import Path

from dskit.experiments.training import RunSettings, make_engine, same_bits, shards, train

folder, mode, backend, steps = (*sys.argv[1:4], int((sys.argv[4:] or ["10"])[0]))
settings = RunSettings(mode=mode, backend=backend, steps=steps)
engine = make_engine(settings)
before = shards(engine, frozen=True)
losses = [row["loss"] for row in train(engine, settings)]
result = {"losses": losses, "frozen_unchanged": same_bits(before, shards(engine, frozen=True))}
(Path(folder) / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(result))
