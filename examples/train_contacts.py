"""A small Evoformer learns to see contacts in alignments: from real families, and from alignments whose couplings are known.

python examples/train_contacts.py FAMILIES --held-out NAME [--steps 1000] [--potts 200] [--out run_contacts]

FAMILIES is a folder with one folder per family (alignment and structure). A handful of them teaches little but themselves. So most samples
are alignments drawn from Potts models: random couplings between those residues that touch in a real structure, of which a random part is
taken, forwards or backwards. What they teach is to see which columns vary together. The family NAME is left out of all of it, and at the
end contacts of each family are compared with mean-field DCA (Morcos et al. 2011) by their precision, with C-beta within 8 Angstrom.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from evoattn.contacts.dca import mean_field_dca
from evoattn.io import MSA, MSAAccount, SparseLetters, make_features, row_weights
from evoattn.train.config import DataConfig, LossConfig, ModelConfig, OptimizerConfig, RunConfig, TrainConfig
from evoattn.train.contacts import contact_map, contact_precision
from evoattn.train.families import Family, find_families, split_families
from evoattn.train.model import TrunkWithHeads
from evoattn.train.trainer import Step, train

LENGTH, ROWS, SWEEPS = 48, 128, 12  # of a sampled alignment, and how often each of its letters is drawn anew
COUPLING, FIELD = 1.2, 2.0  # standard deviations: some six letters to a column, and DCA finds half of the contacts in 128 rows
DRAWS = 4  # of rows, over which contacts of a family are averaged


def sampled_family(family: Family, rng: np.random.Generator, number: int) -> Family:
    """An alignment from a Potts model with random couplings on the contacts of a part of the structure, by Gibbs sampling."""
    assert family.pseudo_beta is not None
    length = min(LENGTH, len(family.pseudo_beta))
    start = int(rng.integers(len(family.pseudo_beta) - length + 1))
    positions = family.pseudo_beta[start : start + length][:: rng.choice([-1, 1])].copy()
    touching = contact_map(np.linalg.norm(positions[:, None] - positions[None], axis=-1))
    fields = rng.normal(size=(length, 20)) * FIELD
    couplings = {}
    for i, j in np.argwhere(np.triu(touching, 3)):
        couplings[i, j] = rng.normal(size=(20, 20)) * COUPLING
        couplings[j, i] = couplings[i, j].T
    neighbours = [[j for j in range(length) if (i, j) in couplings] for i in range(length)]
    letters = rng.integers(20, size=(ROWS, length))
    for _ in range(SWEEPS):
        for i in rng.permutation(length):
            energy = fields[i] + sum((couplings[j, i][letters[:, j]] for j in neighbours[i]), np.zeros((ROWS, 20)))
            letters[:, i] = (energy + rng.gumbel(size=energy.shape)).argmax(axis=1)  # a draw from exp(energy)
    names = tuple(f"sample {row}" for row in range(ROWS))
    msa = MSA(names, ("",) * ROWS, letters.astype(np.uint8), SparseLetters.none(ROWS), MSAAccount(ROWS, ROWS))
    return Family(f"Potts {number}, on {family.name}", msa, positions)


@torch.no_grad()
def model_scores(model: TrunkWithHeads, msa: MSA, data: DataConfig) -> np.ndarray:
    """Contact probabilities by the distogram, averaged over draws of rows; nothing is hidden."""
    model.eval()
    features = replace(data.features(), masking=None)
    total = torch.zeros(msa.n_res, msa.n_res)
    for seed in range(DRAWS):
        total += model.distogram.contacts(model(make_features(msa, features, seed=seed)).distogram)
    return (total / DRAWS).double().numpy()


def precision(scores: np.ndarray, family: Family) -> list[float]:
    """Of the L and L/5 best pairs, six or more apart."""
    assert family.pseudo_beta is not None
    x = family.pseudo_beta.astype(np.float64)
    distances = np.linalg.norm(x[:, None] - x[None], axis=-1)
    return [one.value for one in contact_precision(scores, distances, ranges=["all"], top=["L", "L/5"])]


def compare(model: TrunkWithHeads, families: list[Family], held_out: list[Family], data: DataConfig) -> str:
    """A table of precisions."""
    lines = [f"{'family':<16}{'rows':>6}{'':>12}{'Evoformer':>17}{'DCA':>17}{f'DCA, {data.max_seqs} rows':>17}"]
    for family in families + held_out:
        rows = 1 + np.random.default_rng(0).permutation(family.msa.n_seq - 1)[: data.max_seqs - 1]
        few = family.msa.take(np.concatenate([[0], rows]))
        dca, dca_few = (mean_field_dca(one, row_weights(one, columns="all")).numpy() for one in (family.msa, few))
        columns = [precision(scores, family) for scores in (model_scores(model, family.msa, data), dca, dca_few)]
        told = "".join(f"{f'{top_l:.2f} / {top_l5:.2f}':>17}" for top_l, top_l5 in columns)
        lines.append(f"{family.name:<16}{family.msa.n_seq:>6}{'held out' if family in held_out else 'trained on':>12}{told}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", type=Path)
    parser.add_argument("--held-out", required=True, metavar="NAME")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--potts", type=int, default=200, help="sampled alignments; 0 trains on the real ones alone")
    parser.add_argument("--out", type=Path, default=Path("run_contacts"))
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()

    with_structure = [one for one in find_families(options.families, max_rows=2000) if one.pseudo_beta is not None]
    training, held_out = split_families(with_structure, [options.held_out])
    rng = np.random.default_rng(0)
    sampled = [sampled_family(training[number % len(training)], rng, number) for number in range(options.potts)]
    real = training * max(1, len(sampled) // (4 * len(training)))  # a fifth of all samples
    config = TrainConfig(
        out=options.out,
        data=DataConfig(crop=LENGTH, max_seqs=64, max_extra=0),
        model=ModelConfig(
            preset="tiny",
            extra_stack=False,
            evoformer={
                "n_blocks": 3, "c_m": 32, "c_z": 32, "n_head_msa_row": 4, "n_head_msa_column": 4, "c_hidden_opm": 16, "c_hidden_mul": 32,
                "msa_transition_n": 2, "pair_transition_n": 2, "dropout_msa": 0.0, "dropout_pair": 0.0,
            },
        ),
        loss=LossConfig(masked_msa=0.5, distogram=1.0),
        optimizer=OptimizerConfig(lr=2e-3, warmup_steps=50, decay_after=options.steps * 3 // 4, decay_factor=0.2, average_decay=0.98),
        run=RunConfig(steps=options.steps, batch=2, checkpoint_every=50),
    )  # fmt: skip
    print(f"{len(training)} alignments of {len({one.name for one in training})} families and {len(sampled)} sampled ones to train on")
    result = train(config, sampled + real, resume=options.resume, on_step=tell)
    model = averaged(result.model, options.out)
    print(f"{sum(x.numel() for x in model.parameters()):,} parameters; precision of contacts, top L / top L/5, six or more apart")
    print(compare(model, training, held_out, config.data))


def averaged(model: TrunkWithHeads, out: Path) -> TrunkWithHeads:
    from safetensors.torch import load_file

    model.load_state_dict(load_file(out / "weights.safetensors"))
    return model


def tell(step: Step) -> None:
    if step.step % 25 == 0:
        m = step.metrics
        said = f"step {step.step} of {step.steps}: loss {m['loss']:.3f}, perplexity {m['perplexity']:.2f}, {m['seconds']:.2f} s"
        print(said, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
