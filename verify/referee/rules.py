"""Reads the rules of `verify judge` that are data: tricks, forms of problems, things that a machine may lack."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

RULES: dict[str, Any] = tomllib.loads((Path(__file__).parent / "rules.toml").read_text())
