"""What a rule of lint looks at, and the decorator that makes one.

A rule is a pure function from a `CheckedFile` to `Hit`s. `error`: the run stops, or does silently
something else than the file says. `warning`: it runs, at a price that the message names. `info`:
worth knowing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsforge import findings
from dsforge.ds_config import DsConfig, read
from dsforge.findings import Find, Rule, Severity
from dsforge.lint.reading.config_keys import Entry, entries_of
from dsforge.lint.reading.document import Document, Kind
from dsforge.lint.schemas.releases import Release, Releases

if TYPE_CHECKING:
    from dsforge.specs import ClusterSpec, ModelSpec

ZERO = "zero_optimization"


@dataclass(frozen=True, slots=True, eq=False)
class CheckedFile:
    """One document, and what it is checked against."""

    document: Document
    releases: Releases
    release: Release
    model: ModelSpec | None
    cluster: ClusterSpec | None
    engine: Document | None  # the ds_config that a train.yaml names
    entries: tuple[Entry, ...]  # of a ds_config
    config: DsConfig  # what the ds_config says, or the one of a train.yaml, as far as it is legal
    on_cpu: bool = False  # the ranks run on the CPU: nothing is copied to a GPU

    @property
    def stage(self) -> int | None:
        """The ZeRO stage; none where it is not known (`auto`)."""
        return self.config.zero_stage

    def at(self, *loc: str) -> Any:
        """The value at a location; none where something of it is missing."""
        value = self.document.root
        for key in loc:
            if type(value) is not dict:  # plain ones only: this is called a hundred times a file
                return None
            value = value.get(key)
        return value

    def block(self, *loc: str) -> dict[str, Any]:
        """The mapping at a location; empty where there is none."""
        value = self.at(*loc)
        return value if isinstance(value, dict) else {}

    def number(self, *loc: str) -> float | None:
        """The number at a location; none where it is `auto`, a text or a boolean."""
        value = self.at(*loc)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def whole(self, *loc: str) -> int | None:
        """The whole number at a location; `5e8` is one."""
        value = self.number(*loc)
        return int(value) if value is not None and value == int(value) else None

    def word(self, *loc: str) -> str:
        """The text at a location in small letters; empty where there is none."""
        value = self.at(*loc)
        return value.lower() if isinstance(value, str) else ""

    def is_on(self, *loc: str) -> bool:
        """Whether the value is literally true."""
        return self.at(*loc) is True

    def is_off(self, *loc: str) -> bool:
        """Whether the value is literally false."""
        return self.at(*loc) is False

    def device(self, block: str) -> str:
        """Where an offload block puts things: none, cpu, nvme."""
        config = self.config
        is_optimizer = block == "offload_optimizer"
        return (config.offload_optimizer if is_optimizer else config.offload_parameters) or "none"

    @property
    def bf16_block(self) -> str:
        """The name under which the file has its bf16 block."""
        return "bf16" if "bf16" in self.block() else "bfloat16"

    @property
    def tensor_parallel_size(self) -> int:
        """Ranks that share each layer's matrices; 1 where the file does not say."""
        return self.config.tensor_parallel_size

    @property
    def pipeline_stages(self) -> int:
        """Pipeline stages; 1 where the file does not say."""
        return self.config.pipeline_stages


def checked_file(
    document: Document,
    releases: Releases,
    release: Release,
    *,
    model: ModelSpec | None = None,
    cluster: ClusterSpec | None = None,
    engine: Document | None = None,
    on_cpu: bool = False,
) -> CheckedFile:
    """A document with what it is checked against; what many rules ask for is worked out once."""
    entries: tuple[Entry, ...] = ()
    if document.kind == "ds_config":
        entries = tuple(entries_of(document.root, releases, release))
    written = document if document.kind == "ds_config" else engine
    root = written.root if written else None
    config = read(root).config if isinstance(root, dict) else DsConfig()
    return CheckedFile(
        document, releases, release, model, cluster, engine, entries, config, on_cpu=on_cpu
    )


def rule(
    name: str,
    severity: Severity,
    *kinds: Kind,
    why: str,
    evidence: str,
    fixable: bool = False,
) -> Callable[[Find[CheckedFile]], Rule[CheckedFile]]:
    """A decorator that makes a rule of a function; without kinds it is one for a ds_config."""
    scope = kinds or ("ds_config",)
    return findings.rule(name, severity, *scope, why=why, evidence=evidence, fixable=fixable)


def shown(value: Any) -> str:
    """A value as messages show it: short, as JSON writes it, without control characters."""
    text = {True: "true", False: "false", None: "null"}.get(value) if _is_word(value) else None
    text = text or ascii(value if isinstance(value, str) else repr(value))[1:-1]
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - a line stays a line


def quoted(value: Any) -> str:
    """A value as messages show it, a text in quotes: `"8"` is no number."""
    return f'"{shown(value)}"' if isinstance(value, str) else shown(value)


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)
