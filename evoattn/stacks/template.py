"""Templates, known structures of related sequences: their pair stack, and how they enter the pair representation."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import one_hot

from evoattn.blocks.template import TemplatePointwiseAttention, distance_bins, unit_vectors
from evoattn.config import TemplateConfig
from evoattn.execution import Executable
from evoattn.ops import hide_nonfinite, hide_nonfinite_
from evoattn.primitives import linear
from evoattn.shapes import check_features, check_mask
from evoattn.stacks.checkpointing import checkpointed
from evoattn.stacks.pair import PairUpdates
from evoattn.updates import update, update_

RESIDUES = 22
"""Residue types of a template: 20 amino acids, unknown, gap."""
GLYCINE, ALPHA, BETA = 7, 1, 3
"""Residue type of glycine; places of C-alpha and C-beta among the atoms N, C-alpha, C, C-beta."""


@dataclass(frozen=True)
class Templates:
    """Structures aligned with the query, t of them; masks are True where an atom or angle is known.

    Attributes:
        aatype: residue types, AlphaFold's numbers. atoms: positions of N, C-alpha, C and C-beta, in Angstrom. atom_mask: of these.
        mask: which templates are there. torsions: features of each residue in its row of the MSA representation, and `torsion_mask`.
    """

    aatype: Int[Tensor, "*batch t n"]
    atoms: Float[Tensor, "*batch t n 4 3"]
    atom_mask: Bool[Tensor, "*batch t n 4"]
    mask: Bool[Tensor, "*batch t"]
    torsions: Float[Tensor, "*batch t n c_torsion"] | None = None
    torsion_mask: Bool[Tensor, "*batch t n"] | None = None

    def __len__(self) -> int:
        return self.aatype.shape[-2]

    def one(self, index: int) -> "Templates":
        """The structure of that template alone, one of one."""
        part = slice(index, index + 1)
        structure = self.aatype[..., part, :], self.atoms[..., part, :, :, :], self.atom_mask[..., part, :, :], self.mask[..., part]
        return Templates(*structure)

    @classmethod
    def empty(cls, like: Float[Tensor, "*batch n c"]) -> "Templates":
        """One of which nothing is known, as AlphaFold-Multimer's pipeline pads with; for the residues of `like`."""
        atoms = like.new_zeros(*like.shape[:-2], 1, like.shape[-2], 4, 3)
        atom_mask = torch.zeros_like(atoms[..., 0], dtype=torch.bool)
        return cls(torch.zeros_like(atom_mask[..., 0], dtype=torch.long), atoms, atom_mask, atom_mask[..., 0, 0])

    def backbone(self) -> tuple[Float[Tensor, "*batch n 3 3"], Bool[Tensor, "*batch n n"]]:
        """N, C-alpha and C, 0 where unknown, and the pairs of residues of which all are known."""
        known = self.atom_mask[..., :3].all(-1)
        return self.atoms[..., :3, :].masked_fill(~known[..., None, None], 0.0), _pairs(known)

    def beta(self) -> tuple[Float[Tensor, "*batch n 3"], Bool[Tensor, "*batch n n"]]:
        """C-beta, or C-alpha of glycine, and the pairs of residues of which it is known."""
        glycine = self.aatype == GLYCINE
        positions = torch.where(glycine.unsqueeze(-1), self.atoms[..., ALPHA, :], self.atoms[..., BETA, :])
        return positions, _pairs(torch.where(glycine, self.atom_mask[..., ALPHA], self.atom_mask[..., BETA]))


def _pairs(known: Tensor) -> Tensor:
    return known.unsqueeze(-1) & known.unsqueeze(-2)


class TemplatePairBlock(PairUpdates):
    """One block of the template pair stack (AlphaFold 2 supplement, algorithm 16): triangle attention, multiplication, transition.

    With ``profile.template_mul_first`` multiplication comes first (AlphaFold-Multimer).

    Raises:
        ShapeError: inputs do not fit the config or each other.
    """

    def __init__(self, config: TemplateConfig) -> None:
        super().__init__(config)
        self.config, self.mul_first = config, config.profile.template_mul_first

    def forward(
        self, z: Float[Tensor, "*batch n n c_z"], pair_mask: Bool[Tensor, "*batch n n"] | None = None
    ) -> Float[Tensor, "*batch n n c_z"]:
        """The updated z."""
        if self.mul_first:
            return self.update_pair(z, pair_mask)
        update = self.update
        z = update(z, self.tri_attn_start, pair_mask, drop=self.drop_row)
        z = update(z, self.tri_attn_end, pair_mask, drop=self.drop_column)
        z = update(z, self.tri_mul_out, pair_mask, drop=self.drop_row)
        z = update(z, self.tri_mul_in, pair_mask, drop=self.drop_mul_in)
        return update(z, self.pair_transition, pair_mask)


