"""What templates, known structures of related sequences, add to the pair representation."""

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from evoattn.errors import ShapeError
from evoattn.ops import hide_nonfinite
from evoattn.primitives import MultiHeadAttention
from evoattn.shapes import check_features, check_mask
from evoattn.updates import positions_per_slice, take_part


class TemplatePointwiseAttention(nn.Module):
    """Each pair of residues attends over the templates (AlphaFold 2 supplement, algorithm 17).

    As in AlphaFold 2's code there is neither a norm of z nor a gate. Where no template is there, the update is 0.

    Args:
        c_z, c_t: channels of the pair representation and of the embedded templates. heads: of width `d_head` each.

    Raises:
        ShapeError: the inputs do not fit each other.
    """

    slices = -3

    def __init__(self, c_z: int, c_t: int, heads: int, *, d_head: int) -> None:
        super().__init__()
        self.c_z, self.c_t = c_z, c_t
        self.attn = MultiHeadAttention(c_z, heads, c_kv=c_t, d_head=d_head)

    def forward(
        self,
        z: Float[Tensor, "*batch n n c_z"],
        templates: Float[Tensor, "*batch t n n c_t"],
        template_mask: Bool[Tensor, "*batch t"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> Float[Tensor, "*batch n n c_z"]:
        """delta of z. `template_mask` is True where there is a template; the pair mask only keeps non-finite entries of z out."""
        context = self.prepare(z, templates, template_mask, pair_mask)
        return self.delta(z, slice(0, z.shape[-3]), context)

    def prepare(
        self, z: Tensor, templates: Tensor, template_mask: Tensor | None = None, pair_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The templates, which of them are there, and the mask of z."""
        owner = "TemplatePointwiseAttention"
        check_features(owner, "z", z, ["N_res", "N_res", "c_z"], self.c_z)
        check_features(owner, "templates", templates, ["N_templ", "N_res", "N_res", "c_t"], self.c_t)
        *batch, n_templates, n_res, _, _ = templates.shape
        if z.shape[:-1] != (*batch, n_res, n_res):
            raise ShapeError(
                f"{owner}: templates has shape {tuple(templates.shape)}, which does not fit z {tuple(z.shape)}; expected "
                f"{(*z.shape[:-3], n_templates, *z.shape[-3:-1], self.c_t)} = [*batch, N_templ, N_res, N_res, c_t]."
            )
        check_mask(owner, "template_mask", template_mask, (*batch, n_templates), ["N_templ"])
        check_mask(owner, "pair_mask", pair_mask, z.shape[:-1], ["N_res", "N_res"])
        if template_mask is None:
            template_mask = torch.ones(*batch, n_templates, dtype=torch.bool, device=z.device)
        return templates, template_mask, pair_mask

    def delta(self, z: Tensor, part: slice, context: tuple[Tensor, Tensor, Tensor | None]) -> Tensor:
        templates, present, pair_mask = context
        z = hide_nonfinite(z, None if pair_mask is None else take_part(pair_mask, part, -2))
        if templates.shape[-4] == 0:
            return torch.zeros_like(z)
        known = rearrange(take_part(templates, part, -3), "... t i j c -> ... i j t c")
        out = self.attn(rearrange(z, "... i j c -> ... i j 1 c"), known, mask=rearrange(present, "... t -> ... 1 1 1 1 t"))
        return rearrange(out, "... i j 1 c -> ... i j c").masked_fill(~present.any(-1)[..., None, None, None], 0.0)

    def slice_bytes(self, z: Tensor, itemsize: int) -> int:
        keys = 2 * self.c_t + 2 * self.attn.heads * self.attn.d_head  # of a template; four are usual
        return positions_per_slice(z, self.slices) * (self.attn.bytes_per_position(itemsize) + 4 * keys * itemsize)


def distance_bins(
    positions: Float[Tensor, "*batch n 3"], least: float, most: float, bins: int, rows: slice = slice(None)
) -> Float[Tensor, "*batch rows n bins"]:
    """One-hot of the bin of each distance (Angstrom) from the residues `rows` to all; the last bin is open, and distances below the first
    belong to none.

    AlphaFold 2 supplement, algorithm 32, line 1, and table 1 (template_distogram).
    """
    lower = torch.linspace(least, most, bins, device=positions.device, dtype=positions.dtype).square()
    upper = torch.cat([lower[1:], lower.new_tensor([1e8])])
    squared = (positions[..., rows, :].unsqueeze(-2) - positions.unsqueeze(-3)).square().sum(-1, keepdim=True)
    return ((squared > lower) & (squared < upper)).to(positions.dtype)


def unit_vectors(backbone: Float[Tensor, "*batch n 3 3"]) -> Float[Tensor, "*batch n n 3"]:
    """The direction from residue i to residue j, [..., i, j, :], in the frame of i (AlphaFold 2 supplement, 1.8.1 and algorithm 21).

    Args:
        backbone: positions of N, C-alpha and C, in this order, in Angstrom.
    """
    nitrogen, alpha, carbon = backbone.unbind(-2)
    first = _normalised(carbon - alpha)
    along = ((nitrogen - alpha) * first).sum(-1, keepdim=True)
    second = _normalised(nitrogen - alpha - along * first)
    frames = torch.stack([first, second, torch.linalg.cross(first, second)], dim=-2)  # rows: the axes of the frame of i
    between = alpha.unsqueeze(-3) - alpha.unsqueeze(-2)
    return _normalised(torch.einsum("...iac,...ijc->...ija", frames, between))


def _normalised(x: Tensor) -> Tensor:
    return x * x.square().sum(-1, keepdim=True).clamp(min=1e-12).rsqrt()  # the length at least 1e-6, as in AlphaFold-Multimer
