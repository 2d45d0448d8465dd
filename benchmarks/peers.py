"""Blocks of published packages, and ours with their parameters: what :mod:`benchmarks.contenders` builds in each process.

The packages are no dependency. In an environment of its own (their pins are not wanted):

    pip install torch==2.13.0 && pip install --no-deps openfold3==0.5.0 boltz==2.2.1 protenix==2.0.0 alphafold-colabfold==2.3.27
    pip install scipy gemmi packaging ml_collections biotite optree rdkit jax==0.10.2 dm-haiku==0.0.17 absl-py dm-tree immutabledict chex
    pip install -e .
"""

import os
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.contenders import Run
from evoattn import EvoformerBlock, EvoformerConfig, PairformerBlock, PairformerConfig, load_weights, profile, set_execution
from evoattn.primitives import redraw_

C_M, C_Z, C_S = 256, 128, 384
DTYPE = {"fp32": None, "bf16": torch.bfloat16}


def msa_inputs(n_seq: int, n_res: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, n_seq, n_res, C_M), torch.randn(1, n_res, n_res, C_Z)]


def single_inputs(n_res: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, n_res, C_S), torch.randn(1, n_res, n_res, C_Z)]


def openfold3_evoformer() -> nn.Module:
    from openfold3.core.model.latent.evoformer import EvoformerBlock as Theirs

    return redraw_(Theirs(
        c_m=C_M, c_z=C_Z, c_hidden_msa_att=32, c_hidden_opm=32, c_hidden_mul=128, c_hidden_pair_att=32, no_heads_msa=8, no_heads_pair=4,
        transition_type="relu", transition_n=4, msa_dropout=0.15, pair_dropout=0.25, no_column_attention=False, opm_first=False,
        fuse_projection_weights=False, inf=1e9, eps=1e-3,
    ), seed=0)  # fmt: skip


def openfold3_pairformer() -> nn.Module:
    from openfold3.core.model.latent.pairformer import PairFormerBlock as Theirs

    return redraw_(Theirs(
        c_s=C_S, c_z=C_Z, c_hidden_pair_bias=24, no_heads_pair_bias=16, c_hidden_mul=128, c_hidden_pair_att=32, no_heads_pair=4,
        transition_type="swiglu", transition_n=4, pair_dropout=0.25, fuse_projection_weights=False, inf=1e9,
    ), seed=0)  # fmt: skip


def boltz_pairformer() -> nn.Module:
    from boltz.model.layers.pairformer import PairformerLayer

    return redraw_(PairformerLayer(token_s=C_S, token_z=C_Z, num_heads=16, v2=True), seed=0)


def protenix_pairformer() -> nn.Module:
    os.environ["LAYERNORM_TYPE"] = "torch"  # its default compiles a CUDA kernel on import
    from protenix.model.modules.pairformer import PairformerBlock as Theirs

    return redraw_(Theirs(), seed=0)


EVOFORMERS = {"openfold3": openfold3_evoformer}
PAIRFORMERS = {"openfold3": openfold3_pairformer, "boltz": boltz_pairformer, "protenix": protenix_pairformer}
PROFILE = {"openfold3": "openfold3_evoformer", "alphafold2": "alphafold2"}


def our_evoformer(peer: str) -> nn.Module:
    """Our block with the parameters of the peer's."""
    block = EvoformerBlock(EvoformerConfig(profile=profile(PROFILE[peer]), dropout_msa=0.0, dropout_pair=0.0))
    if peer == "alphafold2":
        load_weights(block, alphafold2_arrays(), family="alphafold2", version="monomer", scope="evoformer_iteration")
    else:
        load_weights(block, EVOFORMERS[peer]().state_dict(), version="evoformer")
    return block


def our_pairformer(peer: str) -> nn.Module:
    name, version = {"openfold3": ("openfold3_transposed", "bias_ik")}.get(peer, (peer, None))
    block = PairformerBlock(PairformerConfig(profile=profile(name), dropout_pair=0.0))
    load_weights(block, PAIRFORMERS[peer]().state_dict(), family=peer, version=version)
    return block


