"""The MSA Transformer: its block against numbers from running it, the rest against formulas."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evoattn import (
    ConfigError,
    MSATransformer,
    MSATransformerConfig,
    ShapeError,
    capture_attention,
    esm_tokens,
    load_weights,
    profile,
    read_msa,
    redraw_,
    set_execution,
)
from evoattn.io.residue_tables import ESM_NUMBER as NUMBER
from evoattn.primitives import TiedAttention
from evoattn.primitives import attention as attention_modules
from evoattn.stacks import ContactHead, MSATransformerBlock
from evoattn.stacks.msa_transformer import N_TOKENS, PADDING
from tests.helpers import assert_golden, assert_golden_gradient, golden
from tests.parity import record
from tests.stacks.esm import axial_block, batch_first, below

NAME = "msa_transformer_axial_layer"
FILE = golden(NAME)
TINY = MSATransformerConfig(n_blocks=2, c_m=12, n_head=3, c_hidden_transition=10, max_seqs=6, max_positions=9, c_row_position=12)


def inputs(case: str) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(batch_first(FILE["in/x"])).requires_grad_(), ~torch.from_numpy(FILE[f"{case}/padding_mask"])


def answered(mask: Tensor) -> np.ndarray:
    """Where a column has an entry: in the others our column attention gives 0, the reference's the mean of what is masked."""
    return mask.any(-2, keepdim=True).expand_as(mask).numpy()


def compare(block: nn.Module, case: str) -> dict[str, float]:
    m, mask = inputs(case)
    with torch.no_grad():
        out, maps = block(m, mask), block.msa_row.weights(m, mask)
    return {
        "out/x": assert_golden("x", out, batch_first(FILE[f"{case}/out/x"]), answered(mask)),
        "out/row_attn": assert_golden("row_attn", maps, FILE[f"{case}/out/row_attn"].swapaxes(0, 1)),
    }


@pytest.mark.parametrize("case", ["ones", "rand"])
def test_outputs(case: str) -> None:
    for part, error in compare(axial_block(FILE), case).items():
        record(NAME, case, part, error)


@pytest.mark.parametrize("case", ["ones", "rand"])
def test_column_maps(case: str) -> None:
    """Column by column, through what any attention shows of itself."""
    block, (m, mask) = axial_block(FILE), inputs(case)
    expected = FILE[f"{case}/out/col_attn"].transpose(2, 1, 0, 3, 4)  # [batch, column, h, s, s]
    errors = []
    for column in range(m.shape[-2]):
        with capture_attention(block, ["msa_column"], index=column) as maps, torch.no_grad():
            block(m, mask)
        there = answered(mask)[:, 0, column]
        errors.append(assert_golden("col_attn", maps["msa_column.attn"][there], expected[:, column][there]))
    record(NAME, case, "out/col_attn", max(errors))


def test_captured_row_maps_are_the_tied_ones() -> None:
    block, (m, mask) = axial_block(FILE), inputs("rand")
    for row in (0, 3):
        with capture_attention(block, ["msa_row"], index=row) as maps, torch.no_grad():
            block(m, mask)
        assert_golden("row_attn", maps["msa_row.attn"], FILE["rand/out/row_attn"].swapaxes(0, 1))


def test_sub_blocks() -> None:
    block, (m, mask) = axial_block(FILE), inputs("rand")
    names = {"msa_row": "row_self_attention", "msa_column": "column_self_attention", "msa_transition": "feed_forward_layer"}
    for child, name in names.items():
        expected = batch_first(FILE[f"rand/sub/{name}.layer"])
        where = answered(mask) if child == "msa_column" else None
        record(NAME, "rand", f"sub/{name}.layer", assert_golden(name, getattr(block, child)(m, mask), expected, where))
        m = m + torch.from_numpy(expected)
    np.testing.assert_allclose(m.detach(), batch_first(FILE["rand/out/x"]), atol=2e-6)


