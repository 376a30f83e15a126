"""How every value that a plan carries behaves: frozen, and without keys that nobody declared."""

from __future__ import annotations

from pydantic import ConfigDict

# Schemas are built at first use: most commands need few of these types.
FROZEN = ConfigDict(frozen=True, extra="forbid", defer_build=True)
