"""Export of the final weights: gathered on one rank, written, read back and compared.

People lost whole runs to files of empty tensors that were saved under ZeRO-3 without gathering.
Here the weights are taken one parameter at a time, and the folder gets its name only after every
tensor was read back from the disk and equals the one in memory.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dsforge.checkpoints.export import Describe, Kind, undescribed
from dsforge.checkpoints.output.disk import drop_from_cache
from dsforge.checkpoints.output.new_folder import SILENT, replaced_folder, write_file
from dsforge.errors import DsforgeError, first_line
from dsforge.train.engines.engine import Engine
from dsforge.train.model.qlora import is_quantised
from dsforge.train.parallel.agreement import on_first_rank

ADAPTER = "default"  # peft's name for the only adapter
# A module that trains as a whole: its copy, and the frozen one that it stands for.
SAVED, FROZEN_COPY = f".modules_to_save.{ADAPTER}.", ".original_module."
AGAIN = "start again to write the weights: the last checkpoint is complete"
SLICE_ELEMENTS = 4 * 1024 * 1024
WORD = 2**64


class Companions(NamedTuple):
    """What goes along with weights: the tokenizer, and the files that describe them."""

    tokenizer: Any
    describe: Describe = undescribed

    def write(self, folder: Path, kind: Kind) -> None:
        """Write them into a folder of weights; peft's own card, which names paths, is replaced."""
        self.tokenizer.save_pretrained(folder)
        for name, content in self.describe(kind).items():
            (folder / name).unlink(missing_ok=True)
            write_file(folder / name, content)


def export(
    engine: Engine, tokenizer: Any, folder: Path, describe: Describe = undescribed
) -> Path | None:
    """The folder of the consolidated model; none on ranks other than the first.

    Adapters are merged into it, and stand alone in `adapter` beside it, as peft reads them; under
    QLoRA that folder is all there is. `describe` gives the files that describe each: model card
    and licences. All ranks must call it. Raises DsforgeError where the files
    do not hold the weights.
    """
    module, weights = engine.whole_weights()
    beside = Companions(tokenizer, describe)
    return on_first_rank(lambda: _write(module, weights, beside, folder))


def _write(module: Any, weights: dict[str, Any], beside: Companions, folder: Path) -> Path:
    """Write beside, check, rename."""
    empty = [name for name, tensor in weights.items() if tensor.numel() == 0]
    if empty:
        raise DsforgeError(f"{len(empty)} tensors were not gathered: {', '.join(empty[:5])}")
    if hasattr(module, "peft_config"):
        adapters = _adapters(weights)
        with _replacing(folder.with_name("adapter"), adapters) as temporary:
            module.save_pretrained(temporary, state_dict=weights, save_embedding_layers=False)
            check_files(temporary, adapters)
            beside.write(temporary, "adapter")
    if is_quantised(module):
        return folder.with_name("adapter")
    model, weights = _merged(module, weights)
    with _replacing(folder, weights) as temporary:
        model.save_pretrained(temporary, state_dict=weights)
        beside.write(temporary, "model")
        check_files(temporary, weights)
    return folder


@contextmanager
def _replacing(folder: Path, weights: dict[str, Any]) -> Iterator[Path]:
    """A folder to write into, which replaces `folder` on success."""
    from safetensors import SafetensorError

    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    try:
        with replaced_folder(folder, SILENT.say, needed_bytes=size) as temporary:
            yield temporary
            _share(temporary)
    except SafetensorError as error:  # its writer's form of an OSError
        raise DsforgeError(f"cannot write {folder}: {first_line(error)}", AGAIN) from error
    except DsforgeError as error:
        raise DsforgeError(error.message, f"{error.hint}; {AGAIN}".removeprefix("; ")) from error


def _share(folder: Path) -> None:
    """Weights get the permissions of the files beside them: safetensors writes for the owner only.

    So a colleague who can read a configuration can read the weights that it describes.
    """
    modes = [file.stat().st_mode for file in folder.glob("*config.json")]
    for file in folder.glob("*.safetensors"):
        file.chmod(stat.S_IMODE(min(modes, default=file.stat().st_mode)))


def _adapters(weights: dict[str, Any]) -> dict[str, Any]:
    """The adapters among the weights, by the names that peft writes."""
    found = {n: t for n, t in weights.items() if ".lora_" in n or SAVED in n}
    return {n.replace(SAVED, ".").replace(f".{ADAPTER}.", "."): t for n, t in found.items()}


def _merged(module: Any, weights: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The plain model and its weights; adapters are added into the matrices that they adapt.

    Hu et al. 2021, equation 3: W + (alpha / rank) B A, computed in fp32.
    """
    if not hasattr(module, "peft_config"):
        return module, weights
    settings = module.peft_config[ADAPTER]
    merged: dict[str, Any] = {}
    for name, tensor in weights.items():
        if ".lora_" in name or FROZEN_COPY in name:
            continue
        plain = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
        plain = plain.replace(SAVED, ".")
        if ".base_layer.weight" in name:
            stem = name.removesuffix(".base_layer.weight")
            down = weights[f"{stem}.lora_A.{ADAPTER}.weight"].float()
            up = weights[f"{stem}.lora_B.{ADAPTER}.weight"].float()
            change = (settings.lora_alpha / settings.r) * (up @ down)
            merged[plain] = (tensor.float() + change).to(tensor.dtype)
        else:
            merged[plain] = tensor
    return module.get_base_model(), merged


def check_files(folder: Path, weights: dict[str, Any]) -> None:
    """Read every tensor back from the disk. Raises DsforgeError where one is empty or different.

    Tensors that were renamed, split or joined on the way are compared by their values together.
    """
    from safetensors import safe_open

    seen: set[str] = set()
    elements = 0
    unknown: list[Any] = []
    for file in sorted(folder.glob("*.safetensors")):
        drop_from_cache(file)
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a dict
                tensor = stored.get_tensor(name)
                elements += tensor.numel()
                seen.add(name)
                known = weights.get(name)
                if tensor.numel() == 0 or (known is not None and not _equal(tensor, known)):
                    raise DsforgeError(f"{file.name}: `{name}` differs from the model")
                if known is None:
                    unknown.append(_digest(tensor))
    expected = sum(tensor.numel() for tensor in weights.values())
    left = {name: tensor for name, tensor in weights.items() if name not in seen}
    if elements != expected:
        missing = ", ".join(sorted(left)[:5])
        message = (
            f"the files contain {elements} values, the model has {expected}; missing: {missing}"
        )
        raise DsforgeError(message)
    if sum(unknown) % WORD != sum(_digest(tensor) for tensor in left.values()) % WORD:
        raise DsforgeError(f"values differ from those of the model: {', '.join(sorted(left)[:5])}")


def _equal(one: Any, other: Any) -> bool:
    """Whether two tensors have one shape, one type and the same bits."""
    import torch

    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(torch.equal(_bits(one), _bits(other)))


def _bits(tensor: Any) -> Any:
    """The bytes of a tensor."""
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _digest(tensor: Any) -> int:
    """A sum over the bits of all elements, the same in whatever order and tensors they lie."""
    import numpy as np

    width = tensor.element_size()
    bits = _bits(tensor).numpy().view(f"u{width}")
    total = 0
    for begin in range(0, bits.size, SLICE_ELEMENTS):
        words = bits[begin : begin + SLICE_ELEMENTS].astype(np.uint64) + np.uint64(width)
        words *= np.uint64(0x9E3779B97F4A7C15)  # odd, so that no two elements become one
        words ^= words >> np.uint64(29)
        total += int(words.sum(dtype=np.uint64))
    return total % WORD
