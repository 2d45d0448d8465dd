"""Masked-MSA training on one alignment: the perplexity of rows unlike every row that was trained on, against that of their columns.

    python -m benchmarks.masked_msa ALIGNMENT [--steps N] [--seed N]

Perplexity is over hidden cells that hold one of the 20 amino acids, among these 20. Held-out rows have less than 62 % identity to each row
of training. The baseline is the frequency of each letter in its column, of the rows of training, weighted, with a pseudocount of 1.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import report
from evoattn import make_features, read_msa
from evoattn.io import MSA, FeatureDraw, drop_repeats
from evoattn.io.feature_draw import draw_masking
from evoattn.io.identity import PackedRows
from evoattn.io.residues import GAP
from evoattn.train.config import DataConfig, LossConfig, ModelConfig, OptimizerConfig, RunConfig, TrainConfig
from evoattn.train.families import Family
from evoattn.train.losses import Sum
from evoattn.train.metrics import baseline_errors, column_frequencies, letter_errors, perplexity
from evoattn.train.model import TrunkWithHeads
from evoattn.train.split import hold_out_rows
from evoattn.train.trainer import Step, train

IDENTITY, ALLOWED, SECONDS = 0.62, 0.90, 300.0
AT_ONCE = 4  # held-out rows that are told together

DATA = DataConfig(crop=80, max_seqs=32, max_extra=0)
MODEL = ModelConfig(
    preset="tiny",
    extra_stack=False,
    evoformer={
        "n_blocks": 3, "c_m": 64, "n_head_msa_row": 4, "n_head_msa_column": 4, "msa_transition_n": 2, "dropout_msa": 0.0,
        # pairs of residues only bias the attention here
        "c_z": 8, "n_head_tri_start": 1, "n_head_tri_end": 1, "c_hidden_opm": 4, "c_hidden_mul": 8, "pair_transition_n": 1,
        "dropout_pair": 0.0,
    },
)  # fmt: skip


def questions(msa: MSA, training: np.ndarray, held: np.ndarray) -> Iterator[dict[str, Tensor]]:
    """Features in which 15 % of the cells are hidden, as in training, and those of held-out rows alone are to be told.

    The other rows, and those behind the profiles, are all of training.
    """
    config = DATA.features()
    for start in range(0, len(held), AT_ONCE):
        own = held[start : start + AT_ONCE]
        together = msa.take(np.concatenate([training, own]))
        rng = np.random.default_rng([1, start])
        known = np.arange(len(training))
        shown = np.concatenate([[0], 1 + rng.permutation(len(known) - 1)[: DATA.max_seqs - 1 - len(own)]])
        centres = np.concatenate([shown, len(training) + np.arange(len(own))])
        hidden, tokens = draw_masking(together, known, centres, config.masking, rng)
        features = make_features(together, config, draw=FeatureDraw(centres, np.zeros(0, np.int64), hidden, tokens))
        features["bert_mask"][: len(shown)] = False
        yield features


@torch.no_grad()
def measured(model: TrunkWithHeads, frequencies: np.ndarray, asked: list[dict[str, Tensor]]) -> tuple[float, float, int]:
    """Perplexity of the model and of the baseline, and over how many cells."""
    model.eval()
    ours, columns = [], []
    for features in asked:
        ours.append(letter_errors(model(features).msa, features["true_msa"], features["bert_mask"]))
        columns.append(baseline_errors(frequencies, features["true_msa"], features["bert_mask"]))
    return perplexity(total(ours)), perplexity(total(columns)), int(total(ours).count)


def total(sums: list[Sum]) -> Sum:
    return Sum(torch.stack([one.total for one in sums]).sum(), torch.stack([one.count for one in sums]).sum())


def largest_identity(msa: MSA, training: np.ndarray, held: np.ndarray) -> float:
    """Between a held-out row and a row of training."""
    rows = PackedRows.of(msa.residues, GAP, "shared")
    return max(float(rows.identity(row)[training].max()) for row in held.tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("alignment", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(2)
    msa = drop_repeats(read_msa(options.alignment))
    training, held = hold_out_rows(msa, identity=IDENTITY, seed=options.seed)
    known = msa.take(training)
    asked = list(questions(msa, training, held))
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            out=Path(folder),
            data=DATA,
            model=MODEL,
            loss=LossConfig(distogram=0.0),
            optimizer=OptimizerConfig(lr=3e-3, warmup_steps=20, decay_after=options.steps * 3 // 4, decay_factor=0.2, average_decay=0.98),
            run=RunConfig(steps=options.steps, batch=2, checkpoint_every=options.steps),
        )
        start, cpu = time.perf_counter(), time.process_time()
        result = train(config, [Family("family", known)], on_step=tell)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        assert result.weights is not None
        averaged = TrunkWithHeads(MODEL.trunk(), result.model.bins)
        averaged.load_state_dict(torch_weights(result.weights))
    ours, columns, cells = measured(averaged, column_frequencies(known), asked)
    report(
        "masked_msa",
        [
            {
                "alignment": options.alignment.name, "rows trained on": len(training), "held out": len(held), "cells told": cells,
                "largest identity": largest_identity(msa, training, held), "perplexity": ours, "of columns": columns,
                "ratio": ours / columns, "allowed": ALLOWED, "steps": options.steps, "seconds": seconds, "seconds allowed": SECONDS,
                "CPU seconds": cpu_seconds,
                "parameters": sum(x.numel() for x in averaged.parameters()),
            }
        ],
    )  # fmt: skip
    if ours > ALLOWED * columns or seconds > SECONDS:
        raise SystemExit("missed what is allowed")


def torch_weights(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def tell(step: Step) -> None:
    if step.step % 20 == 0:
        m = step.metrics
        print(f"step {step.step}: perplexity {m['perplexity']:.2f}, {m['seconds']:.2f} s", flush=True)


if __name__ == "__main__":
    main()
