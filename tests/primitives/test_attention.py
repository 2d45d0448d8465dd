"""Multi-head attention modules against torch's own, and against every key, value and sum written out."""

import pytest
import torch
from torch import Tensor, nn

from evoattn.errors import ConfigError, ShapeError
from evoattn.execution import set_execution
from evoattn.primitives import GatedAttention, GlobalGatedAttention, MultiHeadAttention, redraw_

close = torch.testing.assert_close


def drawn(module: nn.Module) -> nn.Module:
    """In float64, every parameter drawn, so that no branch is silent."""
    return redraw_(module, seed=3).double()


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("backend", ["auto", "streaming", "reference"])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("heads", [1, 3])
def test_equals_torch(heads: int, cross: bool, backend: str) -> None:
    """nn.MultiheadAttention with the same weights, a bias on the logits and padded keys: outputs and gradients of inputs and weights."""
    c_q, c_kv = 12, 10 if cross else 12
    theirs = nn.MultiheadAttention(c_q, heads, kdim=c_kv, vdim=c_kv, bias=False, batch_first=True).double()
    ours = drawn(MultiHeadAttention(c_q, heads, c_kv=c_kv, out_bias=False))
    with torch.no_grad():
        if cross:
            for theirs_weight, layer in ((theirs.q_proj_weight, ours.q), (theirs.k_proj_weight, ours.k), (theirs.v_proj_weight, ours.v)):
                theirs_weight.copy_(layer.weight)
        else:
            theirs.in_proj_weight.copy_(torch.cat([ours.q.weight, ours.k.weight, ours.v.weight]))
        theirs.out_proj.weight.copy_(ours.out.weight)
    set_execution(ours, backend=backend)
    x = random(2, 5, c_q).requires_grad_()
    context = random(2, 7, c_kv).requires_grad_() if cross else x
    bias, hidden = random(2, heads, 5, context.shape[1]), torch.rand(2, context.shape[1]) < 0.3
    got = ours(x, context if cross else None, biases=[bias], mask=~hidden[:, None, None])
    additive = bias.flatten(0, 1).masked_fill(hidden.repeat_interleave(heads, 0)[:, None], -torch.inf)
    expected, _ = theirs(x, context, context, attn_mask=additive)
    close(got, expected)
    grad = torch.randn_like(got)
    mine = torch.autograd.grad(got, (x, context, ours.out.weight), grad)
    for one, other in zip(mine, torch.autograd.grad(expected, (x, context, theirs.out_proj.weight), grad), strict=True):
        close(one, other)


def test_head_width_and_projection_biases() -> None:
    """A head width that does not come from c_q, and biases of queries and output: against the formula."""
    module = drawn(MultiHeadAttention(6, 2, d_head=5, q_bias=True))
    assert module.q.bias is not None and module.k.bias is None and module.v.bias is None and module.out.bias is not None
    x = random(4, 6)
    q, k, v = (x @ module.q.weight.T + module.q.bias), x @ module.k.weight.T, x @ module.v.weight.T
    heads = []
    for h in (slice(0, 5), slice(5, 10)):
        weights = torch.exp(q[:, h] @ k[:, h].T / 5**0.5)
        heads.append(weights @ v[:, h] / weights.sum(-1, keepdim=True))
    close(module(x), torch.cat(heads, -1) @ module.out.weight.T + module.out.bias)


def test_gate() -> None:
    """sigmoid(W x + b), per channel of each head, before the output projection; the gate sees the queries' input."""
    gated = drawn(GatedAttention(8, 2, c_kv=6))
    plain = MultiHeadAttention(8, 2, c_kv=6).double()
    plain.load_state_dict({name: x for name, x in gated.state_dict().items() if not name.startswith("gate")})
    plain.out = nn.Identity()
    x, context = random(2, 4, 8), random(2, 5, 6)
    gate = torch.sigmoid(x @ gated.gate.weight.T + gated.gate.bias)
    expected = (gate * plain(x, context)) @ gated.out.weight.T + gated.out.bias
    close(gated(x, context), expected)
    with torch.no_grad():
        close(gated(x, context), expected)
    assert gated.gate.bias is not None and GatedAttention(8, 2, gate_bias=False).gate.bias is None


