"""From features of an alignment to the MSA, pair and single representation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from evoattn.blocks import RelativePosition
from evoattn.blocks.slices import AT_ONCE
from evoattn.blocks.template import distance_bins
from evoattn.config import TrunkConfig
from evoattn.errors import ConfigError, ShapeError
from evoattn.ops import hide_nonfinite
from evoattn.ops.tiles import spans
from evoattn.primitives import linear
from evoattn.shapes import MSA, Pair, PairMask, SingleMask, check_features, check_mask
from evoattn.stacks import AveragedTemplates, EvoformerStack, ExtraMSAStack, PointwiseTemplates, Templates
from evoattn.stacks.template_features import read_templates

CHAIN_FEATURES = ("asym_id", "entity_id", "sym_id")


@dataclass(frozen=True)
class Representations:
    """What a trunk returns: msa [*batch, N_seq, N_res, c_m], pair [*batch, N_res, N_res, c_z], single [*batch, N_res, c_s]."""

    msa: Float[Tensor, "*batch s n c_m"]
    pair: Float[Tensor, "*batch n n c_z"]
    single: Float[Tensor, "*batch n c_s"]


@dataclass(frozen=True)
class Recycled:
    """What an earlier pass hands to the next: first MSA row, pair representation, and C-beta positions (C-alpha of glycine) in Angstrom."""

    msa_first_row: Float[Tensor, "*batch n c_m"]
    pair: Float[Tensor, "*batch n n c_z"]
    positions: Float[Tensor, "*batch n 3"] | None = None


class RecyclingEmbedder(nn.Module):
    """What the first MSA row and the pair representation gain from an earlier pass (AlphaFold 2 supplement, algorithm 32)."""

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        c = config
        self.config = config
        self.msa_norm = nn.LayerNorm(c.evoformer.c_m)
        self.pair_norm = nn.LayerNorm(c.evoformer.c_z)
        self.distance = linear(c.recycle_bins, c.evoformer.c_z)

    def first_row(self, row: Float[Tensor, "*batch n c_m"]) -> Float[Tensor, "*batch n c_m"]:
        """What the first MSA row gains from that of an earlier pass."""
        return self.msa_norm(row)

    def pair(
        self, pair: Float[Tensor, "*batch rows n c_z"], positions: Float[Tensor, "*batch n 3"] | None, rows: slice = slice(None)
    ) -> Float[Tensor, "*batch rows n c_z"]:
        """What those rows of the pair representation gain, `pair` being the same rows of an earlier pass."""
        weight = self.distance.weight
        # without positions no distance falls into a bin: one row of zeros, so that the weight has a gradient all the same
        bins = weight.new_zeros(self.config.recycle_bins) if positions is None else self.distogram(positions, rows).to(weight.dtype)
        return self.pair_norm(pair) + self.distance(bins)

    def distogram(self, positions: Float[Tensor, "*batch n 3"], rows: slice = slice(None)) -> Float[Tensor, "*batch rows n bins"]:
        """One-hot of the distance's bin; the last bin is open, and distances below the first belong to none."""
        return distance_bins(positions, self.config.recycle_min, self.config.recycle_max, self.config.recycle_bins, rows)


class TemplateRows(nn.Module):
    """Rows of the MSA representation made of templates' torsion angles (AlphaFold 2 supplement, algorithm 2, lines 7 and 8)."""

    def __init__(self, c_torsion_feat: int, c_m: int) -> None:
        super().__init__()
        self.embedding = linear(c_torsion_feat, c_m, init="relu")
        self.projection = linear(c_m, c_m, init="relu")

    def forward(self, torsions: Float[Tensor, "*batch t n c_torsion"]) -> Float[Tensor, "*batch t n c_m"]:
        return self.projection(torch.relu(self.embedding(torsions)))


