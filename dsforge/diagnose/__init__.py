"""Diagnosis: from the log of a failed run to its cause, the lines that prove it, and a patch.

`rules/` holds what is known about faults, as data. `scan` reads a log once, `ranking` tells the
cause from its consequences, `ledger` says an out-of-memory error in the plan's terms.
"""

from __future__ import annotations

from dsforge.diagnose.log_sources import (
    diagnose_error,
    diagnose_files,
    diagnose_stream,
    diagnose_text,
)
from dsforge.diagnose.ranking import Cause, Evidence

__all__ = [
    "Cause",
    "Evidence",
    "diagnose_error",
    "diagnose_files",
    "diagnose_stream",
    "diagnose_text",
]
