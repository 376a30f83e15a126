"""Write docs/lint-rules.md: every rule of `dsforge lint` with its reason and evidence."""

from __future__ import annotations

from pathlib import Path

from dsforge.lint.rule_pages import page

TARGET = Path(__file__).resolve().parents[1] / "docs/lint-rules.md"

if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(page(), encoding="utf-8")
