"""What two shapes that do not fit tell by their numbers alone: facts that cases of rules ask for.

Each fact is a word; a rule's cases look for the words. Sizes are numbers of elements.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from math import isqrt, prod

from dsforge.diagnose.rule import MatchedLine
from dsforge.diagnose.source_lines import with_source

Shape = tuple[int, ...]
ADDED_AT_MOST = 0.1  # of a vocabulary, that tokens are added or rows padded
NEAR = 2
TWICE = 2
MATRIX = 2  # dimensions
WITH_HEADS = (3, 4)  # dimensions of keys and values: (batch,) length, heads, width
WIDEST = 100_000  # of a layer; what is wider is packed
LARGEST = 1_000_000  # size that is split over ranks
CLASSES_AT_MOST = 2000  # of a head; vocabularies are larger
HEADS_AT_MOST = 64  # times that query heads are more than those of keys and values
WIDTHS = {  # hidden sizes by which models are known
    384: "MiniLM or ViT-S",
    512: "CLIP's text part or T5-small",
    768: "the base size (BERT, GPT-2, ViT-B, CLIP-L; SD 1.x text)",
    1024: "the large size (BERT-large, ViT-L, CLIP vision; SD 2.x text)",
    1280: "GPT-2 large, ViT-H, Whisper large or CLIP-G",
    1408: "ViT-g",
    1536: "Qwen2 1.5B or DeBERTa-xlarge",
    1600: "GPT-2 XL",
    2048: "a 1B model (or SDXL's text)",
    2560: "a 3B model",
    3072: "a 3B model (Llama 3.2, Phi-3 mini)",
    3200: "OpenLLaMA 3B",
    3584: "Qwen2 7B or Gemma 2 9B",
    4096: "a 7B or 8B model (Llama, Mistral; T5-XXL's text)",
    5120: "a 13B or 14B model",
    6656: "Llama 30B",
    8192: "a 70B model",
}
LIMITS = {
    77: "CLIP's text encoder takes 77 tokens",
    256: "a model or setting of 256 tokens",
    512: "BERT, RoBERTa, T5 and their kin take 512 tokens",
    514: "RoBERTa's position table has 514 rows (512 tokens)",
    1024: "GPT-2 and BART take 1024 tokens",
    1500: "Whisper's encoder takes 1500 frames (30 s)",
    2048: "a model or setting of 2048 tokens",
    4096: "a model or setting of 4096 tokens",
}
IMAGES = 4  # dimensions of a batch of images
UNET_WIDTH = 320  # of the first layer of Stable Diffusion's UNets
LATENTS = {4, 5, 8, 9}  # channels that they take: plain, depth, changed by text, inpainting
_CONVOLUTION = re.compile(
    r"(?:weight (?:of size )?\[(?P<weight>[\d, ]+)\][^\n]{0,20})?"
    r"expected input ?\[(?P<shape>[\d, ]+)\]"
)
TABLES = (77, 512, 514, 1500)  # of those, the rows of position tables
VOCABULARY_AT_LEAST = 20_000
MAP_AT_MOST = 4096  # side of a feature map, rows of a batch; what is longer is a text
ROUNDED_AT_MOST = 8  # by which maps differ where a size is no multiple of the strides
ROUNDED_BELOW = 320  # sides of such maps; longer ones are texts, most often
UNET_WIDTHS = {
    320,
    640,
    960,
    1280,
    1920,
    2560,
}  # channels of the blocks of Stable Diffusion's UNets
CLASS_COUNTS = {  # numbers of classes by which data sets are known
    10: "CIFAR-10 and MNIST",
    19: "Cityscapes",
    20: "PASCAL VOC",
    21: "PASCAL VOC with background",
    80: "COCO",
    81: "COCO with background",
    91: "the numbers of COCO's categories",
    100: "CIFAR-100",
    101: "UCF101 and Food-101",
    150: "ADE20K",
    200: "Tiny ImageNet and CUB",
    1000: "ImageNet",
}
CHANNELS_AT_MOST = 4  # of an image: grey, RGB, RGB with transparency
IMAGE_CHANNELS = {1, 3, CHANNELS_AT_MOST}
_TWO_SIZES = re.compile(
    r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)|"
    r"expanded size of the tensor \((\d+)\) must match the existing size \((\d+)\)"
)
PAIR_FACTS: dict[str, Callable[[Shape, Shape], bool]] = {
    "empty": lambda a, b: 0 in a or 0 in b,
    "packed": lambda a, b: _packs(a, b) or _packs(b, a),
    "transposed": lambda a, b: len(a) > 1 and a == b[::-1] and a != b,
    "convolution": lambda a, b: len(a) != len(b) and prod(a) == prod(b) and 1 in (*a, *b),
    "first-only": lambda a, b: len(a) == len(b) and a[0] != b[0] and a[1:] == b[1:],
    "last-only": lambda a, b: len(a) == len(b) and a[-1] != b[-1] and a[:-1] == b[:-1],
    "added": lambda a, b: len(a) == len(b) and _few(a[0], b[0]) and a[1:] == b[1:],
    "classes": lambda a, b: _is_table(a, b) and max(a[0], b[0]) <= CLASSES_AT_MOST,
    "plus-one": lambda a, b: sum(abs(x - y) for x, y in zip(a, b, strict=False)) == 1,
    "double": lambda a, b: _times(a, b) == TWICE,
    "times": lambda a, b: _times(a, b) > 1,
}
MATRIX_FACTS: dict[str, Callable[[int, int, int, int], bool]] = {
    "packed": lambda r, c, k, n: 1 in (k, n) and max(k, n) > WIDEST,
    "empty": lambda r, c, k, n: min(k, n) <= 1,
    "near": lambda r, c, k, n: 0 < abs(c - k) <= NEAR,
    "double": lambda r, c, k, n: max(c, k) == TWICE * min(c, k),
    "transposed": lambda r, c, k, n: c == n,
    "known": lambda r, c, k, n: c in WIDTHS and k in WIDTHS,
    "unflattened": lambda r, c, k, n: k > c > 0 and k % c == 0 and r % (k // c) == 0,
    "flattened": lambda r, c, k, n: c > k,
}


def numbers(text: str) -> Shape:
    """The whole numbers of a text, in their order."""
    return tuple(int(digits) for digits in re.findall(r"\d+", text))


def shape_facts(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The facts of the two shapes of a message (`saved` and `model`, or `one` and `other`)."""
    values = hits[0].values
    one, other = (
        numbers(values.get(first) or values.get(second) or "")
        for first, second in (("saved", "one"), ("model", "other"))
    )
    facts = [name for name, fact in PAIR_FACTS.items() if one and other and fact(one, other)]
    return {
        **with_source(hits),
        "facts": " ".join(facts),
        "ratio": str(_times(one, other)),
        "rows": str(one[0]) if one else "",
        "rows_here": str(other[0]) if other else "",
        **_model_sizes(one, other),
    }


