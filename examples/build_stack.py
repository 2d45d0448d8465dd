"""An Evoformer stack of your own: build it, run it on a padded batch, and take gradients with half the memory."""

import torch

from evoattn import EvoformerConfig, EvoformerStack, set_execution

config = EvoformerConfig(n_blocks=2, c_m=64, c_z=32, c_s=96, msa_pair_as=("bias", "values"))  # pair features as bias and as extra values
stack = EvoformerStack(config)
set_execution(stack, checkpoint=True)  # recompute each block in the backward pass

m = torch.randn(2, 16, 24, config.c_m)  # MSA representation   [batch, N_seq, N_res, c_m]
z = torch.randn(2, 24, 24, config.c_z)  # pair representation  [batch, N_res, N_res, c_z]
msa_mask = torch.ones(2, 16, 24, dtype=torch.bool)  # True where there is a residue
msa_mask[1, :, 20:] = False  # the second alignment is shorter by four columns
residues = msa_mask[:, 0]
m, z, s = stack(m, z, msa_mask, residues.unsqueeze(-1) & residues.unsqueeze(-2))
(m.square().mean() + z.square().mean() + s.square().mean()).backward()

print(f"msa {list(m.shape)}, pair {list(z.shape)}, single {list(s.shape)}")
parameters = list(stack.parameters())
print(f"{sum(p.numel() for p in parameters):,} parameters, all with a gradient: {all(p.grad is not None for p in parameters)}")
