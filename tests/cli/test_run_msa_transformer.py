"""``evoattn run --preset msa_transformer``, and the presets that are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from evoattn import MSATransformer, MSATransformerConfig
from evoattn.runs import memory, msa_transformer
from evoattn.runs.presets import MSA_TRANSFORMERS
from tests.cli.commands import FAMILY, evoattn
from tests.helpers import GOLDEN

GIVEN = np.load(GOLDEN / "msa_transformer_model.npz")
LETTERS = "LAGVSERTIDPKQNFYMHWCXBUZO.-"
"""Of the tokens from 4 on."""


@pytest.fixture
def files(work: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Path]:
    """The alignment, the encoder and the contact head of the reference file, as users have them."""
    config = MSATransformerConfig(
        n_blocks=2, c_m=12, n_head=3, c_hidden_transition=GIVEN[FC1].shape[0], max_positions=20, c_row_position=12
    )
    monkeypatch.setitem(MSA_TRANSFORMERS, "msa_transformer", config)
    state = {name.removeprefix("param/"): torch.from_numpy(GIVEN[name]) for name in GIVEN.files if name.startswith("param/")}
    head = {name: state.pop(name) for name in list(state) if name.startswith("contact_head.")}
    rows = ["".join(LETTERS[token - 4] for token in row[1:]) for row in GIVEN["in/tokens"]]
    alignment, encoder, regression = work / "given.fasta", work / "msa.pt", work / "regression.pt"
    alignment.write_text("".join(f">{number}\n{row}\n" for number, row in enumerate(rows)))
    torch.save({"model": state}, encoder)
    torch.save({"model": head}, regression)
    return alignment, encoder, regression


FC1 = next(name for name in GIVEN.files if name.endswith("layers.0.feed_forward_layer.layer.fc1.weight"))


def written(alignment: Path, *options: object) -> dict[str, torch.Tensor]:
    result = evoattn("run", alignment, "--preset", "msa_transformer", "--out", "out", "--force", *options)
    assert result.exit_code == 0, result.output
    return load_file("out/representations.safetensors")


@pytest.mark.parametrize("order", [1, -1])
def test_against_the_published_code(files: tuple[Path, Path, Path], order: int) -> None:
    alignment, *parts = files
    found = written(alignment, *(word for part in parts[::order] for word in ("--weights", part)))
    torch.testing.assert_close(found["msa"], torch.from_numpy(GIVEN["out/representation"])[:, 1:], atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(found["contacts"], torch.from_numpy(GIVEN["out/contacts"]), atol=2e-5, rtol=1e-5)
    record = json.loads(Path("out/run.json").read_text())
    assert record["model"]["weights"]["heads"] == ["contact_head"] and record["rows"]["kept"] == 3
    assert [(call["stack"], call["kind"]) for call in record["execution"]["attention"]] == [
        ("MSA Transformer", "tied rows"), ("MSA Transformer", "MSA column"),
    ]  # fmt: skip


def test_its_record_has_the_parts_of_a_trunks(files: tuple[Path, Path, Path]) -> None:
    written(files[0])
    own = json.loads(Path("out/run.json").read_text())
    assert evoattn("run", FAMILY, "--preset", "tiny", "--out", "trunk").exit_code == 0
    trunk = json.loads(Path("trunk/run.json").read_text())
    assert [part for part in trunk if part not in ("features", "memory")] == list(own)
    for part in ("execution", "input", "model", "output"):
        assert own[part].keys() == trunk[part].keys()


def test_what_cannot_fit_is_refused_before_any_work(files: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters, and four times the representation: 3 rows of 16 residues and the first token, 12 channels."""
    parameters = sum(parameter.numel() for parameter in MSATransformer(MSA_TRANSFORMERS["msa_transformer"]).parameters())
    least = 4 * (parameters + 4 * 3 * 17 * 12)
    monkeypatch.setattr(memory, "free_memory", lambda device: least)
    written(files[0])
    monkeypatch.setattr(memory, "free_memory", lambda device: least - 1)
    monkeypatch.setattr(msa_transformer, "build", lambda settings: pytest.fail("work was begun"))
    result = evoattn("run", files[0], "--preset", "msa_transformer", "--out", "more")
    assert result.exit_code == 3 and "fewer rows (--max-seqs)" in result.stderr and not Path("more").exists()


def test_contacts_need_the_head_and_its_parameters(files: tuple[Path, Path, Path]) -> None:
    alignment, encoder, regression = files
    assert "contacts" not in written(alignment, "--weights", encoder)
    assert "second --weights" in Path("out/run.json").read_text()
    random = evoattn("run", alignment, "--preset", "msa_transformer", "--out", "out", "--force", "--max-seqs", 2)
    assert "mean nothing biological, and no contacts are written" in " ".join(random.stdout.split())
    assert load_file("out/representations.safetensors")["msa"].shape == (2, 16, 12)
    for given, text in (([regression], "has the contact head alone"), ([encoder, encoder], "both files of parameters have the encoder")):
        options = [word for path in given for word in ("--weights", path)]
        result = evoattn("run", alignment, "--preset", "msa_transformer", "--out", "out", "--force", *options)
        assert result.exit_code == 1 and text in " ".join(result.stderr.split()), result.output


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--preset", "msa_transformer", "--recycles", 1, "--blocks", 2], "no blocks, recycles"),
        (["--preset", "msa_transformer", "--save", "pair"], "gives msa and contacts"),
        (["--preset", "tiny", "--weights", "a", "--weights", "b"], "'tiny' takes one"),
        (["--weights", "a", "--weights", "b", "--weights", "c"], "given 3 times"),
        (["--preset", "boltz-2"], "encoders of atoms"),
        (["--preset", "af3"], "load_weights("),
        (["--preset", "esmfold"], "a language model"),
        (["--preset", "alphafold9"], "there is no preset 'alphafold9' to run; there are af2, af2_model_1"),
        (["--preset", "alphafold9"], "tiny, msa_transformer."),
    ],
)
def test_refused(work: Path, options: list[object], text: str) -> None:
    result = evoattn("run", FAMILY, *options)
    assert result.exit_code == 2 and text in " ".join(result.output.split()), result.output
    assert not list(work.iterdir())
