"""Read a Hugging Face config, from any source, into a ModelSpec.

Nothing in it is trusted: every value is checked for type and size before it is used, and all
problems are reported at once. What a config leaves out has the default of its config class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from dsforge.errors import Problem, SpecError
from dsforge.huggingface.architecture import (
    ARCHITECTURES,
    LLAMA_LIKE,
    MLA_KEYS,
    SAME_AS,
    TEXT_TYPES,
    UNMODELLED,
    Architecture,
)
from dsforge.huggingface.forward import forward_fields, router_fields
from dsforge.huggingface.layer_kinds import ORDERS, keys_of_layers, read_layers, recurrent_reason
from dsforge.huggingface.specials import SPECIALS
from dsforge.huggingface.towers import TOWERS, tower_of, tower_reason
from dsforge.huggingface.unread import MTP, OFF, PLAIN_ACTIVATIONS, unknown_keys, unread_parts
from dsforge.huggingface.values import LARGEST_OTHER, ConfigValues
from dsforge.plan import Reason
from dsforge.specs import ModelSpec, TowerSpec

REQUIRED = (
    *("layers", "hidden_size", "ffn_hidden_size", "attention_heads"),
    *("vocab_size", "max_position_embeddings"),
)
FULL = "full_attention"
ATTENTION_KINDS = (
    *(FULL, "sliding_attention", "chunked_attention", "attention", "indexed_attention"),
)
OF_THE_WHOLE = ("vision_config", "text_config", "model_type", "vision_token_id", "rope_scaling")
MANY = 4  # keys that one message names


def model_from_config(config: Mapping[str, Any], name: str) -> ModelSpec:
    """The shape that a config.json describes. Raises SpecError with all its problems."""
    return read_config(config, name)[0]


def read_config(config: Mapping[str, Any], name: str) -> tuple[ModelSpec, tuple[Reason, ...]]:
    """The shape that a config.json describes, and what had to be assumed to read it.

    Raises SpecError for an architecture that is not modelled: a wrong size is worse than none.
    """
    text, model_type, reasons = _language_model(config)
    outer = config.get("model_type")
    known = SAME_AS.get(model_type, model_type)
    architecture = ARCHITECTURES.get(known, LLAMA_LIKE)
    reading = _Reading(text, architecture)
    fields = reading.fields()
    special = SPECIALS.get(known)
    if special is not None and not reading.problems:
        special.read(reading, fields)
    fields["moe"], fields["mla"] = reading.moe(fields), reading.mla(fields)
    if known in ORDERS and not reading.problems:
        read_layers(known, reading, architecture, fields)
    if fields["moe"]:
        fields["moe"]["router"] = router_fields(reading, architecture)
    fields |= forward_fields(reading, architecture, fields)
    if fields["mla"] and not reading.problems:
        fields["kv_heads"] = fields["attention_heads"]
        fields["head_size"] = fields["mla"]["nope_head_size"] + fields["mla"]["rope_head_size"]
    reading.check(fields)
    if isinstance(outer, str) and outer in TOWERS and not reading.problems:
        fields["tower"], wrong = tower_of(outer, config, fields["hidden_size"])
        reading.problems += wrong
        if not wrong:
            reasons.append(tower_reason(TowerSpec(**fields["tower"])))
    if known in ARCHITECTURES:
        reading.check_unread(fields, (*(special.keys if special else ()), *keys_of_layers(known)))
        reasons += _left_out(text)
    else:
        reading.check_plain(model_type)
        reasons.append(Reason(rule="warning-model-type", message=_unverified(model_type)))
    if reading.problems:
        raise SpecError(tuple(reading.problems), f"{name}: not a usable model config")
    reasons += recurrent_reason(fields)
    return _spec(fields, name, known if known in ARCHITECTURES else model_type), tuple(reasons)


def _unverified(model_type: str) -> str:
    return (
        f"model_type {model_type[:60]!r} is unknown: it states only what a Llama states and is "
        "read as one; check the number of parameters"
    )


def _left_out(config: Mapping[str, Any]) -> list[Reason]:
    """Parts of a checkpoint that transformers does not build, as a reason."""
    stated = [key for key in MTP if config.get(key) not in OFF]
    if not stated:
        return []
    message = f"{stated[0]} (={config[stated[0]]}): heads that predict several tokens at once are "
    return [
        Reason(rule="model-left-out", message=message + "not built by transformers nor planned")
    ]


def _not_modelled(model_type: str, why: str) -> SpecError:
    """The error for an architecture that is not modelled."""
    message = f"architecture {model_type[:60]!r} is not modelled: {why}"
    hint = (
        "choose another model; `--model 7b`, with its size, plans a Llama-like model of that size, "
        "which is a rough guide at best"
    )
    return SpecError((Problem("model-not-modelled", message, hint),), message)


def _language_model(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str, list[Reason]]:
    """The part of the config with the language model, its model_type, and what was left out.

    Raises SpecError where the whole is not modelled.
    """
    outer = config.get("model_type")
    outer = outer if isinstance(outer, str) else "(none)"
    if outer in TOWERS:
        return *_beside_tower(outer, config), []
    if why := UNMODELLED.get(outer):
        raise _not_modelled(outer, why)
    if not isinstance(config.get("text_config"), Mapping):
        return config, outer, []
    inner = config["text_config"]
    if outer not in TEXT_TYPES:
        raise _not_modelled(outer, "it has a language model in `text_config` and other parts")
    model_type = str(inner.get("model_type", TEXT_TYPES[outer]))
    message = f"{outer[:60]} is multimodal: its language model alone is trained and planned"
    reason = Reason(rule="model-text-config", message=message)
    return inner, model_type, [reason]


def _beside_tower(outer: str, config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The language model beside a tower, nested or not, and its model_type."""
    if not isinstance(config.get("vision_config"), Mapping):
        raise _not_modelled(outer, "it has a vision tower, but no `vision_config`")
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        inner = {k: v for k, v in config.items() if k not in OF_THE_WHOLE}
        return inner, TOWERS[outer].text_type
    tied = config.get("tie_word_embeddings", TOWERS[outer].tied)
    text = inner if tied is None else {**inner, "tie_word_embeddings": tied}
    return text, str(inner.get("model_type", TOWERS[outer].text_type))


