"""A vision tower beside the language model: what of it trains, computes and keeps.

It computes each patch once; `patches_per_token` of them become one token of the language model.
Nothing before the tower trains, so a frozen one needs no backward pass and keeps nothing. Its
layers are counted by their parameters: four square matrices of attention, the rest the MLP.
Attention between the patches of an image is left out: how many those are is not known.
"""

from __future__ import annotations

from dsforge.specs import ModelSpec, TowerSpec, Workload
from dsforge.strategy import Strategy
from dsforge.traced import counted, maximum, named

MATRICES = 4  # square ones of attention: query, key, value, output
NORMED = 4  # vectors of the hidden size that two layer norms keep: input and result


def tower_parameters(model: ModelSpec) -> int:
    """Parameters of a vision tower and of its projector."""
    if model.tower is None:
        return 0
    found = model.tower.parameters + model.tower.projector_parameters
    return named(found, "tower_parameters", "elements", "vision tower and projector")


def frozen_parameters(model: ModelSpec, workload: Workload) -> int:
    """Parameters of tower and projector that full training leaves as they are."""
    tower, trained = model.tower, workload.vision_training
    if tower is None or trained == "all":
        return 0
    found = tower_parameters(model)
    found -= tower.projector_parameters if trained == "projector" else 0
    return named(found, "frozen_parameters", "elements", "of the vision tower")


def trained_beside_adapters(model: ModelSpec, workload: Workload) -> int:
    """Parameters of the projector, and of adapters on the tower, that train with LoRA.

    An adapter has rank x (inputs + outputs) of its matrix; the projector trains as a whole.
    """
    tower, lora, trained = model.tower, workload.lora, workload.vision_training
    if tower is None or lora is None or trained == "frozen":
        return 0
    found = tower.projector_parameters
    if trained == "all":
        square = sum(name in lora.targets for name in ("query", "key", "value", "output"))
        inner = sum(name in lora.targets for name in ("up", "down"))
        sides = 2 * square * tower.hidden_size + inner * (tower.hidden_size + _inner_width(tower))
        found += lora.rank * tower.layers * sides
    return named(found, "trained_vision_parameters", "elements", "projector, adapters of the tower")


def tower_flops(model: ModelSpec, workload: Workload, *, repeated: float = 0.0) -> float:
    """FLOPs of the tower for one token of a sample, forward and backward.

    `repeated`: share of the forward pass that backward computes again. Two FLOPs for each parameter
    and patch in a pass: one pass forward; backward two where the weights train, one where adapters
    do, none where the tower is frozen.
    """
    tower, patches = model.tower, _patches(model, workload)
    if tower is None or not patches:
        return 0.0
    trained = workload.vision_training
    backward = (1.0 if workload.method == "lora" else 2.0) if trained == "all" else 0.0
    passes = 1.0 + backward + (repeated if backward else 0.0)
    passes = counted(passes, "vision_passes", "passes", of=workload.sequence_length)
    projected = (2.0 if trained == "frozen" else 4.0) * tower.projector_parameters
    flops = 2.0 * passes * tower.parameters + projected / tower.patches_per_token
    return named(flops * patches, "vision_token_flops", "FLOP")


def saved_elements(model: ModelSpec, workload: Workload, strategy: Strategy) -> float:
    """Elements of the tower's activations that wait for backward, per token of a sample."""
    tower, patches = model.tower, _patches(model, workload)
    if tower is None or not patches or workload.vision_training != "all":
        return 0.0
    layer = 1.0 * tower.hidden_size
    if strategy.recompute != "full":
        layer = (NORMED + MATRICES) * layer + 2 * _inner_width(tower)
    found = tower.layers * layer * patches
    return named(found, "vision_saved_elements", "elements", "activations of a tower that trains")


def _inner_width(tower: TowerSpec) -> int:
    """Width of a plain MLP with the parameters that attention leaves in a layer."""
    width, layers = tower.hidden_size, tower.layers
    left = maximum(0, tower.parameters - MATRICES * width * width * layers)
    found: int = left // (2 * width * layers)
    return named(found, "vision_mlp_width", "elements")


def _patches(model: ModelSpec, workload: Workload) -> float:
    """Patches that the tower computes, for one token of a sample."""
    if model.tower is None or not workload.image_tokens:
        return 0.0
    patches = workload.image_tokens * model.tower.patches_per_token
    return named(patches / workload.sequence_length, "patches_of_a_token", "patches")