def ours(make: Callable[[str], nn.Module], peer: str, inputs: list[Tensor], train: bool, execution: dict[str, Any]) -> Run:
    """Our block in a form to be timed. Without gradients it updates copies of its inputs in place, as a stack does."""
    block = set_execution(make(peer), **execution)
    if train:
        return gradients_of(block.train(), inputs, [])
    stack = _Alone(block.eval())
    return lambda: _arrays(stack.run_blocks_(*(x.clone() for x in inputs), None, None))


def theirs(make: Callable[[], nn.Module], inputs: list[Tensor], masks: list[Tensor], train: bool, dtype: str) -> Run:
    """A peer's block in torch; in bf16 under autocast. It has no dropout when it trains, so that the numbers can be compared."""
    block = make().eval()
    if train:
        return gradients_of(block, inputs, masks)

    def run() -> list[np.ndarray]:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            return _arrays(block(*inputs, *masks))

    return run


def gradients_of(block: nn.Module, inputs: list[Tensor], masks: list[Tensor]) -> Run:
    """One training step without the optimiser: mean squares, gradients of inputs and parameters; returned are those of the inputs."""
    for x in inputs:
        x.requires_grad_()

    def run() -> list[np.ndarray]:
        block.zero_grad(set_to_none=True)
        for x in inputs:
            x.grad = None
        out = block(*inputs, *masks)
        torch.stack([y.float().square().mean() for y in out]).sum().backward()
        return [x.grad.numpy() * x.numel() for x in inputs if x.grad is not None]

    return run


def _arrays(out: Any) -> list[np.ndarray]:
    return [x.detach().float().numpy() for x in out]


class _Alone:
    """A single block as a stack runs it in place."""

    def __init__(self, block: nn.Module) -> None:
        from evoattn.stacks import EvoformerStack, PairformerStack

        evoformer = isinstance(block, EvoformerBlock)
        kind: Any = EvoformerStack if evoformer else PairformerStack
        self.stack = kind(block.config).eval()
        self.stack.blocks = nn.ModuleList([block])
        self.stack.execution = block.execution

    def run_blocks_(self, *inputs: Any) -> Any:
        return self.stack.run_blocks_(*inputs)


# --- the builders that contenders start with


def ours_on_msa(peer: str, n_seq: int, n_res: int, train: bool, execution: dict[str, Any]) -> Run:
    return ours(our_evoformer, peer, msa_inputs(n_seq, n_res), train, execution)


def theirs_on_msa(peer: str, n_seq: int, n_res: int, train: bool, dtype: str) -> Run:
    masks = [torch.ones(1, n_seq, n_res), torch.ones(1, n_res, n_res)]
    return theirs(EVOFORMERS[peer], msa_inputs(n_seq, n_res), masks, train, dtype)


def ours_on_single(peer: str, n_res: int, train: bool, execution: dict[str, Any]) -> Run:
    return ours(our_pairformer, peer, single_inputs(n_res), train, execution)


def theirs_on_single(peer: str, n_res: int, train: bool, dtype: str) -> Run:
    pair_mask = torch.ones(1, n_res, n_res)
    masks = [pair_mask] if peer == "protenix" else [torch.ones(1, n_res), pair_mask]
    return theirs(PAIRFORMERS[peer], single_inputs(n_res), masks, train, dtype)


def no_kernel(name: str) -> Any:
    """Every caller takes None for an answer and goes on without a kernel."""
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *args, **more: None


