"""Architecture: frozen, published sizes, and errors that say what is allowed."""

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from evoattn import (
    PRESETS,
    PROFILES,
    ConfigError,
    EvoformerConfig,
    EvoformerStack,
    EvoformerTrunk,
    Profile,
    TrunkConfig,
    preset,
    profile,
)


def test_frozen_and_comparable() -> None:
    config = EvoformerConfig()
    with pytest.raises(FrozenInstanceError):
        config.c_m = 3  # type: ignore[misc]
    assert config == EvoformerConfig() != replace(config, c_m=128)
    assert len({config, EvoformerConfig(), TrunkConfig(), preset("af2")}) == 2


def test_sizes_of_alphafold() -> None:
    """AlphaFold 2 supplement, sections 1.6 and 1.7: the Evoformer, the extra-MSA stack, the input features."""
    trunk = preset("af2")
    main, extra = trunk.evoformer, trunk.extra
    assert extra is not None
    assert (main.n_blocks, main.c_m, main.c_z, main.c_s) == (48, 256, 128, 384)
    assert (extra.n_blocks, extra.c_m, extra.c_z, extra.c_s) == (4, 64, 128, None)
    for config in (main, extra):
        heads = (config.n_head_msa_row, config.n_head_msa_column, config.n_head_tri_start, config.n_head_tri_end)
        assert heads == (8, 8, 4, 4)
        assert (config.c_hidden_mul, config.c_hidden_opm, config.msa_transition_n, config.pair_transition_n) == (128, 32, 4, 4)
        assert (config.dropout_msa, config.dropout_pair) == (0.15, 0.25)
        assert config.msa_pair_as == config.triangle_pair_as == ("bias",)
    assert (main.msa_column, extra.msa_column) == ("attention", "global")
    assert (trunk.c_target_feat, trunk.c_msa_feat, trunk.c_extra_feat, trunk.max_relative) == (22, 49, 25, 32)
    assert (trunk.recycle_bins, trunk.recycle_min, trunk.recycle_max) == (15, 3.25, 20.75)


def test_presets() -> None:
    af2 = preset("af2")
    assert af2.extra is not None
    opm_first = {name: replace(getattr(af2, name), profile=PROFILES["alphafold2_multimer"]) for name in ("evoformer", "extra")}
    assert preset("af2-opm-first") == replace(af2, **opm_first)
    assert preset("af2-4") == replace(af2.with_blocks(4), extra=replace(af2.extra, n_blocks=1))
    assert len(EvoformerTrunk(preset("tiny")).evoformer.blocks) == 2
    with pytest.raises(ConfigError, match=rf"no preset 'af3'; there are {', '.join(PRESETS)}\. For another, build a TrunkConfig"):
        preset("af3")


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"c_m": 0}, "c_m is 0; it must be an integer of at least 1"),
        ({"c_z": 128.0}, r"c_z is 128\.0; it must be an integer"),
        ({"c_s": -1}, "c_s is -1; it must be an integer of at least 1"),
        ({"c_hidden_opm": True}, "c_hidden_opm is True; it must be an integer"),
        ({"c_hidden_mul": None}, "c_hidden_mul is None; it must be an integer"),
        ({"n_blocks": -1}, "n_blocks is -1; it must be an integer of at least 0"),
        ({"n_head_msa_row": 7}, r"n_head_msa_row = 7 does not divide c_m = 256; .*c_m / n_head_msa_row\. Choose a divisor of 256"),
        ({"n_head_tri_end": 0}, "n_head_tri_end is 0; it must be an integer of at least 1"),
        ({"n_head_tri_start": 3}, "n_head_tri_start = 3 does not divide c_z = 128"),
        ({"dropout_msa": 1.0}, r"dropout_msa is 1\.0; it must be at least 0 and below 1"),
        ({"dropout_pair": -0.1}, r"dropout_pair is -0\.1; it must be at least 0 and below 1"),
        ({"msa_column": "row"}, "msa_column is 'row'; allowed are 'attention' and 'global'"),
        ({"msa_pair_as": "bias"}, r"msa_pair_as is 'bias'; it is a tuple of distinct words .* e\.g\. \('bias', 'values'\)"),
        ({"msa_pair_as": ["bias"]}, r"msa_pair_as is \['bias'\]; it is a tuple"),
        ({"triangle_pair_as": ("bias", "bias")}, r"triangle_pair_as is \('bias', 'bias'\); it is a tuple of distinct words"),
        ({"triangle_pair_as": ("queries",)}, r"triangle_pair_as is \('queries',\); .*'bias', 'keys' and 'values'"),
        ({"c_head_tri": 0}, "c_head_tri is 0; it must be an integer of at least 1"),
        ({"profile": "alphafold2"}, r"profile is 'alphafold2'; give a Profile, e\.g\. profile\('alphafold2'\)"),
        ({"pair_mode": "added"}, "pair_mode is 'added'; allowed are 'relative' and 'appended'"),
        (
            {"msa_pair_as": ("bias", "keys"), "pair_mode": "appended"},
            r"msa_pair_as is \('bias', 'keys'\) with pair_mode 'appended'; an appended key needs its value: name both",
        ),
    ],
)
def test_bad_evoformer(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"^EvoformerConfig: {words}"):
        EvoformerConfig(**changes)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"evoformer": EvoformerConfig.extra_msa()}, r"evoformer\.c_s is None; .*give its width, e\.g\. 384"),
        ({"extra": replace(EvoformerConfig.extra_msa(), c_z=64)}, r"extra\.c_z is 64 and evoformer\.c_z 128; .*give them one width"),
        ({"c_msa_feat": 0}, "c_msa_feat is 0; it must be an integer of at least 1"),
        ({"max_relative": -1}, "max_relative is -1; it must be an integer of at least 0"),
        ({"recycle_bins": 1.5}, r"recycle_bins is 1\.5; it must be an integer"),
        ({"recycle_min": 30.0}, r"recycle_min is 30\.0 and recycle_max 20\.75; they are distances in Angstrom, the first below the second"),
    ],
)
def test_bad_trunk(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"^TrunkConfig: {words}"):
        TrunkConfig(**changes)


def test_stack_without_single() -> None:
    with pytest.raises(ConfigError, match=r"EvoformerStack: config\.c_s is None; give the channels .* or use ExtraMSAStack"):
        EvoformerStack(EvoformerConfig(n_blocks=0, c_s=None))


def test_profiles() -> None:
    """Each published system is another profile, except in name and where AlphaFold 2 was rebuilt."""
    assert all(name == each.name for name, each in PROFILES.items()) and profile("boltz") is PROFILES["boltz"]
    assert PROFILES["alphafold2"] == Profile() == EvoformerConfig().profile
    assert profile("openfold3").differences(profile("openfold3_transposed")) == ["ending_bias"]
    assert profile("alphafold2").differences(replace(profile("alphafold2"), name="mine")) == []
    assert all(a.differences(b) for a in PROFILES.values() for b in PROFILES.values() if a is not b)
    with pytest.raises(ConfigError, match=r"no profile 'af3'; there are alphafold2, .*rosettafold3"):
        profile("af3")


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ending_bias": "ij"}, "Profile: ending_bias is 'ij'; allowed are 'ki', 'ik', 'jk'"),
        ({"opm_first": "yes"}, "Profile: opm_first is 'yes'; allowed are True, False"),
        ({"opm_first": 1}, "Profile: opm_first is 1; allowed are True, False"),
        ({"dropout_row": "batch"}, "Profile: dropout_row is 'batch'; allowed are 'rows', .*'columns and channels'"),
    ],
)
def test_bad_profile(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{words}"):
        Profile(**changes)
