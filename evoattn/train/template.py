"""The configuration that ``evoattn train --init`` writes: every setting at its default, with a comment."""

TEMPLATE = """\
# A training run of evoattn. Paths are relative to this file. Every setting has the default that stands here.
#   evoattn train THIS.toml --dry-run    what it will take
#   evoattn train THIS.toml              train; --resume goes on after the newest checkpoint
#   torchrun --nproc-per-node 2 -m evoattn train THIS.toml    the same numbers, from two processes

out = "run"    # folder that is written: checkpoints/, metrics.jsonl, loss.png, tensorboard/, weights.safetensors

[data]
families = "families"    # one folder per family, with its alignments and a PDB or mmCIF file, or alignments side by side
held_out = []            # names of families to validate on, which are never trained on
max_rows = 5000          # of an alignment: the query and the next in file order
crop = 96                # residues of a sample, a stretch drawn at random
max_seqs = 32            # rows of the MSA representation
max_extra = 64           # rows of the extra-MSA stack
mask = 0.15              # of the cells are hidden; of those
mask_uniform = 0.1       #   get an amino acid drawn among 20,
mask_profile = 0.1       #   one drawn from the column,
mask_same = 0.1          #   or stay; the others get the mask token
seed = 0                 # of everything that is drawn

[model]
preset = "tiny"          # architecture; "af2" is AlphaFold 2's, with 93 million parameters
evoformer = {}           # what to change in its Evoformer, e.g. { n_blocks = 4, c_m = 64 }
extra = {}               # likewise in its extra-MSA stack
extra_stack = true       # whether there is one
bins = "alphafold2"      # of distances: 63 breaks from 2.3125 to 21.6875 Angstrom; "boltz": from 2 to 22
weights = ""             # file of parameters to start from

[loss]
masked_msa = 2.0         # weights of AlphaFold 2's losses
distogram = 0.3

[optimizer]              # AlphaFold 2: lr 1e-3, warmup_steps 1000, decay_after 50000, with 128 samples a step
lr = 1e-3
warmup_steps = 100
decay_after = 50000      # steps, from which on lr is multiplied by
decay_factor = 0.95
beta1 = 0.9
beta2 = 0.999
eps = 1e-6
weight_decay = 0.0
clip = 0.1               # largest norm of a gradient
average_decay = 0.999    # of the moving average of the parameters

[run]
steps = 1000
batch = 4                # samples of a step, on all processes together
micro_batch = 1          # samples that go through the model at once
precision = "fp32"       # or "bf16": products in bfloat16; parameters and losses stay in float32
checkpoint_every = 100   # steps
keep = 2                 # checkpoints
validate_every = 0       # steps; 0 for never
validate_samples = 16
engine = "auto"          # "deepspeed", "plain" torch, or DeepSpeed where it is installed and there are several processes
zero = 1                 # DeepSpeed's ZeRO stage, 0 to 3
recompute = "nothing"    # by the backward pass: "updates" takes a quarter of the memory in about the same time, "both" the least
watch = false            # look at every module's output, and stop at the first that is not finite
workers = 0              # processes that prepare samples
device = "auto"          # "cpu", "cuda"
"""
