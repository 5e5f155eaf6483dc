"""The operators that torch.compile sees: whole graphs, against the same model run eagerly."""

import gc

import heddle
import pytest
import ranks

torch = pytest.importorskip("torch")
import heddle.torch as moe  # noqa: E402

HIDDEN, EXPERTS = 16, 5


def matrices():
    return torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(3)) / HIDDEN**0.5


def layer(buffer, experts, x, ids, weights, layout):
    rows = moe.dispatch_rows(buffer, ids, x, weights, layout=layout)
    if layout == "token_major":
        y = torch.zeros_like(rows.x)
        for local in range(experts.shape[0]):
            share = torch.where(rows.ids == local, rows.weights, 0).sum(dim=1, keepdim=True)
            y = y + share * torch.tanh(rows.x @ experts[local])
    else:
        index = torch.searchsorted(rows.expert_offsets[1:].contiguous(), torch.arange(rows.x.shape[0]), right=True)
        y = torch.tanh(torch.bmm(rows.x[:, None], experts[index])[:, 0]) * rows.weights[:, None]
    return moe.combine_rows(buffer, rows, y, tokens=x.shape[0], bias=x)


def batch(rank, tokens):
    generator = torch.Generator().manual_seed(10 + rank)
    ids = torch.rand(tokens, EXPERTS, generator=generator).argsort(dim=1)[:, :2]
    x = torch.randn(tokens, HIDDEN, generator=generator)
    return x.requires_grad_(), ids, torch.rand(tokens, 2, generator=generator).requires_grad_()


def run(model, buffer, tokens, layout):
    x, ids, weights = batch(buffer.rank, tokens)
    experts = matrices()[buffer.local_experts.start : buffer.local_experts.stop].requires_grad_()
    out = model(buffer, experts, x, ids, weights, layout)
    (out * torch.cos(torch.arange(HIDDEN))).sum().backward()
    return [tensor.detach() for tensor in (out, x.grad, weights.grad, experts.grad)]


def compiled_and_eager(bootstrap, sizes):
    """Of every layout and size: the largest difference between a whole compiled graph and the eager model."""
    differences = []
    with heddle.Buffer(bootstrap, experts=EXPERTS, timeout=ranks.PATIENCE) as buffer:
        for layout in ("token_major", "expert_major"):
            model = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
            for size in sizes:
                tokens = size[bootstrap.rank]
                eager, compiled = run(layer, buffer, tokens, layout), run(model, buffer, tokens, layout)
                assert all(a.shape == b.shape for a, b in zip(eager, compiled, strict=True))
                differences += [
                    (a - b).abs().max().item() if a.numel() else 0.0 for a, b in zip(eager, compiled, strict=True)
                ]
        bootstrap.barrier("leaving together")
    return differences


def test_a_compiled_model_is_one_graph_and_does_as_the_eager_one():
    for differences in ranks.on_processes(2, compiled_and_eager, [(6, 4), (3, 9)]):
        assert max(differences) < 1e-6, differences


@pytest.mark.parametrize("layout", ["token_major", "expert_major"])
def test_operators_keep_the_rules_of_torch(layout):
    """Schemas, fake kernels and gradients, as torch.library checks them; the backward of a batch is its transpose."""
    with heddle.Buffer(heddle.in_process(1)[0], experts=EXPERTS) as buffer:
        x, ids, weights = batch(0, 6)
        checks = ("test_schema", "test_faketensor", "test_autograd_registration")
        torch.library.opcheck(
            torch.ops.heddle.dispatch.default, (x, ids, weights, buffer.key, layout, 1), test_utils=checks
        )
        rows = moe.dispatch_rows(buffer, ids, x, weights, layout=layout)
        y = rows.x.detach().clone().requires_grad_()
        torch.library.opcheck(
            torch.ops.heddle.combine.default, (y, rows.route, None, x, buffer.key, 6, 0), test_utils=checks
        )
        torch.library.opcheck(
            torch.ops.heddle.dispatch_again.default, (x.detach(), rows.route, buffer.key, y.shape[0]),
            test_utils=("test_schema", "test_faketensor"),
        )  # fmt: skip


def test_a_route_lives_as_long_as_its_tensor():
    with heddle.Buffer(heddle.in_process(1)[0], experts=EXPERTS) as buffer:
        x, ids, weights = batch(0, 6)
        rows = moe.dispatch_rows(buffer, ids, x.detach(), weights.detach())
        view, copy, y = rows.route[:1], rows.route.clone(), rows.x
        expected = moe.combine_rows(buffer, rows, y, tokens=6)
        rows = rows._replace(route=view)
        gc.collect()
        assert torch.equal(moe.combine_rows(buffer, rows, y, tokens=6), expected)
        del view
        rows = rows._replace(route=copy)
        gc.collect()
        with pytest.raises(heddle.UsageError, match="route stands for no dispatch"):
            moe.combine_rows(buffer, rows, y, tokens=6)


def test_wrong_arguments_are_named():
    with heddle.Buffer(heddle.in_process(1)[0], experts=EXPERTS) as buffer:
        x, ids, weights = batch(0, 6)
        with pytest.raises(heddle.UsageError, match="layout = 'slab', legal: 'token_major', 'expert_major'"):
            moe.dispatch_rows(buffer, ids, x, weights, layout="slab")
        rows = moe.dispatch_rows(buffer, ids, x, weights)
        with pytest.raises(heddle.UsageError, match="tokens = 5, legal: 6"):
            moe.combine_rows(buffer, rows, rows.x, tokens=5)
        with pytest.raises(heddle.UsageError, match="key = -1 is no buffer"):
            torch.ops.heddle.dispatch(x, ids, weights, -1, "token_major", 1)