class EvoformerTrunk(nn.Module):
    """Features -> embedding -> extra-MSA stack -> Evoformer.

    AlphaFold 2 supplement, algorithm 2 (lines 5 to 18), with algorithms 3 to 6, 16 to 18 and 32; and AlphaFold-Multimer's, by its config.
    """

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        c = config
        assert c.evoformer.c_s is not None
        self.config = config
        self.target_msa = linear(c.c_target_feat, c.evoformer.c_m)
        self.msa = linear(c.c_msa_feat, c.evoformer.c_m)
        self.target_left = linear(c.c_target_feat, c.evoformer.c_z)
        self.target_right = linear(c.c_target_feat, c.evoformer.c_z)
        self.relative_position = RelativePosition(c.evoformer.c_z, c.max_relative, c.max_chain)
        self.recycling = RecyclingEmbedder(config)
        self.templates: PointwiseTemplates | AveragedTemplates | None = None
        self.template_rows: TemplateRows | None = None
        if c.templates is not None:
            embedder = PointwiseTemplates if c.templates.form == "pointwise" else AveragedTemplates
            self.templates = embedder(c.templates, c.evoformer.c_z)
            if c.templates.torsions:
                self.template_rows = TemplateRows(c.templates.c_torsion_feat, c.evoformer.c_m)
        self.extra_msa = None if c.extra is None else linear(c.c_extra_feat, c.extra.c_m)
        self.extra_stack = None if c.extra is None else ExtraMSAStack(c.extra)
        self.evoformer = EvoformerStack(c.evoformer)

    def forward(self, features: Mapping[str, Tensor], *, recycles: int = 0, previous: Recycled | None = None) -> Representations:
        """Run the trunk once, or 1 + `recycles` times, each pass starting from what the one before returned.

        AlphaFold 2 also recycles the coordinates of its structure module, which this framework does not have. So 0 recycles is what equals
        AlphaFold 2; with more, only the first MSA row and the pair representation are recycled. Gradients flow through the last pass only.

        Args:
            features: as :func:`evoattn.make_features` returns them: target_feat [*batch, N_res, 22], residue_index [*batch, N_res],
                msa_feat [*batch, N_seq, N_res, 49], extra_msa_feat [*batch, N_extra, N_res, 25], and the boolean masks seq_mask
                [*batch, N_res], msa_mask and extra_msa_mask of the shape of their alignment (all True where absent). With
                ``config.max_chain`` also asym_id, entity_id and sym_id [*batch, N_res] (all one chain where absent). With
                ``config.templates``, template features as :func:`evoattn.stacks.template_features.read_templates` lists them, or none.
            previous: of an earlier pass; zeros by default, as AlphaFold 2 starts.

        Raises:
            ShapeError: a feature is missing, or does not fit the config, the other features or the parameters.
            ConfigError: `recycles` is negative.
            MemoryLimitError: a stack cannot do with ``Execution(memory_budget=...)``.
        """
        return self._passes(features, recycles, previous, own=False)

    @torch.no_grad()
    def run_(self, features: Mapping[str, Tensor], *, recycles: int = 0, previous: Recycled | None = None) -> Representations:
        """:meth:`forward` without gradients, in little memory: uses up ``previous.pair``, which is written over, and returned."""
        return self._passes(features, recycles, previous, own=True)

    def _passes(self, features: Mapping[str, Tensor], recycles: int, previous: Recycled | None, *, own: bool) -> Representations:
        """1 + `recycles` passes; `own` says that what `previous` holds may be written over, as what an earlier pass here returned."""
        if recycles < 0:
            raise ConfigError(f"EvoformerTrunk: recycles is {recycles}; it must be 0 (one pass) or more.")
        features = self._checked(features)
        for _ in range(recycles):
            with torch.no_grad():
                out = self._once(features, previous, own=own)
            previous, own = Recycled(out.msa[..., 0, :, :].clone(), out.pair), True
            del out  # else its MSA representation would stand beside the next one
        return self._once(features, previous, own=own)

    def _once(self, features: Mapping[str, Tensor], previous: Recycled | None, *, own: bool) -> Representations:
        seq_mask = features.get("seq_mask")
        pair_mask = None if seq_mask is None else seq_mask.unsqueeze(-1) & seq_mask.unsqueeze(-2)
        if previous is not None:
            _check_previous(previous, features["target_feat"].shape[:-1], self.config)
        in_place = not (torch.is_grad_enabled() or self.training)  # m, z and extra are the trunk's own: the stacks may use them up
        if in_place:
            z = self._embed_pair_by_rows(features, previous, pair_mask, own=own)
        else:
            z = self._embed_pair(features, previous, pair_mask)

        def run(stack: EvoformerStack | ExtraMSAStack | PointwiseTemplates | AveragedTemplates) -> Callable[..., Any]:
            return stack.run_ if in_place else stack

        templates = None if self.config.templates is None else read_templates(features, self.config.templates, features["target_feat"])
        if self.templates is not None:
            z = run(self.templates)(z, templates, pair_mask, features.get("asym_id") if self.config.max_chain is not None else None)
            if torch.is_grad_enabled() and "template_aatype" not in features:
                z = z + self._without_templates()
        if self.extra_stack is not None and self.extra_msa is not None:
            z = run(self.extra_stack)(self.extra_msa(features["extra_msa_feat"]), z, features.get("extra_msa_mask"), pair_mask)
        m = self._embed_msa(features, previous, seq_mask)  # not before: the extra alignment is let go by now
        n_seq, msa_mask = m.shape[-3], features.get("msa_mask")
        if self.template_rows is not None and templates is not None and templates.torsions is not None:
            m, msa_mask = self._with_template_rows(m, msa_mask, templates)
        m, z, s = run(self.evoformer)(m, z, msa_mask, pair_mask)
        return Representations(m[..., :n_seq, :, :], z, s)

    def _without_templates(self) -> Tensor:
        """0, with a gradient of 0 for each parameter of the templates: processes that train together, of which others have templates, wait
        for one."""
        parameters = [x for part in (self.templates, self.template_rows) if part is not None for x in part.parameters()]
        return 0.0 * torch.stack([x.sum() for x in parameters]).sum()

    def _with_template_rows(self, m: Tensor, msa_mask: Tensor | None, templates: Templates) -> tuple[Tensor, Tensor]:
        """m and its mask, with a row for each template below it."""
        assert self.template_rows is not None and templates.torsions is not None and templates.torsion_mask is not None
        rows = self.template_rows(templates.torsions)
        mask = torch.ones(m.shape[:-1], dtype=torch.bool, device=m.device) if msa_mask is None else msa_mask
        return torch.cat([m, rows], dim=-3), torch.cat([mask, templates.torsion_mask], dim=-2)

    def _embed_msa(self, features: Mapping[str, Tensor], previous: Recycled | None, seq_mask: SingleMask | None) -> MSA:
        """m before any stack (algorithms 3 and 32)."""
        m, of_target = self.msa(features["msa_feat"]), self.target_msa(features["target_feat"]).unsqueeze(-3)
        m = m + of_target if torch.is_grad_enabled() else m.add_(of_target)
        query = m[..., 0, :, :]
        query += self.recycling.first_row(torch.zeros_like(query) if previous is None else hide_nonfinite(previous.msa_first_row, seq_mask))
        return m

    def _embed_pair(
        self, features: Mapping[str, Tensor], previous: Recycled | None, pair_mask: PairMask | None, rows: slice = slice(None)
    ) -> Float[Tensor, "*batch rows n c_z"]:
        """Those rows of z before any stack (algorithms 3, 4 and 32)."""
        target = features["target_feat"]
        z = self.target_left(target[..., rows, :]).unsqueeze(-2) + self.target_right(target).unsqueeze(-3)
        if previous is None:
            recycled = self.recycling.pair(torch.zeros_like(z), None)
        else:
            earlier = hide_nonfinite(previous.pair[..., rows, :, :], None if pair_mask is None else pair_mask[..., rows, :])
            recycled = self.recycling.pair(earlier, previous.positions, rows)
        chains = [] if self.config.max_chain is None else [features.get(name) for name in CHAIN_FEATURES]
        return z + recycled + self.relative_position(features["residue_index"], *chains, rows=rows)

    def _embed_pair_by_rows(
        self, features: Mapping[str, Tensor], previous: Recycled | None, pair_mask: PairMask | None, *, own: bool
    ) -> Pair:
        """z, made by rows so that temporaries are small; over ``previous.pair`` if that is the trunk's `own`."""
        *batch, n_res, _ = features["target_feat"].shape
        z = previous.pair if own and previous is not None else None
        for rows in spans(n_res, AT_ONCE // max(1, prod(batch) * n_res * self.config.evoformer.c_z)):
            piece = self._embed_pair(features, previous, pair_mask, rows)
            if z is None:
                z = piece.new_empty(*batch, n_res, n_res, piece.shape[-1])
            z[..., rows, :, :] = piece
        return self._embed_pair(features, previous, pair_mask) if z is None else z

    def _checked(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The features that are used, with NaN and inf at masked positions replaced by 0: else a linear layer's gradient has them."""
        c, owner = self.config, "EvoformerTrunk"
        layouts = {"target_feat": (["N_res"], c.c_target_feat, "seq_mask"), "msa_feat": (["N_seq", "N_res"], c.c_msa_feat, "msa_mask")}
        if c.extra is not None:
            layouts["extra_msa_feat"] = (["N_extra", "N_res"], c.c_extra_feat, "extra_msa_mask")
        if missing := [name for name in ("residue_index", *layouts) if name not in features]:
            raise ShapeError(f"{owner}: features lack {', '.join(missing)}; make_features(read_msa(path)) has all of them.")
        checked = {"residue_index": features["residue_index"]}
        residues = checked["residue_index"].shape  # [*batch, N_res]
        if checked["residue_index"].is_floating_point():
            raise ShapeError(f"{owner}: features['residue_index'] has dtype {checked['residue_index'].dtype}; it must be an integer type.")
        for name, (axes, width, mask_name) in layouts.items():
            x, mask = features[name], features.get(mask_name)
            check_features(owner, f"features[{name!r}]", x, [*axes, "channels"], width)
            if (*x.shape[: -len(axes) - 1], x.shape[-2]) != tuple(residues):
                raise ShapeError(
                    f"{owner}: features[{name!r}] has shape {tuple(x.shape)} = [*batch, {', '.join(axes)}, channels], and "
                    f"features['residue_index'] {tuple(residues)} = [*batch, N_res]; batch axes and N_res must agree."
                )
            _check_kin(name, x, self.target_msa.weight)
            check_mask(owner, f"features[{mask_name!r}]", mask, x.shape[:-1], axes)
            checked[name] = hide_nonfinite(x, mask)
            if mask is not None:
                checked[mask_name] = mask
        if c.max_chain is not None:
            checked |= _chains(owner, features, residues)
        if c.templates is not None:  # checked where they are read
            checked |= {name: x for name, x in features.items() if name.startswith("template_")}
        if checked["msa_feat"].shape[-3] == 0:
            raise ShapeError(f"{owner}: features['msa_feat'] has no rows; the query sequence is the first row of an alignment.")
        return checked


def _chains(owner: str, features: Mapping[str, Tensor], residues: torch.Size) -> dict[str, Tensor]:
    """The numbers of chains that there are."""
    given = {name: features[name] for name in CHAIN_FEATURES if name in features}
    for name, x in given.items():
        if x.is_floating_point() or x.shape != residues:
            raise ShapeError(
                f"{owner}: features[{name!r}] is {x.dtype} {tuple(x.shape)}; it must be an integer type {tuple(residues)} = "
                "[*batch, N_res], as features['residue_index']."
            )
    return given


def _check_kin(name: str, x: Tensor, weight: Tensor) -> None:
    """Refuse a feature that is elsewhere than the parameters, or of another dtype where autocast does not take care of it."""
    if x.device != weight.device or (x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type)):
        raise ShapeError(
            f"EvoformerTrunk: features[{name!r}] is {x.dtype} on {x.device}, the parameters are {weight.dtype} on {weight.device}. "
            "Move one to the other with .to(...); make_features(msa, dtype=...) makes features of a dtype."
        )


def _check_previous(previous: Recycled, residues: torch.Size, config: TrunkConfig) -> None:
    """Refuse what an earlier pass handed over unless it has the shapes of this one, whose residues are [*batch, N_res]."""
    c = config.evoformer
    expected = {"msa_first_row": (*residues, c.c_m), "pair": (*residues, residues[-1], c.c_z), "positions": (*residues, 3)}
    for name, shape in expected.items():
        got = getattr(previous, name)
        if got is not None and got.shape != shape:
            raise ShapeError(f"EvoformerTrunk: previous.{name} has shape {tuple(got.shape)}; expected {shape}, as this pass has it.")
