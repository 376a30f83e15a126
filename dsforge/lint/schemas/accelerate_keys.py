"""What accelerate's configuration file may say, by one release: `scripts/accelerate_schema.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCHEMA: dict[str, Any] = json.loads(
    Path(__file__).with_name("accelerate.json").read_text(encoding="utf-8")
)
RELEASE: str = SCHEMA["release"]
KEYS: list[str] = [*SCHEMA["keys"], *SCHEMA["former"]]
OF_SAGEMAKER: list[str] = list(SCHEMA["sagemaker"])
WHOLE: list[str] = [key for key, kind in SCHEMA["keys"].items() if kind.endswith(("int", "int]"))]
OF_DEEPSPEED: list[str] = list(SCHEMA["deepspeed"])
FSDP: dict[str, str | None] = SCHEMA["fsdp"]  # with the default of each
ENUMS: dict[str, list[str]] = SCHEMA["enums"]
WORDS: dict[str, list[str]] = SCHEMA["constants"]
