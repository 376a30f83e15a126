"""Words of `strategy` that only some engines give a meaning: said to another one, they are refused.

Which engine has which word is a fact of the engine (`engines/`, `words`). A word that every engine
has, or that asks for what the engine does anyway, is never refused here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsforge.constraints.case import Broken, Case, constraint

if TYPE_CHECKING:  # their tables are not needed to lint a file
    from dsforge.engines import Engine
    from dsforge.strategy import Constraints

Words = tuple[tuple[str, object], ...]

OF_STRATEGY = ("bf16_states", "loads_whole", "no_sync", "optimizer_in_backward")  # in every Case
ONE = ("hpz_partition_size", "offload_ratio", "virtual_stages")  # 1 asks for nothing
FIELDS = {  # of Execution, where the engine's own value is
    "attention": "attention",
    "buckets": "buckets",
    "communication_type": "reduced",
    "expert_dispatch": "expert_dispatch",
    "gradient_type": "gradients",
    "kernels": "kernels",
}


def said_words(fixed: Constraints) -> Words:
    """The words of a person that not every engine has, with their values."""
    from dsforge.engines import ENGINES

    some = sorted(frozenset[str]().union(*(engine.words for engine in ENGINES)))
    return tuple((word, getattr(fixed, word)) for word in some if getattr(fixed, word) is not None)


def lacks(engine: Engine, words: Words) -> Words:
    """Those of some words that ask an engine for what it does not have."""
    return tuple(
        (word, value)
        for word, value in words
        if word not in engine.words and not _asks_nothing(engine, word, value)
    )


def _asks_nothing(engine: Engine, word: str, value: object) -> bool:
    """Whether a value says no, or what the engine does anyway."""
    if value in (None, False) or (word in ONE and value == 1):
        return True
    field = FIELDS.get(word)
    own = field is not None and value == getattr(engine.execution, field)
    return own or (word, value) == ("buckets", "engine")


def missing(case: Case, word: str) -> bool:
    """Whether a word was said that the engine of a case does not have."""
    return any(name == word for name, _ in _missing(case))


def _missing(case: Case) -> Words:
    """Words of a case, said or carried by its strategy, that its engine does not have."""
    carried = tuple((word, True) for word in OF_STRATEGY if getattr(case, word))
    words = tuple(dict((*carried, *case.words)).items())
    return lacks(case.engine, words) if words else ()


@constraint("engine-words", source="dsforge/engines: `words` of each engine", ours=False)
def words_of_engine(case: Case) -> Broken | None:
    """A word of `strategy` that the engine gives no meaning."""
    without = _missing(case)
    if not without:
        return None
    what = ", ".join(f"{word} (={_shown(value)})" for word, value in without)
    verb = "has" if len(without) == 1 else "have"
    outs = dict.fromkeys(f"{word} requires {_engines_with(word)}" for word, _ in without)
    return Broken(
        f"{what} {verb} no meaning for {case.engine.label}", f"leave it out; {'; '.join(outs)}"
    )


def _shown(value: object) -> str:
    """A value as a spec says it; sizes of buffers, which are many, in one word."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float, str)) else "sizes"


def _engines_with(word: str) -> str:
    """`trainer ddp, fsdp or torchtune`, or the back end that has its own files."""
    from dsforge.engines import ENGINES

    has = [engine for engine in ENGINES if word in engine.words]
    own = [engine.back_end for engine in has if engine.name == engine.back_end != "deepspeed"]
    trainers = sorted(engine.name for engine in has if engine.back_end not in own)
    if word == "trainer":
        return f"back_end {has[0].back_end}"
    *names, last = trainers or [""]
    listed = "trainer " + (f"{', '.join(names)} or {last}" if names else last) if trainers else ""
    return " or ".join(filter(None, (listed, *(f"back_end {name}" for name in own))))
