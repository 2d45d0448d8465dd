"""The MSA Transformer: a language model of whole alignments, and the contacts that its tied row attention shows."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu

from evoattn.blocks import MSAColumnAttention, MSATransition, TiedRowAttention
from evoattn.config import MSATransformerConfig
from evoattn.errors import ShapeError
from evoattn.execution import Block, Executable
from evoattn.primitives import SharedDropout, linear
from evoattn.shapes import check_features
from evoattn.stacks.checkpointing import checkpointed

N_TOKENS = 33
PADDING = 1
"""The token of padding; :mod:`evoattn.io.esm_tokens` has the others."""


class MSATransformerBlock(Block):
    """Tied row attention, column attention, transition (Rao et al. 2021; ``AxialTransformerLayer`` of its code).

    In training the updates are dropped out; unlike in the published code, attention probabilities and hidden units are not.

    Raises:
        ShapeError: inputs do not fit the config or each other.
    """

    def __init__(self, config: MSATransformerConfig) -> None:
        super().__init__()
        c = config
        self.msa_row = TiedRowAttention(c.c_m, c.n_head)
        self.msa_column = MSAColumnAttention(c.c_m, c.n_head, gated=False, qkv_bias=True)
        self.msa_transition = MSATransition(c.c_m, activation=c.profile.transition, c_hidden=c.c_hidden_transition)
        self.drop = SharedDropout(c.dropout, over="entries")

    def forward(
        self, m: Float[Tensor, "*batch s n c_m"], msa_mask: Bool[Tensor, "*batch s n"] | None = None
    ) -> Float[Tensor, "*batch s n c_m"]:
        """The updated m."""
        m = self.update(m, self.msa_row, msa_mask, drop=self.drop)
        m = self.update(m, self.msa_column, msa_mask, drop=self.drop)
        return self.update(m, self.msa_transition, msa_mask, drop=self.drop)


class TokenHead(nn.Module):
    """Logits of the masked tokens (``RobertaLMHead`` of ESM's code).

    Its last matrix is a parameter of its own here; in published files it equals the embedding of the tokens, with which it was trained as
    one.
    """

    def __init__(self, c_m: int) -> None:
        super().__init__()
        self.dense = linear(c_m, c_m)
        self.norm = nn.LayerNorm(c_m)
        self.out = linear(c_m, N_TOKENS)

    def forward(self, m: Float[Tensor, "*batch s n c_m"]) -> Float[Tensor, "*batch s n tokens"]:
        return self.out(self.norm(gelu(self.dense(m))))


class ContactHead(nn.Module):
    """Probabilities of contacts: a logistic regression on attention maps, symmetrised and corrected (Rao et al. 2021).

    The average product correction takes from each map what the sums of its rows and columns explain: a_ij - a_i. a_.j / a_.. .

    Args:
        n_maps: blocks times heads.
    """

    def __init__(self, n_maps: int) -> None:
        super().__init__()
        self.regression = linear(n_maps, 1)

    def forward(
        self, maps: Float[Tensor, "*batch blocks heads n n"], mask: Bool[Tensor, "*batch n"] | None = None
    ) -> Float[Tensor, "*batch n n"]:
        """`maps` are those of residues, without the first token. Masked residues are left out of the correction, and have no contacts."""
        n_maps = self.regression.in_features
        if maps.dim() < 4 or maps.shape[-4] * maps.shape[-3] != n_maps or maps.shape[-1] != maps.shape[-2]:
            raise ShapeError(
                f"ContactHead: maps have shape {tuple(maps.shape)}; expected [*batch, blocks, heads, N_res, N_res] with blocks x heads "
                f"= {n_maps}."
            )
        pairs = None if mask is None else mask.unsqueeze(-1) & mask.unsqueeze(-2)
        if pairs is not None:
            maps = maps.masked_fill(~pairs[..., None, None, :, :], 0.0)
        features = _corrected(maps + maps.mT).flatten(-4, -3).movedim(-3, -1)
        contacts = self.regression(features.to(self.regression.weight.dtype)).squeeze(-1).sigmoid()
        return contacts if pairs is None else contacts.masked_fill(~pairs, 0.0)


def _corrected(maps: Tensor) -> Tensor:
    rows, columns, total = maps.sum(-1, keepdim=True), maps.sum(-2, keepdim=True), maps.sum((-1, -2), keepdim=True)
    return maps - rows * columns / total.clamp(min=torch.finfo(maps.dtype).tiny)  # all masked: 0, not 0 / 0


class MSATransformerEncoder(Executable):
    """Tokens -> representation: embeddings, blocks, and the head for masked tokens (Rao et al. 2021; ``MSATransformer`` of its code).

    As published, rows of padding count in the scale of tied attention: an alignment padded to more rows gives other numbers than by itself.
    """

    def __init__(self, config: MSATransformerConfig) -> None:
        super().__init__()
        c = config
        self.config = config
        self.tokens = nn.Embedding(N_TOKENS, c.c_m)
        self.positions = nn.Embedding(c.max_positions + PADDING + 1, c.c_m)  # counted from PADDING + 1; PADDING is that of padding
        self.rows = nn.Embedding(c.max_seqs, c.c_row_position)
        self.norm_before = nn.LayerNorm(c.c_m)
        self.blocks = nn.ModuleList(MSATransformerBlock(c) for _ in range(c.n_blocks))
        self.norm_after = nn.LayerNorm(c.c_m)
        self.token_head = TokenHead(c.c_m)
        self.drop = nn.Dropout(c.dropout)

    def forward(
        self, tokens: Int[Tensor, "*batch s n"], *, row_attentions: bool = False
    ) -> tuple[Float[Tensor, "*batch s n c_m"], Float[Tensor, "*batch blocks heads n n"] | None]:
        """The representation, and the maps of tied row attention if asked for, which costs blocks x heads x N_res^2 numbers.

        Raises:
            ShapeError: tokens are no alignment of tokens, or longer or deeper than there are encodings.
        """
        self._check(tokens)
        present = tokens != PADDING
        msa_mask = None if bool(present.all()) else present
        m = self._embed(tokens, present)
        maps = []
        for block in self.blocks:
            assert isinstance(block, MSATransformerBlock)
            if row_attentions:
                maps.append(block.msa_row.weights(m, msa_mask))
            m = checkpointed(block, (m,), msa_mask) if self.execution.recomputes_blocks else block(m, msa_mask)
        return self.norm_after(m), torch.stack(maps, -4) if row_attentions else None

    def logits(self, m: Float[Tensor, "*batch s n c_m"]) -> Float[Tensor, "*batch s n tokens"]:
        """Of every token at every place, from the representation that :meth:`forward` returns."""
        check_features("MSATransformerEncoder", "m", m, ["N_seq", "N_res", "c_m"], self.config.c_m)
        return self.token_head(m)

    def _embed(self, tokens: Tensor, present: Tensor) -> Tensor:
        place = present.cumsum(-1) * present + PADDING
        m = self.tokens(tokens) + self.positions(place) + self.rows.weight[: tokens.shape[-2], None]
        return self.drop(self.norm_before(m)).masked_fill(~present.unsqueeze(-1), 0.0)

    def _check(self, tokens: Tensor) -> None:
        c, layout = self.config, "[*batch, N_seq, 1 + N_res], as esm_tokens(msa) gives them"
        if tokens.is_floating_point() or tokens.dtype == torch.bool or tokens.dim() < 2:
            raise ShapeError(f"MSATransformer: tokens are {tokens.dtype} of shape {tuple(tokens.shape)}; expected integers {layout}.")
        *_, n_seq, length = tokens.shape
        if n_seq > c.max_seqs or length > c.max_positions:
            raise ShapeError(
                f"MSATransformer: tokens have shape {tuple(tokens.shape)}: {n_seq} rows of {length}; there are encodings for {c.max_seqs} "
                f"rows and {c.max_positions} places, that of the first token included. Take fewer rows, as "
                f"esm_tokens(msa, max_seqs={c.max_seqs}) does, or cut the alignment into domains."
            )
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < N_TOKENS:
            raise ShapeError(f"MSATransformer: tokens go from {int(tokens.min())} to {int(tokens.max())}; allowed are 0 to {N_TOKENS - 1}.")


@dataclass(frozen=True)
class MSATransformerOutput:
    """What the MSA Transformer makes of an alignment; the first token of each row is no residue.

    Attributes:
        msa: the representation [*batch, N_seq, 1 + N_res, c_m], the first token's included.
        contacts: probability that the C-beta atoms of two residues of the query are closer than 8 Angstrom, [*batch, N_res, N_res].
        row_attentions: the maps of tied row attention [*batch, blocks, heads, 1 + N_res, 1 + N_res].
    """

    msa: Float[Tensor, "*batch s n c_m"]
    contacts: Float[Tensor, "*batch r r"] | None = None
    row_attentions: Float[Tensor, "*batch blocks heads n n"] | None = None


class MSATransformer(nn.Module):
    """The MSA Transformer with its contact head (Rao et al. 2021).

    Encoder and head are published in files of their own: load each.
    """

    def __init__(self, config: MSATransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = MSATransformerEncoder(config)
        self.contact_head = ContactHead(config.n_blocks * config.n_head)

    def forward(self, tokens: Int[Tensor, "*batch s n"], *, contacts: bool = True, row_attentions: bool = False) -> MSATransformerOutput:
        """Run an alignment, tokenised with :func:`evoattn.io.esm_tokens`.

        Args:
            contacts, row_attentions: what to return besides the representation; without either no map is computed.

        Raises:
            ShapeError: tokens are no alignment of tokens, or longer or deeper than there are encodings.
        """
        m, maps = self.encoder(tokens, row_attentions=contacts or row_attentions)
        found = None
        if contacts:
            present = tokens[..., 0, 1:] != PADDING  # of the query
            found = self.contact_head(maps[..., 1:, 1:], None if bool(present.all()) else present)
        return MSATransformerOutput(m, found, maps if row_attentions else None)
