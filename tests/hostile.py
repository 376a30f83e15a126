"""Files made to harm whoever loads them: pickles that call, that cost, that lie; other archives.

Every program that would run writes a canary, a file that must never appear. Nothing here is run:
the tests look at these files with `dsforge ckpt`, which must refuse them.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any, NamedTuple


class Attack(NamedTuple):
    """A pickle in place of a good one; `runs` where torch.load without limits would run code."""

    name: str
    pickle: bytes
    runs: bool


def chance(seed: object) -> random.Random:
    """Random choices that are the same for the same seed."""
    return random.Random(str(seed))  # noqa: S311 - nothing is to be kept secret


def text(value: str) -> bytes:
    """The opcode of a text."""
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def glob(module: str, name: str) -> bytes:
    """The opcode of a name to import."""
    return f"c{module}\n{name}\n".encode()


def stack_global(module: str, name: str) -> bytes:
    """The same by opcodes of protocol 4; the name may have dots."""
    return text(module) + text(name) + b"\x93"


def call(what: bytes, *arguments: bytes) -> bytes:
    """A call with arguments."""
    return what + b"(" + b"".join(arguments) + b"tR"


def before(program: bytes, good: bytes, protocol: int = 2) -> bytes:
    """A program whose result is dropped before a good pickle goes on."""
    return bytes([0x80, protocol]) + program + b"0" + good[2:]


def beside(program: bytes, good: bytes) -> bytes:
    """A program whose result stands beside what a good pickle gives."""
    return b"\x80\4" + program + good[2:-1] + b"\x86."


def callables(canary: Path) -> dict[str, bytes]:
    """Calls that no checkpoint needs, by name."""
    touch = f"touch {canary}"
    python = f"open({str(canary)!r}, 'w').close()"
    one = {
        **dict.fromkeys(("os.system", "posix.system", "os.popen", "subprocess.getoutput"), touch),
        **dict.fromkeys(("builtins.exec", "builtins.eval", "__builtin__.eval"), python),
        **dict.fromkeys(("timeit.timeit", "cProfile.run", "profile.run", "pdb.run"), python),
        **dict.fromkeys(("trace.Trace", "code.interact", "pydoc.locate", "pydoc.pipepager"), "os"),
        **dict.fromkeys(("builtins.__import__", "importlib.import_module"), "antigravity"),
        **dict.fromkeys(("ctypes.CDLL", "runpy.run_path", "runpy.run_module"), "libc.so.6"),
        **dict.fromkeys(("pickle.loads", "_pickle.loads", "marshal.loads"), python),
        **dict.fromkeys(("torch.load", "torch.storage._load_from_bytes", "torch.hub.load"), touch),
        **dict.fromkeys(("numpy.load", "shelve.open", "webbrowser.open", "shutil.rmtree"), touch),
        **dict.fromkeys(("os.remove", "os.mkdir", "os.unlink", "pty.spawn", "os.putenv"), touch),
        **dict.fromkeys(("operator.methodcaller", "operator.attrgetter"), "system"),
        **dict.fromkeys(("builtins.print", "builtins.input", "builtins.open"), str(canary)),
        **dict.fromkeys(("logging.config.dictConfig", "torch.utils.cpp_extension.load"), touch),
        **dict.fromkeys(("argparse.ArgumentParser", "torch.FloatStorage", "torch.Tensor"), touch),
        **dict.fromkeys(("collections.ChainMap", "builtins.list", "functools.partial"), touch),
    }
    found = {n: call(glob(*n.rsplit(".", 1)), text(argument)) for n, argument in one.items()}
    dotted = {"torch.serialization": "os.system", "torch": "serialization.os.system"}
    dotted |= {"collections": "OrderedDict.fromkeys", "torch._utils": "torch.hub.load"}
    for module, name in dotted.items():
        found[f"{module}:{name}"] = call(stack_global(module, name), text(touch))
    return found


def forms(canary: Path) -> dict[str, bytes]:
    """Ways to call, each of os.system or of something that leads to it."""
    system, touch = glob("os", "system"), text(f"touch {canary}")
    getattr_ = glob("builtins", "getattr")
    os_ = call(glob("builtins", "__import__"), text("os"))
    scaler = glob("deepspeed.runtime.fp16.loss_scaler", "LossScaler")
    ordered = call(glob("collections", "OrderedDict"))
    rebuild = glob("torch._tensor", "_rebuild_from_type_v2")
    kind = glob("torch.nn.parameter", "Parameter")
    state = glob("deepspeed.runtime.zero.config", "ZeroStageEnum")
    return {
        "instance": b"(" + touch + b"ios\nsystem\n",
        "object": b"(" + system + touch + b"o",
        "new-object": glob("subprocess", "Popen") + b"(" + touch + b"t\x81",
        "new-object-by-name": glob("subprocess", "Popen") + b"(" + touch + b"t}\x92",
        "stack-global": call(stack_global("os", "system"), touch),
        "memo": system + b"q\xff0" + call(b"h\xff", touch),
        "long-memo": system + b"r\0\1\0\0000" + call(b"j\0\1\0\0", touch),
        "text-memo": system + b"p77\n0" + call(b"g77\n", touch),
        "memoize": system + b"\x940" + b"0" + call(system, touch),
        "duplicate": system + b"2" + touch + b"\x85R0",
        "python-2-text": system + b"S'touch x'\n\x85R",
        "short-python-2-text": system + b"U\x07touch x\x85R",
        "getattr": call(call(getattr_, os_, text("system")), touch),
        "getattr-of-a-name": call(call(getattr_, glob("os", "path"), text("os")), touch),
        "old-getattr": call(call(glob("__builtin__", "getattr"), os_, text("system")), touch),
        "method-of-the-enum": call(call(getattr_, state, text("__subclasses__"))),
        "enum-then-name": call(getattr_, call(getattr_, state, text("weights")), text("name")),
        "from-type": call(rebuild, system, kind, touch + b"\x85", b"N"),
        "from-type-twice": call(
            rebuild, rebuild, kind, b"(" + system + kind + touch + b"\x85Nt", b"N"
        ),
        "type-of-a-tensor": call(rebuild, glob("collections", "OrderedDict"), system, b")", b"N"),
        "factory": call(glob("collections", "defaultdict"), system),
        "state": scaler + b")\x81}" + text("update_scale") + system + b"sb",
        "slots": scaler + b")\x81N}" + text("__class__") + system + b"s\x86b",
        "arguments": call(scaler, system),
        "state-of-a-name": system + b"}" + text("x") + b"K\1sb",
        "state-of-a-dict": ordered + b"}" + text("update") + system + b"sb",
        "item-of-a-name": glob("os", "environ") + text("LD_PRELOAD") + text("x.so") + b"s",
        "items-of-a-name": glob("sys", "modules") + b"(" + text("os") + b"Nu",
        "appended-to-a-name": glob("sys", "path") + text(str(canary.parent)) + b"a",
        "extended-name": glob("sys", "path") + b"(" + text(str(canary.parent)) + b"e",
        "member-of-a-name": glob("sys", "path") + b"(" + text("x") + b"\x90",
        "call-of-a-result": call(call(scaler), touch),
        "key-of-a-dict": b"}" + call(system, touch) + b"K\1s",
        "member-of-a-set": b"\x8f(" + call(system, touch) + b"\x90",
        "in-a-list": b"](" + call(system, touch) + b"e",
        "in-a-tuple": call(system, touch) + b"\x85",
        "behind-a-frame": b"\x95\0\0\0\0\0\0\0\0" + call(system, touch),
        "codec": call(system, touch) + call(glob("_codecs", "encode"), text("x"), text("rot13")),
        "nested-partial": call(call(glob("functools", "partial"), system), touch),
        "no-parameter": call(system, touch)
        + call(glob("torch._utils", "_rebuild_parameter"), b"N", b"\x88", b"N"),
    }


def nested(open_: bytes, close: bytes, depth: int) -> bytes:
    """Something in something in something."""
    return open_ * depth + close * depth


def shared(make: bytes, levels: int, wide: int) -> bytes:
    """Containers that hold the one below many times: 1 kB that unfolds beyond all bounds."""
    program = make
    for level in range(levels):
        program += b"q" + bytes([level]) + b"0" + b"(" + (b"h" + bytes([level])) * wide + b"l"
    return program


def tensor(
    shape: bytes, stride: bytes = b"K\1\x85", offset: bytes = b"K\0", key: str = "0"
) -> bytes:
    """A tensor with a shape of its own."""
    storage = b"(" + text("storage") + glob("torch", "FloatStorage") + text(key) + text("cpu")
    storage += b"K\1tQ"
    ordered = call(glob("collections", "OrderedDict"))
    rebuild = glob("torch._utils", "_rebuild_tensor_v2")
    return call(rebuild, storage, offset, shape, stride, b"\x89", ordered)


def costs() -> dict[str, bytes]:
    """Programs that ask for much, or for what no value can be."""
    huge = b"\x8a\xff" + b"\x7f" * 255
    digits = b"L" + b"9" * 600 + b"L\n"
    infinite = b"G\x7f\xf0\0\0\0\0\0\0"
    big = b"\x8a\x09" + b"\0" * 8 + b"\x01"
    collide = b"".join(
        b"\x8a\x10" + ((n + 1) * (2**61 - 1)).to_bytes(16, "little") + b"N" for n in range(3000)
    )
    pairs = b"](" + (b"](K\1K\2e" * 1000) + b"eq\x000"
    ordered = glob("collections", "OrderedDict")
    return {
        "shared-lists": shared(b"]", 40, 10),
        "shared-lists-called": glob("torch", "Size") + shared(b"]", 40, 10) + b"\x85R",
        "shared-tuples": b")" + b"2\x86" * 60,
        "shared-tuple-as-key": b"})" + b"2\x86" * 40 + b"Ns",
        "shared-tuple-in-a-set": b"\x8f()" + b"2\x86" * 60 + b"\x90",
        "deep-lists": nested(b"](", b"e", 200_000),
        "deep-tuples": b")" + b"\x85" * 1_000_000,
        "deep-tuple-as-key": b"})" + b"\x85" * 1_000_000 + b"Ns",
        "deep-tuple-in-a-set": b"\x8f()" + b"\x85" * 1_000_000 + b"\x90",
        "deep-dicts": nested(b"}K\0", b"s", 100_000).replace(b"K\0s", b"K\0Ns", 1),
        "deep-from-type": glob("torch._tensor", "_rebuild_from_type_v2")
        + b"N"
        + b"\x85" * 5000
        + b"R",
        "list-in-itself": b"]q\0h\0a",
        "dict-in-itself": b"}q\0K\0h\0s",
        "list-in-a-tuple-in-itself": b"]q\0h\0\x85a",
        "many-marks": b"(" * 3_000_000,
        "many-dicts": b"](" + b"}" * 5_000_000 + b"e",
        "many-opcodes": b"K\x000" * 6_000_000,
        "many-memos": b"K\0" + b"\x94" * 9_000_000,
        "many-copies": pairs + (ordered + b"h\0\x85R0") * 30_000,
        "long-number": b"\x8b\0\0\0\x01" + b"\x7f" * 2**24,
        "number-of-255-bytes": huge,
        "number-of-600-digits": digits,
        "colliding-keys": b"}(" + collide + b"u",
        "text-longer-than-the-file": b"\x8d" + b"\xff" * 7 + b"\x0f",
        "bytes-longer-than-the-file": b"\x8e" + b"\xff" * 7 + b"\x0f",
        "text-that-is-none": b"X\4\0\0\0\xff\xfe\xfd\xfc",
        "shape-infinite": tensor(infinite + b"\x85"),
        "shape-of-600-digits": tensor(digits + b"\x85"),
        "shape-of-text": tensor(text("many") + b"\x85"),
        "shape-negative": tensor(b"J\xff\xff\xff\xff\x85"),
        "shape-none": tensor(b"N"),
        "shape-2-to-the-64": tensor(big + b"\x85"),
        "shape-product": tensor(b"(" + b"J\xff\xff\xff\x7f" * 9 + b"t", b"(" + b"K\1" * 9 + b"t"),
        "shape-and-stride-differ": tensor(b"K\1K\1\x86"),
        "shape-of-1000-dimensions": tensor(
            b"(" + b"K\1" * 1000 + b"t", b"(" + b"K\1" * 1000 + b"t"
        ),
        "shape-beyond-its-storage": tensor(b"K\x09\x85"),
        "stride-beyond-its-storage": tensor(b"K\1K\2\x86", b"K\1K\x09\x86"),
        "offset-negative": tensor(b"K\1\x85", b"K\1\x85", b"J\xff\xff\xff\xff"),
        "storage-without-a-key": tensor(b"K\1\x85", key="../../etc/passwd"),
        "storage-that-lacks": tensor(b"K\1\x85", key="999"),
        "persistent-text": b"Pstorage\n",
        "persistent-number": b"K\1Q",
        "extension": b"\x82\x01",
        "extension-of-4-bytes": b"\x84\x01\x02\x03\x04",
        "buffer-outside": b"\x97",
        "memo-that-lacks": b"h\x07",
        "memo-negative": b"Np-1\n",
        "mark-that-lacks": b"t",
        "call-without-arguments": ordered + b"NR",
        "key-that-is-a-list": b"}]Ns",
        "pairs-that-are-odd": b"}(K\1u",
        "name-of-a-megabyte": glob("a" * 2**20, "b"),
        "names-of-many-bytes": b"}" + (text("k" * 4096) + b"}") * 300 + b"s" * 300,
        "unknown-opcode": b"\xff",
        "newer-protocol": b"\x80\x63N",
    }


def attacks(canary: Path, good: bytes, seed: int) -> list[Attack]:
    """All hostile pickles, in an order of their own."""
    found = [Attack(f"call {n}", before(p, good), runs=True) for n, p in callables(canary).items()]
    found += [Attack(f"form {n}", before(p, good, 4), runs=True) for n, p in forms(canary).items()]
    found += [Attack(f"cost {n}", beside(p, good), runs=False) for n, p in costs().items()]
    evil = call(glob("os", "system"), text(f"touch {canary}"))
    more = {
        "second-pickle": good + b"\x80\x02" + evil + b".",
        "behind-the-end": good + b"garbage",
        "cut": good[: len(good) // 2],
        "empty": b"",
        "only-the-end": b"\x80\x02.",
        "zeros": bytes(1000),
        "no-program": chance(seed).randbytes(4000),
    }
    found += [Attack(f"whole {name}", pickle, runs=False) for name, pickle in more.items()]
    found += [Attack(f"protocol {n}", before(evil, good, n), runs=True) for n in range(6)]
    chance(seed).shuffle(found)
    return found


def torch_file(path: Path, records: dict[str, bytes]) -> Path:
    """A file as torch's own writer makes it, with any content."""
    import torch

    writer = torch._C.PyTorchFileWriter(str(path))
    for name, content in records.items():
        writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    return path


def load_file(path: Path, *, mmap: bool = False) -> Any:
    """The values in a file as DeepSpeed loads it within our checks."""
    import torch

    from dsforge.train.checkpoints.loading import strict_loading

    with strict_loading():
        return torch.load(path, map_location="cpu", mmap=mmap, weights_only=False)
