import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_pfedbayes.inference.engine.graph_rewriting import untranspose_products

aten = torch.ops.aten


def transposed_products(graph: torch.fx.Graph) -> int:
    return sum(
        node.target is aten.transpose.int and node.args[0].target is aten.bmm.default
        for node in graph.nodes
    )


def test_gradients_of_linear_weights_come_out_untransposed_and_equal() -> None:
    def gradient(w, x):
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            loss = torch.relu(torch.bmm(x, w.transpose(1, 2))).square().sum()
            return torch.autograd.grad(loss, w)[0]

    w, x = torch.randn(3, 4, 5).double(), torch.randn(3, 7, 5).double()
    recording = make_fx(gradient)(w, x)
    assert transposed_products(recording.graph) == 1
    before = recording(w, x)
    after = untranspose_products(recording)(w, x)
    assert transposed_products(recording.graph) == 0
    assert after.is_contiguous()
    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)


def test_products_that_are_reshaped_in_between_are_left_alone() -> None:
    def reshaped(a, b):
        return torch.bmm(a, b).view(2, 6, 2).transpose(1, 2)

    a, b = torch.randn(2, 3, 5), torch.randn(2, 5, 4)
    recording = untranspose_products(make_fx(reshaped)(a, b))
    assert torch.equal(recording(a, b), reshaped(a, b))


def test_other_transposes_are_left_alone() -> None:
    def leading(a, b):
        return torch.bmm(a, b).transpose(0, 1)

    a, b = torch.randn(2, 3, 5), torch.randn(2, 5, 4)
    recording = untranspose_products(make_fx(leading)(a, b))
    assert torch.equal(recording(a, b), leading(a, b))
