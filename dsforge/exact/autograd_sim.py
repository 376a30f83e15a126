"""Autograd on sizes instead of numbers: bytes allocated at each moment of forward and backward.

The peak of a backward pass depends on which tensors are saved, which temporaries an operation
makes, and in which order torch frees them. So operations are recorded here as torch's autograd
records them, on blocks that have a size and no content. A block lives as long as something refers
to it, as a tensor's storage does: Python's own reference counts do the book-keeping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from math import inf


class MemoryMeter:
    """Bytes now allocated, and the most since `take_peak` was last called."""

    __slots__ = ("current", "peak")

    def __init__(self, current: int = 0) -> None:
        self.current = self.peak = current

    def change(self, size: int) -> None:
        """Add allocated bytes or, negative, freed ones."""
        self.current += size
        self.peak = max(self.peak, self.current)

    def allocate_and_free(self, size: int) -> None:
        """Count a temporary: bytes that are freed at once."""
        self.change(size)
        self.current -= size

    def take_peak(self) -> int:
        """The most bytes since the last call, in which a new peak begins."""
        peak, self.peak = self.peak, self.current
        return peak


class Block:
    """One allocation, freed with the last reference to it."""

    __slots__ = ("meter", "size")

    def __init__(self, meter: MemoryMeter, size: int) -> None:
        self.meter, self.size = meter, size
        meter.change(size)

    def free(self) -> None:
        """Free it now, whatever still refers to it."""
        self.meter.current -= self.size
        self.size = 0

    def __del__(self) -> None:
        self.meter.current -= self.size


Gradients = list[Block | None]
Rule = Callable[[Block], Gradients]


class Node:
    """A step of the backward pass: from the gradient of a result to those of its inputs.

    What its rule refers to is saved until it has run. Torch runs the latest step first, and a
    parameter's own step at once.
    """

    __slots__ = ("edges", "order", "rule")

    def __init__(self, order: float, edges: tuple[Node | None, ...], rule: Rule | None) -> None:
        self.order, self.edges, self.rule = order, edges, rule

    def __lt__(self, other: Node) -> bool:
        return self.order > other.order


class Value:
    """A tensor: its block, and the step that its gradient is for, if anything wants one."""

    __slots__ = ("block", "node", "size")

    def __init__(self, block: Block | None, size: int, node: Node | None = None) -> None:
        self.block, self.size, self.node = block, size, node


class Tape:
    """Operations in the order in which they are recorded."""

    def __init__(self, meter: MemoryMeter) -> None:
        self.meter, self.recorded, self.recording = meter, 0, True

    def block(self, size: int) -> Block:
        """A new allocation."""
        return Block(self.meter, size)

    def result(self, size: int, inputs: tuple[Value, ...], rule: Rule) -> Value:
        """A new tensor of `size` bytes; `rule` is kept only where an input wants a gradient."""
        return self.view(Value(self.block(size), size), inputs, rule)

    def view(self, value: Value, inputs: tuple[Value, ...], rule: Rule) -> Value:
        """The same bytes as a result of these inputs."""
        if all(one.node is None for one in inputs):
            return Value(value.block, value.size)
        return self.step(value, inputs, rule)

    def step(self, value: Value, inputs: tuple[Value, ...], rule: Rule) -> Value:
        """The same bytes with a step of their own in the backward pass, whoever wants it."""
        if not self.recording:
            return Value(value.block, value.size)
        self.recorded += 1
        edges = tuple(one.node for one in inputs)
        return Value(value.block, value.size, Node(self.recorded, edges, rule))

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Context in which no result wants a gradient."""
        before, self.recording = self.recording, False
        try:
            yield
        finally:
            self.recording = before

    def parameter(self, size: int, arrived: Callable[[Block], None]) -> Value:
        """A trainable parameter of `size` bytes, which are counted elsewhere."""

        def take(gradient: Block) -> Gradients:
            arrived(gradient)
            return []

        return Value(None, size, Node(inf, (), take))

    def backward(self, loss: Node, gradient: Block) -> None:
        """Run all steps from the loss on. Gradients that meet are added into a third block."""
        missing = _uses(loss)
        waiting: dict[Node, Block] = {loss: gradient}
        del gradient
        ready = [loss]
        while ready:
            node = heappop(ready)
            found = _run(node, waiting.pop(node))
            for edge in node.edges:
                arrived = found.pop(0)
                if edge is None:
                    continue
                _collect(self, waiting, edge, arrived)
                del arrived
                missing[edge] -= 1
                if not missing[edge] and edge in waiting:
                    heappush(ready, edge)


def _run(node: Node, gradient: Block) -> Gradients:
    """The gradients of a step's inputs; the step and what it saved are done with."""
    rule = node.rule
    if rule is None:
        raise RuntimeError("a step of the backward pass runs once")
    found = rule(gradient)
    del gradient
    if node.order != inf:  # a parameter takes part in the next pass again
        node.rule = None
    return found


def _collect(tape: Tape, waiting: dict[Node, Block], node: Node, gradient: Block | None) -> None:
    """Keep a gradient for a step, or add it to the one that waits there."""
    if gradient is None:
        return
    if node in waiting:
        waiting[node] = tape.block(gradient.size)
    else:
        waiting[node] = gradient


def _uses(loss: Node) -> dict[Node, int]:
    """How many steps hand a gradient to each step."""
    found: dict[Node, int] = {loss: 0}
    reached = [loss]
    while reached:
        for edge in reached.pop().edges:
            if edge is None:
                continue
            if edge not in found:
                found[edge] = 0
                reached.append(edge)
            found[edge] += 1
    return found
