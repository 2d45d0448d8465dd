"""Loading AlphaFold 2's parameters: the account of every array, and what is said when they do not fit.

That each array lands in its place is proven by the golden tests of blocks, stacks and model.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from evoattn import EvoformerBlock, EvoformerConfig, EvoformerStack, EvoformerTrunk, ExtraMSAStack, WeightsError, load_weights
from evoattn.weights.alphafold2 import SCOPES, TABLES
from tests.helpers import GOLDEN
from tests.stacks.cases import golden_arrays, golden_block, golden_config
from tests.weights.cases import EVOFORMER, SCOPE, TRUNK, empty_trunk, of_trunk, published

Arrays = dict[str, Any]
BLOCKS = f"{SCOPE}/evoformer_iteration"
QUERY = f"{BLOCKS}/msa_row_attention_with_pair_bias/attention//query_w"  # [layer, c, h, d]
TARGET = f"{SCOPE}/preprocess_1d//bias"
SCALE = f"{BLOCKS}/msa_transition/input_layer_norm//scale"  # [layer, c]


def untouched(model: nn.Module) -> bool:
    """Whether every parameter is still the NaN it was."""
    return all(parameter.isnan().all() for parameter in model.parameters())


def test_account_of_the_published_file() -> None:
    """Each of the 336 arrays is in one list of the account, and every parameter was loaded."""
    trunk = empty_trunk()
    account = load_weights(trunk, GOLDEN / "params_model_1_mini.npz", strict=False)
    names = set(published())
    assert len(names) == 336
    assert set(account.used) == set(of_trunk())
    assert set(account.unexpected) == {name for name in names if "/template_" in name and name.startswith(f"{SCOPE}/")}
    assert set(account.outside) == {name for name in names if not name.startswith(f"{SCOPE}/")}
    assert len(account.used) + len(account.unexpected) + len(account.outside) == 336
    assert account.missing == account.wrong_shape == ()
    assert all(parameter.isfinite().all() for parameter in trunk.parameters())
    text = str(account)
    assert text.startswith("206 arrays used, 59 outside this model (distogram head: 2, masked MSA head: 2, pLDDT head: 8, resolved atoms")
    assert "wrong shape: 0\n  unexpected: 71\n    alphafold/" in text
    assert text.endswith("\n    ... 63 more")


def test_strict_takes_exactly_what_fits() -> None:
    loose, strict = empty_trunk(), empty_trunk()
    load_weights(loose, published(), strict=False)
    account = load_weights(strict, of_trunk())
    assert (len(account.used), account.unexpected, account.outside) == (206, (), ())
    assert all(torch.equal(a, b) for a, b in zip(loose.parameters(), strict.parameters(), strict=True))
    with pytest.raises(WeightsError, match="unexpected: 71"):
        load_weights(strict, published())


def test_trunk_without_extra_stack() -> None:
    trunk = EvoformerTrunk(replace(TRUNK, extra=None))
    account = load_weights(trunk, of_trunk(), strict=False)
    assert set(account.unexpected) == {name for name in of_trunk() if "extra_msa" in name}


def without(name: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {key: array for key, array in arrays.items() if key != name}


def changed(name: str, change: Callable[[np.ndarray], object]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {**arrays, name: change(arrays[name])}


MISTAKES = {
    "missing": (
        without(QUERY),
        rf"missing: 2\n    evoformer\.blocks\.0\.msa_row\.attn\.q\.weight \(from layer 0 of {re.escape(QUERY)}\)\n",
    ),
    "missing, no layers": (without(TARGET), rf"missing: 1\n    target_msa\.bias \(from {TARGET}\)"),
    "wrong shape": (
        changed(QUERY, lambda x: x[:, :-1]),
        r"wrong shape: 2\n    evoformer\.blocks\.0\.msa_row\.attn\.q\.weight is \(32, 32\); .*query_w \(2, 31, 4, 8\) does not become that "
        r"by 'i h d -> \(h d\) i' with h = 4 of layer 0",
    ),
    "matrix the wrong way": (
        changed(f"{SCOPE}/single_activations//weights", np.transpose),
        r"evoformer\.single\.weight is \(28, 32\); .*single_activations//weights \(28, 32\) does not become that by 'i o -> o i'$",
    ),
    "no layer axis": (changed(QUERY, lambda x: x[0]), r"wrong shape: 2\n.*query_w \(32, 4, 8\) does not"),
    "flat": (changed(QUERY, np.ravel), r"wrong shape: 2\n.*query_w \(2048,\) does not"),
    "number": (changed(QUERY, lambda x: np.array(1.0)), r"missing: 2\n.*layer 0 of .*query_w"),
    "other heads": (changed(QUERY, lambda x: x.reshape(2, 32, 8, 4)), r"wrong shape: 2\n.*with h = 4"),
    "more axes": (changed(QUERY, lambda x: x[..., None]), r"wrong shape: 2\n"),
    "too few layers": (
        changed(SCALE, lambda x: x[:1]),
        rf"missing: 1\n    evoformer\.blocks\.1\.msa_transition\.norm\.weight \(from layer 1 of {SCALE}\)",
    ),
    "too many layers": (changed(SCALE, lambda x: np.concatenate([x, x])), rf"unexpected: 1\n    {SCALE} \(only 2 of its 4 layers\)"),
    "left over": (lambda arrays: {**arrays, f"{SCOPE}/surprise//w": np.ones(3)}, rf"unexpected: 1\n    {SCOPE}/surprise//w"),
    "elsewhere": (
        lambda arrays: {name.removeprefix("alphafold/"): array for name, array in arrays.items()},
        rf"missing: 360\n(.*\n)+Nothing for it is below '{SCOPE}' in the source \(206 arrays, alphafold_iteration/.*scope=\.$",
    ),
    "nothing": (lambda arrays: {}, r"the mapping is of no family known \(alphafold2.*\): it holds 0 arrays\."),
    "text": (changed(QUERY, lambda x: np.array("x")), rf"{re.escape(QUERY)} is no array of numbers"),
    "objects": (changed(QUERY, lambda x: np.array([None])), rf"{re.escape(QUERY)} is no array of numbers"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_change_nothing(mistake: str) -> None:
    change, words = MISTAKES[mistake]
    trunk = empty_trunk()
    with pytest.raises(WeightsError, match=f"(?m){words}") as caught:
        load_weights(trunk, change(of_trunk()))
    assert untouched(trunk)
    assert mistake in ("nothing", "text", "objects") or "do not fit this EvoformerTrunk, nothing was loaded" in str(caught.value)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_strict_false_lets_through(mistake: str) -> None:
    """Arrays that are missing or left over; never a wrong shape, and never nothing at all."""
    change, words = MISTAKES[mistake]
    trunk = empty_trunk()
    if mistake in ("missing", "missing, no layers", "number", "too few layers", "too many layers", "left over"):
        account = load_weights(trunk, change(of_trunk()), strict=False)
        assert re.search(words, str(account))
        left = {name for name, parameter in trunk.named_parameters() if parameter.isnan().any()}
        assert left == {line.split()[0] for line in account.missing}
    else:
        with pytest.raises(WeightsError, match=f"(?m){words}"):
            load_weights(trunk, change(of_trunk()), strict=False)
        assert untouched(trunk)


def save_text(path: Path) -> None:
    path.write_text("not an archive")


def save_nothing(path: Path) -> None:
    path.touch()


def save_single_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.ones(3))


def save_objects(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=np.array([Spy(path.with_suffix(".executed"))], dtype=object))


def save_truncated(path: Path) -> None:
    path.write_bytes((GOLDEN / "params_model_1_mini.npz").read_bytes()[:5000])


def save_corrupted(path: Path) -> None:
    data = bytearray((GOLDEN / "params_model_1_mini.npz").read_bytes())
    data[100:400] = bytes(300)
    path.write_bytes(data)


class Spy:
    """Creates a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize(
    "save", [save_text, save_nothing, save_single_array, save_objects, save_truncated, save_corrupted, Path.mkdir]
)
def test_files_that_hold_no_parameters(save: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "params.npz"
    save(path)
    trunk = empty_trunk()
    with pytest.raises(WeightsError, match=r"params\.npz cannot be read|is no array of numbers .* in .*params\.npz"):
        load_weights(trunk, path, strict=False)
    assert untouched(trunk)
    assert not path.with_suffix(".executed").exists()


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no file .*absent\.npz; give the path of a parameter file \(npz, .*params_model_\*\.npz"):
        load_weights(empty_trunk(), tmp_path / "absent.npz")


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def test_kinds_of_source() -> None:
    """A path as text, numpy arrays (read-only, reversed in memory), torch tensors: the same parameters."""
    arrays = of_trunk()
    sources = [
        arrays,
        {name: read_only(array) for name, array in arrays.items()},
        {name: np.asfortranarray(array) for name, array in arrays.items()},
        {name: array[..., ::-1].copy()[..., ::-1] for name, array in arrays.items()},
        {name: torch.from_numpy(array) for name, array in arrays.items()},
    ]
    expected = empty_trunk()
    load_weights(expected, str(GOLDEN / "params_model_1_mini.npz"), strict=False)
    for source in sources:
        trunk = empty_trunk()
        load_weights(trunk, source)
        assert all(torch.equal(a, b) for a, b in zip(trunk.parameters(), expected.parameters(), strict=True))


def test_source_and_model_share_no_memory() -> None:
    arrays = {name: torch.from_numpy(array) for name, array in of_trunk().items()}
    before = {name: array.clone() for name, array in arrays.items()}
    trunk = empty_trunk()
    load_weights(trunk, arrays)
    for parameter in trunk.parameters():
        parameter.data.zero_()
    assert all(torch.equal(arrays[name], before[name]) for name in arrays)


def test_parameters_keep_their_dtype() -> None:
    trunk = empty_trunk().to(torch.bfloat16)
    load_weights(trunk, of_trunk())
    assert torch.equal(trunk.target_msa.bias, torch.from_numpy(of_trunk()[f"{SCOPE}/preprocess_1d//bias"]).bfloat16())


def test_stacks_by_themselves() -> None:
    """Found below the trunk's scope, like the trunk; other parts of the file are outside."""
    trunk = empty_trunk()
    load_weights(trunk, of_trunk())
    assert TRUNK.extra is not None
    for stack, same, others in (
        (EvoformerStack(EVOFORMER), trunk.evoformer, "extra_msa_stack"),
        (ExtraMSAStack(TRUNK.extra), trunk.extra_stack, "evoformer_iteration"),
    ):
        account = load_weights(stack, published())
        assert same is not None
        assert all(torch.equal(a, b) for a, b in zip(stack.parameters(), same.parameters(), strict=True))
        assert any(f"/{others}/" in name for name in account.outside) and account.unexpected == ()


@pytest.mark.parametrize("name", ["af2_evoformer_iteration", "af2_extra_msa_iteration_fused_opmfirst"])
def test_sub_blocks_by_their_scope(name: str) -> None:
    """One sub-block at a time gives what loading the whole block gives."""
    block, file = golden_block(name)
    scope = "extra_msa_stack" if "extra" in name else "evoformer_iteration"
    other = EvoformerBlock(golden_config(file))
    scopes = {**SCOPES, "msa_column": "msa_column_global_attention" if "extra" in name else "msa_column_attention"}
    for child, inner in scopes.items():
        account = load_weights(getattr(other, child), golden_arrays(file), scope=f"{scope}/{inner}")
        assert all(array.startswith(f"{scope}/{inner}") for array in account.used) and not account.unexpected
    assert all(torch.equal(a, b) for a, b in zip(block.parameters(), other.parameters(), strict=True))


def test_fused_and_plain_names_agree() -> None:
    """Multimer's fused arrays are the monomer's left and right ones side by side."""
    block, file = golden_block("af2_evoformer_iteration_fused_opmfirst")
    plain: Arrays = {}
    renamed = {"left_norm_input": "layer_norm_input", "center_norm": "center_layer_norm"}
    for name, array in golden_arrays(file).items():
        scope, _, inner = name.partition("triangle_multiplication_")
        edges, _, layer = inner.partition("/")
        module, _, kind = layer.partition("//")
        if module in ("projection", "gate"):
            for side, half in zip(("left", "right"), np.split(array, 2, axis=-1), strict=True):
                plain[f"{scope}triangle_multiplication_{edges}/{side}_{module}//{kind}"] = half
        else:
            plain[f"{scope}triangle_multiplication_{edges}/{renamed.get(module, module)}//{kind}" if inner else name] = array
    other = EvoformerBlock(golden_config(file))
    load_weights(other, plain, version="multimer_v1_v2", scope="evoformer_iteration")
    assert all(torch.equal(a, b) for a, b in zip(block.parameters(), other.parameters(), strict=True))


def test_model_that_alphafold_has_not() -> None:
    with pytest.raises(WeightsError, match=r"no parameters for a Linear; there are tables for MSARowAttention, .*EvoformerTrunk"):
        load_weights(nn.Linear(2, 2), of_trunk())


def test_pair_features_that_alphafold_has_not() -> None:
    """Parameters without a counterpart are missing, arrays without a place are left over: by name, not as a KeyError."""
    stack = EvoformerStack(replace(EVOFORMER, msa_pair_as=("values",), triangle_pair_as=("bias", "keys")))
    with pytest.raises(WeightsError, match=r"blocks\.0\.msa_row\.attn\.pair_v\.weight \(AlphaFold 2 has nothing of the kind\)") as caught:
        load_weights(stack, of_trunk())
    assert "missing: 6" in str(caught.value)
    assert f"unexpected: 1\n    {BLOCKS}/msa_row_attention_with_pair_bias//feat_2d_weights" in str(caught.value)


def test_subclasses_are_what_they_derive_from() -> None:
    class MyStack(EvoformerStack):
        pass

    assert load_weights(MyStack(EVOFORMER), of_trunk()).missing == ()


def test_every_block_of_alphafold_has_a_table() -> None:
    block = EvoformerBlock(EvoformerConfig(c_m=16, c_z=16))
    updates = {type(module) for name, module in block.named_children() if not name.startswith("drop")}
    assert updates < set(TABLES)


def test_damage_in_the_middle_of_a_file_changes_nothing(tmp_path: Path) -> None:
    """Also where it is in the array that is read last: all bytes are compared with their checksums before any is used."""
    arrays = of_trunk()
    np.savez(tmp_path / "params.npz", **arrays)
    data = bytearray((tmp_path / "params.npz").read_bytes())
    name = f"{SCOPE}/extra_msa_stack/msa_transition/transition2//weights"
    data[data.find(arrays[name].tobytes()) + arrays[name].nbytes - 1] ^= 1
    (tmp_path / "params.npz").write_bytes(data)
    trunk = empty_trunk()
    with pytest.raises(WeightsError, match=rf"params\.npz is damaged at {re.escape(name)}: .*CRC"):
        load_weights(trunk, tmp_path / "params.npz")
    assert untouched(trunk)
