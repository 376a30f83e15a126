"""A matrix product by its shape, which the time model needs: a thin one runs below the peak."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.traced import named


class Product(NamedTuple):
    """A matrix product: one token's vector of `inputs` elements times an (inputs, outputs) weight.

    `narrow` is the side that tensor parallelism cuts, whole (before the cut). One token passes
    `times` such products: those of its routed experts are alike.
    """

    inputs: int
    outputs: int
    narrow: int
    times: float = 1

    @property
    def elements(self) -> int:
        """Elements of the weight."""
        return self.inputs * self.outputs

    def weight(self, name: str) -> int:
        """Elements of the weight, under a name."""
        return named(
            self.elements, f"{name}_weight", "elements", "inputs x outputs of a matrix product"
        )

    def sides(self, tp: int) -> float:
        """Elements that enter and leave it on each of so many tensor-parallel ranks."""
        if self.narrow == self.inputs:
            return self.outputs + self.inputs / tp
        return self.inputs + self.outputs / tp
