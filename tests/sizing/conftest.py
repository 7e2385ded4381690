"""Tiny models and runs are those of tests/models and tests/integration."""

import sys
from pathlib import Path

for name in ("models", "integration"):
    sys.path.append(str(Path(__file__).parents[1] / name))
