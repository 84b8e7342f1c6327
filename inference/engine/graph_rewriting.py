"""Rewriting of a recorded gradient step before it is compiled."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten


def untranspose_products(recording: GraphModule) -> GraphModule:
    """Replace ``(A B)^T`` by ``B^T A^T`` wherever a batched product is used transposed, in place.

    The gradient of a linear layer's weight is recorded as the transpose of ``x^T g``. Transposing the operands
    instead is free (they are views), and the product comes out in the order that the weights have, so everything
    that is fused behind it runs over contiguous memory. The product is the same up to rounding.
    """
    graph = recording.graph
    for node in list(graph.nodes):
        product = _product_behind(node)
        if product is None:
            continue
        left, right = product.args
        with graph.inserting_before(node):
            operands = [graph.call_function(aten.transpose.int, (m, 1, 2)) for m in (right, left)]
            swapped = graph.call_function(aten.bmm.default, tuple(operands))
        node.replace_all_uses_with(swapped)
    graph.eliminate_dead_code()
    recording.recompile()
    return recording


def _product_behind(node: Node) -> Node | None:
    """The batched product that ``node`` transposes, if it does nothing else."""
    if node.target is not aten.transpose.int or set(node.args[1:]) != {1, 2}:
        return None
    source = node.args[0]
    while isinstance(source, Node) and source.target in (
        aten.view.default,
        aten._unsafe_view.default,
    ):
        inner = source.args[0]
        if not isinstance(inner, Node) or inner.meta["val"].shape != source.meta["val"].shape:
            return None
        source = inner
    return source if isinstance(source, Node) and source.target is aten.bmm.default else None