def _model_sizes(one: Shape, other: Shape) -> dict[str, str]:
    """The models by whose widths two shapes are known: of the last dimension in which both are."""
    for x, y in zip(reversed(one), reversed(other), strict=False):
        if x != y and x in WIDTHS and y in WIDTHS:
            return {"one_width": WIDTHS[x], "other_width": WIDTHS[y]}
    return {"one_width": "", "other_width": ""}


def matrix_facts(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The facts of two matrices that cannot be multiplied, and sizes that would do."""
    one, other = (numbers(hits[0].values.get(name, "")) for name in ("one", "other"))
    if not len(one) == len(other) == MATRIX:
        return with_source(hits)
    (r, c), (k, n) = one, other
    facts = [name for name, fact in MATRIX_FACTS.items() if fact(r, c, k, n)]
    return {
        **with_source(hits),
        "facts": " ".join(facts),
        "width": str(c),
        "wanted": str(k),
        "out": str(n),
        "batch": str(r * c // k) if k else "",
        "one_width": WIDTHS.get(c, ""),
        "other_width": WIDTHS.get(k, ""),
    }


def tensor_facts(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The facts of two sizes that must match, of a view, or of images of other channels."""
    values = view_facts(hits)
    what = hits[0].values.get("what", "") or hits[0].text
    joined = re.search(r"Expected size (\d+) but got size (\d+)", what)
    if joined and abs(int(joined[1]) - int(joined[2])) == 1:
        return {**values, "facts": "next"}
    sizes = _TWO_SIZES.search(what)
    if sizes is None:
        return values
    a, b = sorted(int(size) for size in sizes.groups() if size)
    facts = [
        *(["plus-one"] if b == a + 1 and a > CHANNELS_AT_MOST else []),
        *(["channels"] if a != b and {a, b} <= IMAGE_CHANNELS else []),
        *(["limit"] if a in LIMITS and b > a + (a not in TABLES) else []),
        *(["vocabulary"] if a > VOCABULARY_AT_LEAST and _few(a, b) else []),
        *(["double"] if a > CHANNELS_AT_MOST and b == TWICE * a else []),
        *(["times"] if a > 1 and b % a == 0 and b != a else []),
        *(["small-times"] if 1 < a < b <= MAP_AT_MOST and b % a == 0 else []),
        *(["square"] if a > CHANNELS_AT_MOST and b == a * a else []),
        *(["picture"] if 1 < a <= CHANNELS_AT_MOST < b <= CLASSES_AT_MOST else []),
        *(["empty"] if not a else []),
        *(["rounded"] if _rounded(a, b) else []),
        *(["unet"] if a != b and {a, b} <= UNET_WIDTHS else []),
        *(["known-classes"] if {a, b} & set(CLASS_COUNTS) and b <= max(CLASS_COUNTS) else []),
    ]
    axis = re.search(r"at non-singleton dimension (\d)", what)
    more = {"short": str(a), "long": str(b), "limit": LIMITS.get(a, "")}
    more |= {"axis": axis[1] if axis else "", "ratio": str(b // a) if a else ""}
    known = [f"{size} is that of {CLASS_COUNTS[size]}" for size in (a, b) if size in CLASS_COUNTS]
    more["classes"] = ", ".join(known)
    return {**values, **more, "facts": " ".join([values["facts"], *facts]).strip()}


def view_facts(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The facts of a view or reshape: what its numbers of elements are to each other."""
    what = hits[0].values.get("what", "")
    found = re.search(r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)", what)
    values = {**with_source(hits), "facts": ""}
    if found is None:
        return values
    shape = [int(part) for part in re.findall(r"-?\d+", found[1])]
    size, fixed = int(found[2]), prod(abs(part) for part in shape if part not in (-1, 0))
    facts = ["zero"] if 0 in shape else []
    if -1 in shape and size % fixed and not facts:
        return {**values, "facts": "remainder", "size": str(size), "fixed": str(fixed)}
    if grid := _grid(shape, size):
        return {**values, **grid, "facts": "grid"}
    if -1 not in shape and 0 not in shape and size and fixed % size == 0:
        ratio = fixed // size
        values["ratio"] = str(ratio)
        facts.append(
            "fewer-heads" if len(shape) in WITH_HEADS and ratio <= HEADS_AT_MOST else "fewer"
        )
        facts += ["empty-weight"] if len(shape) == WITH_HEADS[1] and size == prod(shape[:2]) else []
    elif fixed and size > fixed and size % fixed == 0:
        values["ratio"] = str(size // fixed)
        facts.append("more")
    return {**values, "facts": " ".join(facts)}


def _grid(shape: list[int], size: int) -> dict[str, str]:
    """The side of a square feature map, where a view asks for another."""
    sides = [one for one, other in pairwise(shape) if one == other > 1]
    if len(sides) != 1 or len(shape) < IMAGES or min(shape) < 1:
        return {}
    rest = prod(shape) // sides[0] ** 2
    side = isqrt(size // rest)
    fits = side * side * rest == size and side != sides[0]
    return {"grid": str(side), "grid_wanted": str(sides[0])} if fits else {}


def divisors_of(size: int, most: int) -> list[int]:
    """The numbers up to `most` that divide a size, ascending."""
    return [number for number in range(1, most + 1) if size % number == 0]


def divisors(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The numbers by which a size can be split, where a message has two numbers."""
    values = hits[0].values
    found = [numbers(values.get(name, "")) for name in ("what", "by")]
    known = {**with_source(hits), "legal": "", "size": ""}
    if not (found[0] and found[1]) or not 0 < found[0][-1] <= LARGEST:
        return known
    size, by = found[0][-1], found[1][-1]
    legal = map(str, divisors_of(size, min(size, max(by * 2, 2))))
    above = -(-size // by) * by if by else size
    return {
        **known,
        "size": str(size),
        "by_size": str(by),
        "legal": ", ".join(legal),
        "above": str(above),
    }


def batch_facts(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """How the shapes of two samples of one batch differ."""
    one, other = (numbers(hits[0].values.get(name) or "") for name in ("one", "other"))
    known = {**with_source(hits), "facts": "", "dims": ""}
    if not one or not other:
        return known
    known["dims"] = "same" if len(one) == len(other) else "differ"
    if len(one) == len(other) and len(one) > 1:
        known["facts"] = "images"
        if (
            one[0] != other[0]
            and one[1:] == other[1:]
            and max(one[0], other[0]) <= CHANNELS_AT_MOST
        ):
            known["dims"] = "channels"
    return {**known, "channels_one": str(one[0]), "channels_other": str(other[0])}


def mask_places(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """By how many keys a mask is too long or too short, and what such keys are."""
    wanted, got = (numbers(hits[0].values[name]) for name in ("one", "other"))
    values = {"reading": "", "remedy": "", **with_source(hits)}
    if not wanted or not got or len(wanted) != len(got):
        return values
    more = got[-1] - wanted[-1]
    if more > 0:
        values["reading"] = (
            f"the mask has {more} keys too many: the virtual tokens of prefix or prompt tuning, or "
            "a cache of earlier tokens, which this model's code does not add to its keys"
        )
        values["remedy"] = (
            "$ pip install --upgrade peft transformers   # prefix tuning needs a release of both "
            "that fits; LoRA works with all"
        )
    elif more < 0:
        values["reading"] = (
            f"the keys are {-more} more than the mask: a cache of earlier tokens was kept"
        )
        values["remedy"] = "model.config.use_cache = False    # in training, and with checkpointing"
    elif wanted[0] != got[0]:
        values["reading"] = f"the batch is {wanted[0]}, and the mask is for {got[0]} rows"
    return values


def pair_facts(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The facts of two counts that must be equal: outputs (`one`) and labels (`other`)."""
    one, other = (numbers(hits[0].values.get(name) or "") for name in ("one", "other"))
    known = {**with_source(hits), "facts": "", "ratio": ""}
    if not len(one) == len(other) == 1:
        return known
    a, b = one[0], other[0]
    if not a or not b:
        return {**known, "facts": "empty"}
    if max(a, b) % min(a, b) == 0 and a != b:
        way = "target-times" if b > a else "input-times"
        return {**known, "facts": way, "ratio": str(max(a, b) // min(a, b))}
    return {**known, "facts": "more" if a > b else "fewer"}


def channel_facts(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """Where the channels of a convolution's input are, and what kind of input it is."""
    found = _CONVOLUTION.search(hits[0].text)
    wanted = int(hits[0].values["wanted"])
    if found is None:
        return {**with_source(hits), "layout": ""}
    weight, shape = numbers(found["weight"] or ""), numbers(found["shape"])
    given = shape[1] if len(shape) > 1 else 0
    layouts = (
        ("last", len(shape) == IMAGES and shape[-1] == wanted),
        ("last-1d", len(shape) < IMAGES and shape[-1] == wanted),
        ("latents", weight[:1] == (UNET_WIDTH,) and {wanted, given} <= LATENTS),
        ("images", len(shape) == IMAGES),
        ("series", True),
    )
    layout = next(name for name, fits in layouts if fits)
    return {**with_source(hits), "layout": layout, "shape": str(list(shape)), "given": str(given)}


def _is_table(one: Shape, other: Shape) -> bool:
    """Whether two shapes are tables that differ in their rows, or square ones."""
    if len(one) != len(other) or one[0] == other[0]:
        return False
    return one[1:] == other[1:] or (len(set(one)) == 1 and len(set(other)) == 1)


def _packs(packed: Shape, plain: Shape) -> bool:
    """Whether a shape is that of another packed to 4 bit: two weights in a byte, in one column."""
    return len(packed) == MATRIX and packed[1] == 1 and prod(packed) * TWICE == prod(plain)


def _few(one: int, other: int) -> bool:
    """Whether two sizes differ by few rows only."""
    return 0 < abs(one - other) <= ADDED_AT_MOST * max(one, other)


def _rounded(short: int, long: int) -> bool:
    """Whether two sides of feature maps differ as where a size is no multiple of the strides."""
    return 2 * ROUNDED_AT_MOST < short < ROUNDED_BELOW and 1 < long - short <= ROUNDED_AT_MOST


def _times(one: Shape, other: Shape) -> int:
    """How many times one shape is the other, in the only dimension in which they differ; else 0."""
    if len(one) != len(other):
        return 0
    differing = [(x, y) for x, y in zip(one, other, strict=True) if x != y]
    if len(differing) != 1:
        return 0
    large, small = max(differing[0]), min(differing[0])
    return large // small if small and large % small == 0 else 0