class AttentionOfESM:
    """ESM's rule for masked logits, which become -10000; it keeps the maps, through which the gradients of the file flow too."""

    def __init__(self) -> None:
        self.maps: list[Tensor] = []

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, biases: Sequence[Tensor] = (), mask: Tensor | None = None, backend: str
    ) -> Tensor:
        logits = torch.einsum("...qhd,...khd->...hqk", q * q.shape[-1] ** -0.5, k)
        weights = (logits if mask is None else logits.masked_fill(~mask, -10000)).softmax(-1)
        self.maps.append(weights)
        return torch.einsum("...hqk,...khd->...qhd", weights, v)


def test_only_the_rule_for_columns_without_entries_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """There ours adds the bias of the output alone; with ESM's rule everything is as in the file."""
    block, (m, mask) = axial_block(FILE), inputs("rand")
    empty = ~answered(mask)
    assert empty.any()
    delta = block.msa_column(m, mask)[empty]
    assert torch.equal(delta, block.msa_column.attn.out.bias.expand_as(delta))
    monkeypatch.setattr(attention_modules, "attention", AttentionOfESM())
    assert_golden("x", block(m, mask), batch_first(FILE["rand/out/x"]))


def weighted(block: nn.Module, m: Tensor, mask: Tensor, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """The scalar whose gradients the file holds: of the output and of both maps."""
    rule = AttentionOfESM()
    monkeypatch.setattr(attention_modules, "attention", rule)
    out = block(m, mask)
    rows, columns = rule.maps
    np.testing.assert_allclose(rows.detach().swapaxes(0, 1), FILE["rand/out/row_attn"], atol=1e-6)
    np.testing.assert_allclose(columns.detach().permute(2, 1, 0, 3, 4), FILE["rand/out/col_attn"], atol=1e-6)
    cotangents = [torch.from_numpy(FILE[f"in/r_{name}"]) for name in ("x", "row_attn", "col_attn")]
    shaped = (cotangents[0].permute(2, 0, 1, 3), cotangents[1].transpose(0, 1), cotangents[2].permute(2, 1, 0, 3, 4))
    return sum((each * r).sum() for each, r in zip((out, rows, columns), shaped, strict=True))


def test_gradients_of_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    m, mask = inputs("rand")
    (gradient,) = torch.autograd.grad(weighted(axial_block(FILE), m, mask, monkeypatch), [m])
    record(NAME, "rand", "grad/x", assert_golden_gradient("x", gradient, batch_first(FILE["rand/grad/x"])))


def test_gradients_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrays of a gradient have the layout of the parameters, so loading them as parameters lays them out as ours."""
    block, expected = axial_block(FILE), axial_block(FILE, "rand/grad_param/")
    weighted(block, *inputs("rand"), monkeypatch).backward()
    for (name, parameter), (_, gradient) in zip(block.named_parameters(), expected.named_parameters(), strict=True):
        assert parameter.grad is not None
        record(NAME, "rand", f"grad_param/{name}", assert_golden_gradient(name, parameter.grad, gradient.detach().numpy()))


def test_gradients_of_the_map_are_those_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a loss on contacts would use."""
    block, (m, mask) = axial_block(FILE), inputs("rand")
    cotangent = torch.from_numpy(FILE["in/r_row_attn"]).transpose(0, 1)
    rule = AttentionOfESM()
    monkeypatch.setattr(attention_modules, "attention", rule)
    block.msa_row(m, mask)
    (expected,) = torch.autograd.grad((rule.maps[0] * cotangent).sum(), [m])
    (gradient,) = torch.autograd.grad((block.msa_row.weights(m, mask) * cotangent).sum(), [m])
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


# --- wrong blocks ------------------------------------------------------------------------------------------------------------------------


def changed(change: Callable[[MSATransformerBlock], object]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        block = axial_block(FILE)
        change(block)
        return block

    return build


def with_relu() -> nn.Module:
    wrong = MSATransformerBlock(replace(wide(), profile=replace(profile("msa_transformer"), transition="relu"))).eval()
    wrong.load_state_dict(axial_block(FILE).state_dict())
    return wrong


def wide() -> MSATransformerConfig:
    return MSATransformerConfig(n_blocks=1, c_m=32, n_head=4, c_hidden_transition=56, c_row_position=32)


def all_queries_count(block: MSATransformerBlock) -> None:
    plain = TiedAttention._queries_and_keys
    block.msa_row.attn._queries_and_keys = lambda x, counted: plain(block.msa_row.attn, x, None)


def keys_of_any_row(block: MSATransformerBlock) -> None:
    """A residue is hidden where any row lacks it, not only the query."""
    for name in ("forward", "weights"):
        plain = getattr(block.msa_row.attn, name)

        def other(x: Tensor, *, counted: Tensor, mask: Tensor, plain: Callable[..., Tensor] = plain) -> Tensor:
            rows = counted.any(-1, keepdim=True)
            return plain(x, counted=counted, mask=(counted | ~rows).all(-2)[:, None, None, :])

        setattr(block.msa_row.attn, name, other)


def exchange(block: MSATransformerBlock) -> None:
    row, column = dict(block.msa_row.named_parameters()), dict(block.msa_column.named_parameters())
    for name, parameter in row.items():
        parameter.data, column[name].data = column[name].data, parameter.data


MUTANTS = {
    "relu": with_relu,
    "row and column exchanged": changed(exchange),
    "not scaled by the number of rows": changed(lambda block: block.msa_row.attn.q.weight.data.mul_(7**0.5)),
    "scaled twice": changed(lambda block: [p.data.mul_(7**-0.5) for p in block.msa_row.attn.q.parameters()]),
    "masked queries count": changed(all_queries_count),
    "mask of any row": changed(keys_of_any_row),
    "no bias of the keys in columns": changed(lambda block: block.msa_column.attn.q.bias.data.zero_()),
    "no bias of the values": changed(lambda block: block.msa_column.attn.v.bias.data.zero_()),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_blocks_are_rejected(mutant: str) -> None:
    with pytest.raises(AssertionError, match="off by up to"):
        compare(MUTANTS[mutant](), "rand")


# --- the whole model ---------------------------------------------------------------------------------------------------------------------


def model(**changes: object) -> MSATransformer:
    return redraw_(MSATransformer(replace(TINY, **changes)), seed=1).double().eval()


def some_tokens(*batch: int, n_seq: int = 4, n_res: int = 6) -> Tensor:
    tokens = torch.randint(4, 30, (*batch, n_seq, 1 + n_res))
    tokens[..., 0] = NUMBER["<cls>"]
    return tokens


def by_formula(net: MSATransformer, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings and contacts written out place by place; the blocks, which have tests of their own, as they are."""
    encoder, eps = net.encoder, 1e-5
    p = {name: parameter.detach().numpy() for name, parameter in net.named_parameters()}

    def normed(name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * p[f"{name}.weight"] + p[f"{name}.bias"]

    n_seq, length = tokens.shape
    x = np.zeros((n_seq, length, net.config.c_m))
    for row in range(n_seq):
        for place in range(length):
            x[row, place] = p["encoder.tokens.weight"][tokens[row, place]] + p["encoder.positions.weight"][2 + place]
            x[row, place] += p["encoder.rows.weight"][row]
    m, maps = torch.from_numpy(normed("encoder.norm_before", x)), []
    for block in encoder.blocks:
        maps += list(block.msa_row.weights(m).detach().numpy())
        m = block(m)
    n = length - 1
    features = np.zeros((n, n, len(maps)))
    for index, each in enumerate(maps):
        symmetric = each[1:, 1:] + each[1:, 1:].T
        features[..., index] = symmetric - np.outer(symmetric.sum(1), symmetric.sum(0)) / symmetric.sum()
    logits = features @ p["contact_head.regression.weight"][0] + p["contact_head.regression.bias"][0]
    return normed("encoder.norm_after", m.detach().numpy()), 1 / (1 + np.exp(-logits))


def test_whole_model_is_esms(tmp_path: Path) -> None:
    """From the letters of an alignment and the arrays of the two files to contacts, as fair-esm's own loader and model have it."""
    file = golden("msa_transformer_model")
    config = MSATransformerConfig(n_blocks=2, c_m=12, n_head=3, c_hidden_transition=10, max_positions=20, c_row_position=12)
    net, arrays = MSATransformer(config).eval(), below(file, "param/")
    heads = {name: arrays.pop(name) for name in list(arrays) if name.startswith("contact_head.")}
    load_weights(net.encoder, arrays)
    load_weights(net.contact_head, heads)
    path = tmp_path / "family.a3m"
    path.write_text("".join(f">{index}\n{row}\n" for index, row in enumerate(file["in/rows"])))
    tokens = esm_tokens(read_msa(path))
    np.testing.assert_array_equal(tokens, file["in/tokens"])
    with torch.no_grad():
        out = net(tokens, row_attentions=True)
        logits = net.encoder.logits(out.msa)
    for name, got in (("representation", out.msa), ("logits", logits), ("row_attentions", out.row_attentions), ("contacts", out.contacts)):
        record("msa_transformer_model", "", f"out/{name}", assert_golden(name, got, file[f"out/{name}"]))


@pytest.mark.parametrize("c_row_position", [12, 1])
def test_model_equals_its_formulas(c_row_position: int) -> None:
    net, tokens = model(c_row_position=c_row_position), some_tokens()
    out = net(tokens, row_attentions=True)
    m, contacts = by_formula(net, tokens.numpy())
    np.testing.assert_allclose(out.msa.detach(), m, atol=1e-9)
    np.testing.assert_allclose(out.contacts.detach(), contacts, atol=1e-9)
    assert out.row_attentions.shape == (2, 3, 7, 7)
    torch.testing.assert_close(out.row_attentions.sum(-1), torch.ones(2, 3, 7, dtype=torch.float64))
    plain = net(tokens, contacts=False)
    assert plain.contacts is None and plain.row_attentions is None and torch.equal(plain.msa, out.msa)


def test_logits_are_those_of_the_formula() -> None:
    net = model()
    m, head = net(some_tokens(), contacts=False).msa, net.encoder.token_head
    hidden = m @ head.dense.weight.T + head.dense.bias
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    torch.testing.assert_close(net.encoder.logits(m), head.norm(hidden) @ head.out.weight.T + head.out.bias)
    assert net.encoder.logits(m).shape == (4, 7, N_TOKENS)


def test_a_batch_gives_what_its_alignments_give() -> None:
    net, tokens = model(), some_tokens(2)
    out = net(tokens)
    for entry in range(2):
        alone = net(tokens[entry])
        torch.testing.assert_close((out.msa[entry], out.contacts[entry]), (alone.msa, alone.contacts))


def test_padded_columns_change_nothing() -> None:
    net, tokens = model(), some_tokens()
    padded = torch.full((4, 9), PADDING)
    padded[:, :7] = tokens
    out, alone = net(padded), net(tokens)
    torch.testing.assert_close((out.msa[:, :7], out.contacts[:6, :6]), (alone.msa, alone.contacts))
    assert not out.contacts[6:].any() and not out.contacts[:, 6:].any()
    gradients = [torch.autograd.grad(x.sum(), list(net.parameters()), allow_unused=True) for x in (out.contacts, alone.contacts)]
    for mine, theirs in zip(*gradients, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


def test_padded_rows_count_in_the_scale_as_published() -> None:
    """And in nothing else: with queries made larger by as much the alignment gives the same."""
    net, tokens = model(), some_tokens()
    alone = net(tokens)
    padded = torch.cat([tokens, torch.full((2, 7), PADDING)])
    assert not torch.allclose(net(padded).contacts, alone.contacts)
    for block in net.encoder.blocks:
        for parameter in block.msa_row.attn.q.parameters():
            parameter.data *= (6 / 4) ** 0.5
    torch.testing.assert_close(net(padded).contacts, alone.contacts)


def test_all_padding_gives_no_nan() -> None:
    out = model()(torch.full((3, 5), PADDING))
    assert out.msa.isfinite().all() and not out.contacts.any()


def test_backends_and_checkpoints_change_nothing() -> None:
    net, tokens = model(), some_tokens()
    truth = net(tokens)
    for changes in ({"backend": "reference"}, {"backend": "streaming"}, {"checkpoint": True}):
        got = set_execution(model(), **changes)(tokens)
        torch.testing.assert_close((got.msa, got.contacts), (truth.msa, truth.contacts))
        got.contacts.sum().backward()


def test_dropout_is_of_training_alone() -> None:
    net, tokens = model(dropout=0.5), some_tokens()
    assert torch.equal(net(tokens).msa, net(tokens).msa)
    net.train()
    assert not torch.equal(net(tokens).msa, net(tokens).msa)


def test_a_file_of_an_alignment_becomes_contacts(tmp_path: Path) -> None:
    path = tmp_path / "family.a3m"
    path.write_text(">query\nMKVLAT\n>other\nMK-LaaAS\n")
    tokens = esm_tokens(read_msa(path))
    contacts = model()(tokens).contacts
    assert contacts.shape == (6, 6)
    torch.testing.assert_close(contacts, contacts.mT)


def test_a_bare_head_can_be_trained() -> None:
    """On maps of its own: the regression alone gets gradients."""
    head = ContactHead(6).double()
    maps = torch.rand(2, 3, 5, 5, dtype=torch.float64)
    head(maps).sum().backward()
    assert head.regression.weight.grad.any() and maps.grad is None


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (torch.zeros(4, 7), r"tokens are torch.float32 of shape \(4, 7\); expected integers \[\*batch, N_seq, 1 \+ N_res\]"),
        (torch.zeros(7, dtype=torch.long), r"tokens are torch.int64 of shape \(7,\)"),
        (torch.zeros(4, 7, dtype=torch.bool), "tokens are torch.bool"),
        (torch.zeros(7, 7, dtype=torch.long), r"7 rows of 7; there are encodings for 6 rows and 9 places.*esm_tokens\(msa, max_seqs=6\)"),
        (torch.zeros(4, 10, dtype=torch.long), r"4 rows of 10; .*or cut the alignment into domains"),
        (torch.full((4, 7), 33), "tokens go from 33 to 33; allowed are 0 to 32"),
        (torch.full((4, 7), -1), "tokens go from -1 to -1"),
    ],
)
def test_tokens_that_are_none_are_refused(tokens: Tensor, words: str, no_type_checks: None) -> None:
    with pytest.raises(ShapeError, match=words):
        model()(tokens)


def test_maps_that_do_not_fit_the_head_are_refused(no_type_checks: None) -> None:
    with pytest.raises(ShapeError, match=r"maps have shape \(2, 2, 5, 5\); .*blocks x heads = 6"):
        ContactHead(6)(torch.rand(2, 2, 5, 5))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_head": 5}, "n_head = 5 does not divide c_m = 12"),
        ({"dropout": 1.0}, "dropout is 1.0; it must be at least 0 and below 1"),
        ({"c_row_position": 3}, "c_row_position is 3; allowed are c_m = 12 and 1"),
        ({"max_seqs": 0}, "max_seqs is 0"),
        ({"profile": profile("alphafold2")}, "its msa_op must be 'tied_row_column': give profile"),
    ],
)
def test_configs_that_make_no_sense_are_refused(changes: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(TINY, **changes)