def _spec(fields: dict[str, Any], name: str, model_type: str) -> ModelSpec:
    try:
        return ModelSpec(name=name, model_type=model_type, **fields)
    except ValidationError as error:
        problems = tuple(
            Problem("model-config", problem["msg"], place=".".join(map(str, problem["loc"])))
            for problem in error.errors()
        )
        raise SpecError(problems, f"{name}: not a usable model config") from None


class _Reading(ConfigValues):
    """Reads one config as one architecture."""

    def __init__(self, config: Mapping[str, Any], architecture: Architecture) -> None:
        super().__init__(config)
        self.architecture = architecture

    def fields(self) -> dict[str, Any]:
        """ModelSpec fields, except experts and latent attention."""
        table = self.architecture
        fields: dict[str, Any] = dict(table.facts)
        for name, keys in table.keys.items():
            if keys or name not in fields:
                fields[name] = self.checked(name, keys, table.defaults.get(name))
        for switch in table.switches:
            if self.boolean(switch.key, default=switch.default):
                fields |= switch.on
        fields["dropout"] = {
            place: self.probability(keys, table.dropout_defaults.get(place, 0.0))
            for place, keys in table.dropout_keys.items()
        }
        self._derive(fields)
        self._window(fields)
        for name in REQUIRED:
            key = (table.keys.get(name) or (name,))[0]
            if fields.get(name) is None and all(p.place != key for p in self.problems):
                self.problem(key, f"{key} is missing")
        return {name: value for name, value in fields.items() if value is not None}

    def moe(self, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """MoeSpec fields; None if the model has no experts."""
        table = self.architecture
        keys = table.moe_keys
        if not keys or self.raw(keys["experts"], table.moe_defaults["experts"]) in (None, 0):
            return None
        defaults = {"expert_ffn_hidden_size": fields.get("ffn_hidden_size"), **table.moe_defaults}
        read = {
            name: self.checked(name, places, defaults.get(name)) for name, places in keys.items()
        }
        found = {name: value for name, value in read.items() if value is not None}
        shared = found.pop("shared_experts", 0) * found.get("expert_ffn_hidden_size", 0)
        self._dense_layers(found)
        for name in {"experts_per_token", "expert_ffn_hidden_size"} - found.keys():
            self.problem(keys[name][0], f"{keys[name][0]} is missing")
        return found | ({"shared_ffn_hidden_size": shared} if shared else {}) | table.moe_facts

    def _dense_layers(self, found: dict[str, Any]) -> None:
        """Layers without experts: leading ones, or every n-th; another order is not modelled."""
        kinds = self.raw(("mlp_layer_types",), None)
        if kinds is not None:
            listed = kinds if isinstance(kinds, list) else []
            first = found["first_dense_layers"] = listed.count("dense")
            if listed != ["dense"] * first + ["sparse"] * (len(listed) - first) or not listed:
                rule = "mlp_layer_types must be dense for leading layers and sparse for the others"
                self.problem("mlp_layer_types", rule)
        dense = self.raw(("mlp_only_layers",), None) or []
        if isinstance(dense, list) and dense == list(range(len(dense))):
            found.setdefault("first_dense_layers", len(dense))
        else:
            self.problem("mlp_only_layers", "mlp_only_layers must be the leading layers")
        if "layer_step" not in found and self.raw(("moe_layer_freq",), None) not in (None, 1):
            self.problem("moe_layer_freq", "moe_layer_freq must be 1: others are not modelled")

    def check_unread(self, fields: Mapping[str, Any], also_read: tuple[str, ...]) -> None:
        """Report parts of the model that its architecture entry does not cover."""
        for key, value in self.architecture.fixed.items():
            stated = self.raw((key,), None)
            if stated is not None and stated != value:
                rule = f"{key} (={str(stated)[:40]}) must be {value}: others are not modelled"
                self.problem(key, rule)
        read = {**fields, **(fields["moe"] or {})}
        for key, value in unread_parts(self.config, self.architecture, read):
            if key not in also_read:
                self.problem(key, f"{key} (={str(value)[:40]}) is not modelled")
        for kind in () if fields.get("layer_mixers") else self._layer_kinds():
            if kind not in ATTENTION_KINDS:
                self.problem("layer_types", f"layers of type {kind[:40]} are not modelled")

    def check_plain(self, model_type: str) -> None:
        """Report keys of an unknown architecture that a Llama does not have."""
        unknown = [
            f"{key} (={str(value)[:20]})"
            for key, value in unknown_keys(self.config, self.architecture)
        ]
        act = self.raw(("hidden_act",), "silu")
        if act not in PLAIN_ACTIVATIONS:
            unknown.append(f"hidden_act (={str(act)[:20]})")
        if unknown:
            shown = ", ".join(unknown[:MANY]) + (" ..." if len(unknown) > MANY else "")
            message = f"architecture {model_type[:60]!r} is not modelled: a Llama has no {shown}"
            self.problem("model_type", message, "choose another model")

    def _layer_kinds(self) -> list[str]:
        """Layer types that the config lists."""
        kinds = self.raw(("layer_types",), None)
        return sorted({str(kind) for kind in kinds}) if isinstance(kinds, list) else []

    def mla(self, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """MlaSpec fields; None if attention is not latent."""
        defaults = self.architecture.mla_defaults
        if not defaults:
            return None
        found = {
            name: self.checked(name, MLA_KEYS[name], default) for name, default in defaults.items()
        }
        needed = [name for name in found if name != "q_rank" or "index_heads" in defaults]
        for name in [name for name in needed if found[name] is None]:
            self.problem(MLA_KEYS[name][0], f"{MLA_KEYS[name][0]} is missing")
            found[name] = fields.get("head_size", 1)
        return found

    def check(self, fields: Mapping[str, Any]) -> None:
        """Check constraints between fields."""
        heads, groups = fields.get("attention_heads"), fields.get("kv_heads")
        if heads and groups and heads % groups:
            self.problem(
                "num_key_value_heads",
                f"num_key_value_heads (={groups}) must divide num_attention_heads (={heads})",
            )
        moe = fields.get("moe") or {}
        if moe.get("experts_per_token", 0) > moe.get("experts", LARGEST_OTHER):
            self.problem(
                "num_experts_per_tok",
                f"num_experts_per_tok (={moe['experts_per_token']}) must not exceed the experts "
                f"(={moe['experts']})",
            )

    def _derive(self, fields: dict[str, Any]) -> None:
        """Derive sizes that the config leaves out."""
        hidden, heads = fields.get("hidden_size"), fields.get("attention_heads")
        if fields.get("ffn_hidden_size") is None and self.architecture.ffn_factor:
            fields["ffn_hidden_size"] = (hidden or 1) * self.architecture.ffn_factor
        if fields.get("kv_heads") is None:
            fields["kv_heads"] = heads
        if fields.get("embedding_size") is None:
            fields["embedding_size"] = hidden
        if fields.get("head_size") is None and hidden and heads:
            if hidden % heads and not self.architecture.mla_defaults:
                rule = f"hidden size (={hidden}) must be a multiple of the heads (={heads})"
                self.problem("hidden_size", rule, "or state head_dim")
            fields["head_size"] = max(1, hidden // heads)

    def _window(self, fields: dict[str, Any]) -> None:
        """Sliding window, and the layers with full attention."""
        switch = self.architecture.window_switch
        off = switch and not self.boolean("use_sliding_window", default=False)
        kinds = self.raw(("layer_types",), None)
        kinds = kinds if isinstance(kinds, list) else []
        full = max(1, round(len(kinds) / kinds.count(FULL))) if FULL in kinds else None
        only_full = bool(kinds) and all(kind == FULL for kind in kinds)
        if off or only_full or not fields.get("sliding_window"):
            fields |= {"sliding_window": None, "sliding_window_pattern": None}
            return
        places = ("sliding_window_pattern", "_sliding_window_pattern")
        default = fields.get("sliding_window_pattern")
        default = self.architecture.defaults.get("sliding_window_pattern", default)
        fields["sliding_window_pattern"] = (
            full if kinds else self.checked("sliding_window_pattern", places, default)
        )
