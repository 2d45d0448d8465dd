"""What ``evoattn run`` does, in Python: an alignment in, representations and attention maps out.

python examples/run_on_msa.py data/globins4.a3m
"""

import sys

import torch
from safetensors.torch import save_file

from evoattn import EvoformerTrunk, capture_attention, make_features, preset, read_msa
from evoattn.primitives import redraw_

path = sys.argv[1] if len(sys.argv) > 1 else "data/globins4.a3m"
msa = read_msa(path)
print(msa)
print(msa.account)

model = EvoformerTrunk(preset("tiny")).eval()
redraw_(model, seed=0)  # random parameters; load_weights(model, "params_model_3.npz") puts AlphaFold 2's into an "af2" trunk
features = make_features(msa, max_seqs=128, max_extra=1024)
with torch.no_grad(), capture_attention(model, layers=["evoformer.blocks.1.msa_row"], heads=[0]) as maps:
    out = model(features)

for name, representation in vars(out).items():
    print(f"{name:<6} {list(representation.shape)}")
for name, weights in maps.items():
    i, j = divmod(int(weights[0].argmax()), msa.n_res)
    print(f"{name}, query row, head 0: residue {i + 1} attends most to residue {j + 1} ({weights[0, i, j]:.1%})")
save_file(vars(out), "representations.safetensors")
