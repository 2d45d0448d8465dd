"""The table of docs/algorithms.md: its classes are where it says, none is left out, and its numbers of parameters are right."""

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

import evoattn as ea
from evoattn.blocks import RelativePosition, SequenceToPair, TemplatePointwiseAttention, TiedRowAttention
from evoattn.config import TemplateConfig
from evoattn.heads import DistogramHead, MaskedMSAHead
from evoattn.model import RecyclingEmbedder, TemplateRows
from evoattn.primitives import TiedAttention
from evoattn.stacks import (
    AveragedTemplates,
    ContactHead,
    ESMFoldBlock,
    MSATransformerBlock,
    MSATransformerEncoder,
    PointwiseTemplates,
    TemplatePairBlock,
    TemplatePairStack,
)

ROOT = Path(__file__).resolve().parents[1]

PUBLISHED = {
    "MultiHeadAttention": lambda: ea.MultiHeadAttention(256, 8),
    "GatedAttention": lambda: ea.GatedAttention(256, 8),
    "GlobalGatedAttention": lambda: ea.GlobalGatedAttention(64, 8),
    "SharedDropout": lambda: ea.SharedDropout(0.15, over="rows"),
    "Transition": lambda: ea.Transition(128),
    "EvoformerTrunk": lambda: ea.EvoformerTrunk(ea.preset("af2")),
    "RelativePosition": lambda: RelativePosition(128, 32),
    "TemplateRows": lambda: TemplateRows(57, 256),
    "PointwiseTemplates": lambda: PointwiseTemplates(TemplateConfig(), 128),
    "AveragedTemplates": lambda: AveragedTemplates(TemplateConfig.multimer(), 128),
    "TemplatePairBlock": lambda: TemplatePairBlock(TemplateConfig()),
    "TemplatePairStack": lambda: TemplatePairStack(TemplateConfig()),
    "TemplatePointwiseAttention": lambda: TemplatePointwiseAttention(128, 64, 4, d_head=16),
    "DistogramHead": lambda: DistogramHead(128),
    "MaskedMSAHead": lambda: MaskedMSAHead(256),
    "RecyclingEmbedder": lambda: RecyclingEmbedder(ea.preset("af2")),
    "EvoformerBlock": lambda: ea.EvoformerBlock(ea.EvoformerConfig()),
    "EvoformerStack": lambda: ea.EvoformerStack(ea.EvoformerConfig()),
    "MSARowAttention": lambda: ea.MSARowAttention(256, 128, 8),
    "MSAColumnAttention": lambda: ea.MSAColumnAttention(256, 8),
    "MSATransition": lambda: ea.MSATransition(256),
    "OuterProductMean": lambda: ea.OuterProductMean(256, 128, 32),
    "TriangleMultiplication": lambda: ea.TriangleMultiplication(128, 128, direction="incoming"),
    "TriangleAttention": lambda: ea.TriangleAttention(128, 4, node="ending"),
    "PairTransition": lambda: ea.PairTransition(128),
    "ExtraMSAStack": lambda: ea.ExtraMSAStack(ea.EvoformerConfig.extra_msa()),
    "MSAGlobalColumnAttention": lambda: ea.MSAGlobalColumnAttention(64, 8),
    "GatedAveraging": lambda: ea.GatedAveraging(64, 8, d_head=32),
    "MSAModuleBlock": lambda: ea.MSAModuleBlock(ea.MSAModuleConfig()),
    "MSAModule": lambda: ea.MSAModule(ea.MSAModuleConfig()),
    "PairWeightedAveraging": lambda: ea.PairWeightedAveraging(64, 128, 8, d_head=32),
    "PairformerBlock": lambda: ea.PairformerBlock(ea.PairformerConfig()),
    "PairformerStack": lambda: ea.PairformerStack(ea.PairformerConfig()),
    "AttentionPairBias": lambda: ea.AttentionPairBias(384, 128, 16),
    "TiedAttention": lambda: TiedAttention(768, 12),
    "TiedRowAttention": lambda: TiedRowAttention(768, 12),
    "MSATransformerBlock": lambda: MSATransformerBlock(ea.MSATransformerConfig()),
    "MSATransformerEncoder": lambda: MSATransformerEncoder(ea.MSATransformerConfig()),
    "ContactHead": lambda: ContactHead(144),
    "MSATransformer": lambda: ea.MSATransformer(ea.MSATransformerConfig()),
    "SequenceToPair": lambda: SequenceToPair(1024, 128),
    "ESMFoldBlock": lambda: ESMFoldBlock(ea.ESMFoldConfig()),
    "ESMFoldTrunk": lambda: ea.ESMFoldTrunk(ea.ESMFoldConfig()),
}


def rows() -> list[tuple[str, str, str]]:
    """(class, file, parameters) of each row, without the backticks and commas."""
    lines = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8").splitlines()
    table = [[cell.strip().strip("`") for cell in line.split("|")] for line in lines if line.startswith("|")]
    return [(cells[2], cells[3], cells[4].replace(",", "")) for cells in table[2:]]


def classes(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)}


@pytest.mark.parametrize(("name", "file"), sorted({row[:2] for row in rows()}))
def test_class_is_in_its_file(name: str, file: str) -> None:
    assert name in classes(ROOT / file)


def test_every_public_module_is_in_the_table() -> None:
    public = {name for name in ea.__all__ if isinstance(getattr(ea, name), type) and issubclass(getattr(ea, name), nn.Module)}
    assert public <= {name for name, _, _ in rows()}


@pytest.mark.parametrize(("name", "parameters"), [(name, parameters) for name, _, parameters in rows() if parameters])
def test_number_of_parameters(name: str, parameters: str) -> None:
    with torch.device("meta"):
        module = PUBLISHED[name]()
    assert sum(parameter.numel() for parameter in module.parameters()) == int(parameters)