def test_along_the_first_of_two_axes() -> None:
    """axis=-3 is the same module on the exchanged axes."""
    module = drawn(GatedAttention(8, 2, axis=-3))
    plain = GatedAttention(8, 2).double()
    plain.load_state_dict(module.state_dict())
    x, mask = random(2, 5, 3, 8), torch.rand(2, 3, 1, 1, 5) < 0.8
    close(module(x, mask=mask), plain(x.transpose(1, 2), mask=mask).transpose(1, 2))


def written_out(module: MultiHeadAttention, x: Tensor, pair: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """Row r, residue i and head at a time, with a key and a value for every pair of residues, however they are combined."""
    heads, d = module.heads, module.d_head
    out = torch.zeros(*x.shape[:2], heads * d, dtype=x.dtype)
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            for h in range(heads):
                part = slice(h * d, (h + 1) * d)
                q, k, v = (layer.weight[part] @ y for layer, y in ((module.q, x[r, i]), (module.k, x[r].T), (module.v, x[r].T)))
                pair_k = 0 if module.pair_k is None else module.pair_k.weight[part] @ pair[i].T
                pair_v = 0 if module.pair_v is None else module.pair_v.weight[part] @ pair[i].T
                allowed, on_logits = mask[r, 0, 0], bias[0, h, i]
                if module.pair_mode == "appended":  # the bias belongs to the keys of the sequence
                    k, v, allowed = torch.cat([k, pair_k], 1), torch.cat([v, pair_v], 1), torch.cat([allowed, allowed])
                    on_logits = torch.cat([on_logits, torch.zeros_like(on_logits)])
                else:
                    k, v = k + pair_k, v + pair_v
                weights = torch.exp(q @ k / d**0.5 + on_logits) * allowed
                out[r, i, part] = v @ weights / weights.sum() if allowed.any() else 0.0
    return out @ module.out.weight.T + module.out.bias


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize(
    ("pair_as", "mode"),
    [(("keys",), "relative"), (("values",), "relative"), (("keys", "values"), "relative"), (("keys", "values"), "appended")],
)
def test_pair_features_as_keys_and_values(pair_as: tuple[str, ...], mode: str, backend: str) -> None:
    module = drawn(MultiHeadAttention(6, 2, c_pair=5, pair_as=pair_as, pair_mode=mode))
    set_execution(module, backend=backend)
    x, pair, bias = random(3, 4, 6).requires_grad_(), random(1, 4, 4, 5).requires_grad_(), random(1, 2, 4, 4).requires_grad_()
    mask = torch.tensor([[True, True, False, True], [False, True, True, True], [False] * 4])[:, None, None]
    got = module(x, biases=[bias], mask=mask, pair=pair)
    expected = written_out(module, x, pair[0], bias, mask)
    close(got, expected)
    wanted, grad = [x, pair, bias, *module.parameters()], torch.randn_like(got)
    for mine, other in zip(*(torch.autograd.grad(y, wanted, grad) for y in (got, expected)), strict=True):
        close(mine, other)


def global_by_hand(module: GlobalGatedAttention, x: Tensor, mask: Tensor) -> Tensor:
    heads, d = module.heads, module.c // module.heads
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        there = [n for n in range(x.shape[1]) if mask[b, n]]
        average = torch.zeros(module.c, dtype=x.dtype)
        if there:
            q = module.q.weight @ torch.stack([x[b, n] for n in there]).mean(0)
            for h in range(heads):
                part = slice(h * d, (h + 1) * d)
                weights = torch.exp(torch.stack([module.k.weight @ x[b, n] for n in there]) @ q[part] / d**0.5)
                average[part] = weights @ torch.stack([module.v.weight @ x[b, n] for n in there]) / weights.sum()
        for n in range(x.shape[1]):
            gate = torch.sigmoid(module.gate.weight @ x[b, n] + module.gate.bias)
            out[b, n] = module.out.weight @ (gate * average) + module.out.bias
    return out


@pytest.mark.parametrize("backend", ["auto", "streaming", "reference"])
def test_global_attention(backend: str) -> None:
    """Against loops; with hidden positions, and with nothing but hidden positions."""
    module = drawn(GlobalGatedAttention(8, 2))
    set_execution(module, backend=backend)
    x = random(3, 6, 8)
    everything, some = torch.ones(3, 6, dtype=torch.bool), torch.rand(3, 6) < 0.6
    some[0, 0], some[2] = True, False
    close(module(x), global_by_hand(module, x, everything))
    close(module(x, some), global_by_hand(module, x, some))
    poisoned = x.masked_fill(~some[..., None], torch.nan)
    close(module(poisoned, some)[some], module(x, some)[some])


def test_global_attention_averages_in_float32() -> None:
    """3,000 values of 100 sum to far beyond float16, and eps is 0 in it."""
    module = redraw_(GlobalGatedAttention(4, 2), seed=3).half()
    x = torch.full((1, 3000, 4), 100.0, dtype=torch.float16)
    mask = torch.zeros(1, 3000, dtype=torch.bool)
    assert torch.equal(module._mean(x, None), x[:, 0]) and torch.equal(module._mean(x, ~mask), x[:, 0])
    assert not module._mean(x, mask).any() and module(x, mask).isfinite().all()


@pytest.mark.parametrize("module", [MultiHeadAttention, GatedAttention, GlobalGatedAttention])
def test_heads_must_divide_the_width(module: type) -> None:
    with pytest.raises(ConfigError, match=rf"{module.__name__}: heads = 3 does not divide c(_q)? = 8"):
        module(8, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pair_as": ("keys",)}, r"pair_as is \('keys',\) without c_pair"),
        ({"c_pair": 4, "pair_as": ("key",)}, r"pair_as is \('key',\); it is a tuple of distinct words"),
        ({"c_pair": 4, "pair_as": ("keys",), "pair_mode": "appended"}, ".* an appended key needs its value"),
        ({"c_pair": 4, "pair_as": ("keys",), "pair_mode": "added"}, "pair_mode is 'added'; allowed are"),
        ({"axis": -1}, "axis is -1; allowed are -2 and -3"),
    ],
)
def test_bad_settings(settings: dict[str, object], message: str, no_type_checks: None) -> None:
    with pytest.raises(ConfigError, match=f"MultiHeadAttention: {message}"):
        MultiHeadAttention(8, 2, **settings)