class TemplatePairStack(Executable):
    """The template pair stack (AlphaFold 2 supplement, algorithm 16), without the norm at its end.

    Raises:
        ShapeError: inputs do not fit the config or each other.
    """

    def __init__(self, config: TemplateConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(TemplatePairBlock(config) for _ in range(config.n_blocks))

    def _check(self, z: Tensor, pair_mask: Tensor | None) -> None:
        check_features("TemplatePairStack", "z", z, ["N_res", "N_res", "c_z"], self.config.c_z)
        check_mask("TemplatePairStack", "pair_mask", pair_mask, z.shape[:-1], ["N_res", "N_res"])

    def forward(
        self, z: Float[Tensor, "*batch n n c_z"], pair_mask: Bool[Tensor, "*batch n n"] | None = None
    ) -> Float[Tensor, "*batch n n c_z"]:
        """The updated z; the templates may be a batch axis."""
        self._check(z, pair_mask)
        z = hide_nonfinite(z, pair_mask)
        for block in self.blocks:
            assert isinstance(block, TemplatePairBlock)
            z = checkpointed(block, (z,), pair_mask) if self.execution.recomputes_blocks else block(z, pair_mask)
        return z

    @torch.no_grad()
    def run_(
        self, z: Float[Tensor, "*batch n n c_z"], pair_mask: Bool[Tensor, "*batch n n"] | None = None
    ) -> Float[Tensor, "*batch n n c_z"]:
        """:meth:`forward` for inference, in little memory: uses up `z`, which is written over, and returned."""
        self._check(z, pair_mask)
        hide_nonfinite_(z, pair_mask)
        for block in self.blocks:
            assert isinstance(block, TemplatePairBlock)
            with block.updating(update_):
                z = block(z, pair_mask)
        return z


class PointwiseTemplates(nn.Module):
    """The templates of AlphaFold 2's monomer (supplement, algorithm 2, lines 9 to 13): each is embedded, and each pair attends over them.

    The 88 features of a pair: bins of the C-beta distance (39), whether both are known, the types of the second and of the first residue
    (22 each), three zeros (directions, which the published models do not use) and whether both backbones are known. Where not, all are 0.
    """

    def __init__(self, config: TemplateConfig, c_z: int) -> None:
        super().__init__()
        c = config
        self.config = config
        self.features = linear(c.bins + 2 * RESIDUES + 5, c.c_z, init="relu")
        self.stack = TemplatePairStack(c)
        self.norm = nn.LayerNorm(c.c_z)
        self.attention = TemplatePointwiseAttention(c_z, c.c_z, c.n_head_pointwise, d_head=c.c_head_pointwise)

    def forward(
        self,
        z: Float[Tensor, "*batch n n c_z"],
        templates: Templates,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
        asym_id: Int[Tensor, "*batch n"] | None = None,
    ) -> Float[Tensor, "*batch n n c_z"]:
        """The updated z. `asym_id` is not looked at."""
        return self._with(z, templates, pair_mask, in_place=False)

    @torch.no_grad()
    def run_(self, z: Tensor, templates: Templates, pair_mask: Tensor | None = None, asym_id: Tensor | None = None) -> Tensor:
        """:meth:`forward` for inference, in little memory: uses up `z`, which is written over, and returned."""
        return self._with(z, templates, pair_mask, in_place=True)

    def _with(self, z: Tensor, templates: Templates, pair_mask: Tensor | None, *, in_place: bool) -> Tensor:
        if not len(templates):
            return z
        run = self.stack.run_ if in_place else self.stack
        each = (self.norm(run(self.embed(templates.one(index)).squeeze(-4), pair_mask)) for index in range(len(templates)))
        embedded = _stacked(each, len(templates)) if in_place else torch.stack(list(each), dim=-4)
        return (update_ if in_place else update)(z, self.attention, embedded, templates.mask, pair_mask)

    def embed(self, templates: Templates) -> Float[Tensor, "*batch t n n c_t"]:
        """The features of each template, projected."""
        c, dtype = self.config, self.features.weight.dtype
        beta, beta_known = templates.beta()
        known = templates.backbone()[1]
        types = one_hot(templates.aatype, RESIDUES).to(dtype)
        n = types.shape[-2]
        second, first = (types.unsqueeze(axis).expand(*types.shape[:-2], n, n, RESIDUES) for axis in (-3, -2))
        bins = distance_bins(beta, c.bin_min, c.bin_max, c.bins).to(dtype)
        flags = [beta_known.unsqueeze(-1).to(dtype), second, first, bins.new_zeros(*bins.shape[:-1], 3), known.unsqueeze(-1).to(dtype)]
        return self.features(torch.cat([bins, *flags], dim=-1) * known.unsqueeze(-1))


def _stacked(each: Iterator[Tensor], n: int) -> Tensor:
    """[*batch, n, i, j, c], one filled in after the other, so that there are never two of all."""
    out = None
    for index, x in enumerate(each):
        if out is None:
            out = x.new_empty(*x.shape[:-3], n, *x.shape[-3:])
        out[..., index, :, :, :] = x
    assert out is not None
    return out


class AveragedTemplates(nn.Module):
    """The templates of AlphaFold-Multimer: nine layers that are added up, the pair stack, and the mean over the templates.

    Evans et al. 2021 and its code (``modules_multimer.py``, TemplateEmbedding). What a template says of two residues in different chains is
    not used. Without templates it embeds one of which nothing is known: its pipeline pads with such, and the mean of several is the same.
    """

    def __init__(self, config: TemplateConfig, c_z: int) -> None:
        super().__init__()
        c = config
        self.config = config
        self.distances = linear(c.bins, c.c_z, init="relu")
        self.beta_known = linear(1, c.c_z, init="relu")
        self.second, self.first = (linear(RESIDUES, c.c_z, init="relu") for _ in range(2))
        self.x, self.y, self.z = (linear(1, c.c_z, init="relu") for _ in range(3))
        self.known = linear(1, c.c_z, init="relu")
        self.query_norm = nn.LayerNorm(c_z)
        self.query = linear(c_z, c.c_z, init="relu")
        self.stack = TemplatePairStack(c)
        self.norm = nn.LayerNorm(c.c_z)
        self.out = linear(c.c_z, c_z, init="relu")

    def forward(
        self,
        z: Float[Tensor, "*batch n n c_z"],
        templates: Templates,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
        asym_id: Int[Tensor, "*batch n"] | None = None,
    ) -> Float[Tensor, "*batch n n c_z"]:
        """The updated z. `asym_id` numbers the chains; all residues are one chain by default."""
        return z + self._delta(z, templates, pair_mask, asym_id, in_place=False)

    @torch.no_grad()
    def run_(self, z: Tensor, templates: Templates, pair_mask: Tensor | None = None, asym_id: Tensor | None = None) -> Tensor:
        """:meth:`forward` for inference, in little memory: uses up `z`, which is written over, and returned."""
        return z.add_(self._delta(z, templates, pair_mask, asym_id, in_place=True))

    def _delta(self, z: Tensor, templates: Templates, pair_mask: Tensor | None, asym_id: Tensor | None, *, in_place: bool) -> Tensor:
        if not len(templates):
            templates = Templates.empty(z[..., 0, :])
        chain = None if asym_id is None else asym_id.unsqueeze(-1) == asym_id.unsqueeze(-2)
        query = self.query(self.query_norm(hide_nonfinite(z, pair_mask)))
        run = self.stack.run_ if in_place else self.stack
        each = (self.norm(run(query + self.embed(templates.one(index), chain).squeeze(-4), pair_mask)) for index in range(len(templates)))
        mean = torch.zeros_like(query)
        for embedded in each:
            mean = mean + embedded / len(templates)
        return self.out(torch.relu(mean))

    def embed(self, templates: Templates, chain: Bool[Tensor, "*batch n n"] | None) -> Float[Tensor, "*batch t n n c_t"]:
        """The features of each template, projected and added up; `chain` is True for two residues of one chain."""
        c, dtype = self.config, self.distances.weight.dtype
        beta, beta_known = templates.beta()
        backbone, known = templates.backbone()
        if chain is not None:
            same = chain.unsqueeze(-3)
            beta_known, known = beta_known & same, known & same
        types = one_hot(templates.aatype, RESIDUES).to(dtype)
        bins = distance_bins(beta, c.bin_min, c.bin_max, c.bins).to(dtype) * beta_known.unsqueeze(-1)
        x, y, z = (unit_vectors(backbone).to(dtype) * known.unsqueeze(-1)).split(1, dim=-1)
        flags = self.beta_known(beta_known.unsqueeze(-1).to(dtype)) + self.known(known.unsqueeze(-1).to(dtype))
        residues = self.second(types).unsqueeze(-3) + self.first(types).unsqueeze(-2)
        return self.distances(bins) + flags + residues + self.x(x) + self.y(y) + self.z(z)