def alphafold2_block() -> Any:
    """The haiku transform of AlphaFold 2's block in JAX. Fused kernels, which the wheel lacks, are off."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads=2"
    kernels, fused = types.ModuleType("colabfold_kernels"), types.ModuleType("colabfold_kernels.fused_ops")
    fused.__getattr__ = no_kernel  # type: ignore[method-assign]
    kernels.fused_ops = fused  # type: ignore[attr-defined]
    sys.modules |= {"colabfold_kernels": kernels, "colabfold_kernels.fused_ops": fused}
    import haiku as hk
    from alphafold.model import config, modules

    model = config.model_config("model_3").model
    settings = model.embeddings_and_evoformer.evoformer
    with model.unlocked():
        model.global_config.deterministic = True
        model.global_config.subbatch_size = settings.outer_product_mean.chunk_size = 4096  # whole
        for edges in ("outgoing", "incoming"):
            settings[f"triangle_multiplication_{edges}"].fuse_projection_weights = False  # the names of the monomer's files

    def block(m: Any, z: Any, msa_mask: Any, pair_mask: Any) -> Any:
        step = modules.EvoformerIteration(settings, model.global_config, is_extra_msa=False)
        out = step({"msa": m, "pair": z}, {"msa": msa_mask, "pair": pair_mask}, is_training=False)
        return out["msa"], out["pair"]

    return hk.transform(block)


def alphafold2_parameters(transformed: Any) -> dict[str, dict[str, np.ndarray]]:
    """Random parameters under the names and in the shapes that the block asks for."""
    import jax

    m, z, msa_mask, pair_mask = (np.ones(shape, np.float32) for shape in ((4, 8, C_M), (8, 8, C_Z), (4, 8), (8, 8)))
    shapes = jax.eval_shape(lambda key: transformed.init(key, m, z, msa_mask, pair_mask), jax.random.PRNGKey(0))
    draw = np.random.default_rng(0)

    def array(name: str, shape: tuple[int, ...]) -> np.ndarray:
        centre, width = (1.0, 0.1) if name == "scale" else (0.0, 0.1 if len(shape) == 1 else C_Z**-0.5)
        return (centre + width * draw.standard_normal(shape)).astype(np.float32)

    return {module: {name: array(name, x.shape) for name, x in parts.items()} for module, parts in shapes.items()}


def alphafold2_arrays() -> dict[str, np.ndarray]:
    """The same parameters as its published files name them."""
    transformed = alphafold2_block()
    parameters = alphafold2_parameters(transformed)
    return {f"{module}//{name}": x for module, parts in parameters.items() for name, x in parts.items()}


def alphafold2_on_msa(n_seq: int, n_res: int, train: bool) -> Run:
    transformed = alphafold2_block()
    import jax
    import jax.numpy as jnp

    parameters = jax.tree_util.tree_map(jnp.asarray, alphafold2_parameters(transformed))
    m, z = (jnp.asarray(x[0].numpy()) for x in msa_inputs(n_seq, n_res))
    masks = jnp.ones((n_seq, n_res)), jnp.ones((n_res, n_res))

    def forward(parameters: Any, m: Any, z: Any) -> Any:
        return transformed.apply(parameters, jax.random.PRNGKey(0), m, z, *masks)

    def loss(parameters: Any, m: Any, z: Any) -> Any:
        return sum((x**2).mean() for x in forward(parameters, m, z))

    step = jax.jit(jax.grad(loss, argnums=(0, 1, 2)) if train else forward)

    def run() -> list[np.ndarray]:
        out = jax.block_until_ready(step(parameters, m, z))
        return [np.asarray(x)[None] * x.size for x in out[1:]] if train else [np.asarray(x)[None] for x in out]

    return run


def flops(kind: str, n_seq: int, n_res: int) -> float:
    """Floating-point operations of the matrix products of one block, forward, at the widths above: two for each multiplication."""
    s, n, m, z, c_s = n_seq, n_res, C_M, C_Z, C_S
    multiplications = n * n * z * (4 * z + 2 * z) + n**3 * z  # one triangle multiplication
    attention = n * n * z * (5 * z + 4) + 2 * n**3 * z  # one triangle attention
    total = 2 * (multiplications + attention)
    if kind == "evoformer":
        total += s * n * m * 5 * m + 2 * s * n * n * m + n * n * z * 8  # rows
        total += s * n * m * 5 * m + 2 * n * s * s * m  # columns
        total += s * n * m * 2 * 32 + n * n * 32 * 32 * (s + z)  # outer product mean
        total += 2 * s * n * m * 4 * m + 2 * n * n * z * 4 * z  # transitions
    else:
        total += n * c_s * 5 * c_s + 2 * n * n * c_s + n * n * z * 16  # single attention
        total += 3 * n * c_s * 4 * c_s + 3 * n * n * z * 4 * z  # transitions
    return 2.0 * total