def test_bad_input(no_type_checks: None) -> None:
    module, x = GatedAttention(8, 2), torch.zeros(2, 4, 8)
    with pytest.raises(ShapeError, match=r"GatedAttention: input has shape \(2, 4, 7\); expected \[\*batch, q, c_q\] with c_q = 8"):
        module(x[..., :7])
    with pytest.raises(ShapeError, match=r"GatedAttention: context has dtype torch\.int64"):
        module(x, x.long())
    with pytest.raises(ShapeError, match=r"mask has shape \(2, 4\); expected the rank of the logits"):
        module(x, mask=torch.zeros(2, 4, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"GlobalGatedAttention: mask has shape \(4,\); expected .* \(2, 4\)"):
        GlobalGatedAttention(8, 2)(x, torch.zeros(4, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"GlobalGatedAttention: mask has dtype torch\.float32; masks are torch\.bool"):
        GlobalGatedAttention(8, 2)(x, torch.zeros(2, 4))


def test_bad_pair_input(no_type_checks: None) -> None:
    relative = MultiHeadAttention(8, 2, c_pair=3, pair_as=("keys", "values"))
    x = torch.zeros(2, 4, 8)
    with pytest.raises(ConfigError, match="built with pair features as keys or values, called without pair="):
        relative(x)
    with pytest.raises(ShapeError, match=r"pair has shape \(1, 4, 4, 5\); expected \[\*batch, q, k, c_pair\] with c_pair = 3"):
        relative(x, pair=torch.zeros(1, 4, 4, 5))
    with pytest.raises(ShapeError, match=r"pair_attention: pair has shape \(1, 4, 5, 3\)"):
        relative(x, pair=torch.zeros(1, 4, 5, 3))
    appended = MultiHeadAttention(8, 2, c_pair=3, pair_as=("keys", "values"), pair_mode="appended")
    for bad_x, bad_pair in ((x, torch.zeros(2, 4, 4, 3)), (x[0], torch.zeros(4, 4, 3)), (x, torch.zeros(4, 4, 3))):
        with pytest.raises(ShapeError, match=r"in pair_mode 'appended' it is \[\*batch, 1, q, k, c_pair\]"):
            appended(bad_x, pair=bad_pair)
