"""Features of templates, under the names that AlphaFold 2 and OpenFold give them, checked."""

from collections.abc import Mapping

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import one_hot

from evoattn.config import TemplateConfig
from evoattn.errors import ShapeError
from evoattn.ops import hide_nonfinite
from evoattn.shapes import check_features, check_mask
from evoattn.stacks.template import BETA, RESIDUES, Templates

STRUCTURE = ("template_aatype", "template_all_atom_positions", "template_all_atom_mask")
TORSIONS = ("template_torsion_angles_sin_cos", "template_alt_torsion_angles_sin_cos", "template_torsion_angles_mask")
PSI, CHI_1 = 2, 3
"""Places among the torsion angles: omega, phi, psi and four of the side chain."""


def read_templates(features: Mapping[str, Tensor], config: TemplateConfig, like: Tensor, *, owner: str = "EvoformerTrunk") -> Templates:
    """The templates among `features`; none where they have no ``template_aatype``.

    Args:
        features: ``template_aatype`` [*batch, N_templ, N_res], AlphaFold's numbers 0 to 21; ``template_all_atom_positions``
            [..., N_res, 37, 3] in Angstrom, of which N, C-alpha, C and C-beta are read (so 4 atoms are enough);
            ``template_all_atom_mask`` [..., N_res, 37]; ``template_mask`` [*batch, N_templ], which are there (all by default). With
            ``config.torsions`` also
            ``template_torsion_angles_sin_cos`` and ``template_alt_torsion_angles_sin_cos`` [..., N_res, 7, 2] and
            ``template_torsion_angles_mask`` [..., N_res, 7] (omega, phi, psi, four of the side chain). Masks are boolean.
        like: a tensor [*batch, N_res, channels] of the residues, the dtype and the device that the templates must have.

    Raises:
        ShapeError: some of these are missing, or do not fit.
    """
    batch, n_res = like.shape[:-2], like.shape[-2]
    needed = STRUCTURE + (TORSIONS if config.torsions else ())
    if "template_aatype" not in features:
        return Templates(*_nothing(like, config))
    if missing := [name for name in needed if name not in features]:
        raise ShapeError(f"{owner}: features have template_aatype, but lack {', '.join(missing)}; give all of them, or no templates.")
    aatype, atoms, atom_mask = (features[name] for name in STRUCTURE)
    if aatype.is_floating_point() or aatype.dim() != len(batch) + 2 or (*aatype.shape[:-2], aatype.shape[-1]) != (*batch, n_res):
        raise ShapeError(
            f"{owner}: features['template_aatype'] is {aatype.dtype} {tuple(aatype.shape)}; it must be an integer type "
            f"[*batch, N_templ, N_res] with N_res = {n_res} and batch axes {tuple(batch)}."
        )
    if aatype.numel() and not 0 <= int(aatype.min()) <= int(aatype.max()) < RESIDUES:
        least, most = int(aatype.min()), int(aatype.max())
        raise ShapeError(f"{owner}: features['template_aatype'] has values from {least} to {most}; allowed are 0 to {RESIDUES - 1}.")
    check_features(owner, "features['template_all_atom_positions']", atoms, ["N_templ", "N_res", "atoms", "xyz"], 3)
    n_atoms = atoms.shape[-2]
    if atoms.shape[:-2] != aatype.shape or n_atoms <= BETA:
        raise ShapeError(
            f"{owner}: features['template_all_atom_positions'] has shape {tuple(atoms.shape)}; expected {(*aatype.shape, 37, 3)}, or the "
            "first 4 atoms, N, CA, C and CB."
        )
    check_mask(owner, "features['template_all_atom_mask']", atom_mask, (*aatype.shape, n_atoms), ["N_templ", "N_res", "atoms"])
    mask = features.get("template_mask", torch.ones(aatype.shape[:-1], dtype=torch.bool, device=aatype.device))
    check_mask(owner, "features['template_mask']", mask, aatype.shape[:-1], ["N_templ"])
    atoms = hide_nonfinite(atoms[..., : BETA + 1, :], atom_mask[..., : BETA + 1]).to(like.dtype)
    torsions = _torsions(features, config, aatype, owner, like.dtype) if config.torsions else (None, None)
    return Templates(aatype.long(), atoms, atom_mask[..., : BETA + 1], mask, *torsions)


def _nothing(like: Tensor, config: TemplateConfig) -> list[Tensor]:
    shape = (*like.shape[:-2], 0, like.shape[-2])
    known = torch.zeros(*shape, 4, dtype=torch.bool, device=like.device)
    return [torch.zeros(shape, dtype=torch.long, device=like.device), like.new_zeros(*shape, 4, 3), known, known[..., 0, 0]]


def _torsions(
    features: Mapping[str, Tensor], config: TemplateConfig, aatype: Tensor, owner: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The features of each residue (57 of the monomer, 34 of multimer), and where its row is not masked: by psi, or by chi 1."""
    angles, others, known = (features[name] for name in TORSIONS)
    for name, x in zip(TORSIONS, (angles, others), strict=False):
        if not x.is_floating_point() or x.shape != (*aatype.shape, 7, 2):
            raise ShapeError(
                f"{owner}: features[{name!r}] is {x.dtype} {tuple(x.shape)}; expected floating point {(*aatype.shape, 7, 2)}: "
                "sine and cosine of 7 angles."
            )
    check_mask(owner, f"features[{TORSIONS[2]!r}]", known, (*aatype.shape, 7), ["N_templ", "N_res", "angles"])
    types, there = one_hot(aatype.long(), RESIDUES).to(dtype), known.to(dtype)
    angles, others = (hide_nonfinite(x, known).to(dtype) for x in (angles, others))
    if config.form == "average":
        sine, cosine = (angles[..., CHI_1:, :] * there[..., CHI_1:, None]).unbind(-1)
        return torch.cat([types, sine, cosine, there[..., CHI_1:]], dim=-1), known[..., CHI_1]
    flat = [rearrange(x, "... angles two -> ... (angles two)") for x in (angles, others)]
    return torch.cat([types, *flat, there], dim=-1), known[..., PSI]
