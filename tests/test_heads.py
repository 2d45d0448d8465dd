"""Output heads that need no coordinates: masked-MSA logits, distogram, contact map."""

import pytest
import torch

from evoattn import ConfigError, ShapeError, redraw_
from evoattn.heads import DistogramHead, MaskedMSAHead


def test_masked_msa_logits_are_a_projection() -> None:
    head, m = redraw_(MaskedMSAHead(6, classes=5), seed=1), torch.randn(3, 4, 6)
    expected = torch.einsum("snc,oc->sno", m, head.logits.weight) + head.logits.bias
    torch.testing.assert_close(head(m), expected)


def test_distogram_is_symmetric() -> None:
    """AlphaFold 2's code: the projection of z_ij and of z_ji, added up."""
    head, z = redraw_(DistogramHead(6, bins=8), seed=1), torch.randn(2, 5, 5, 6)
    out = head(z)
    torch.testing.assert_close(out, out.transpose(1, 2))
    torch.testing.assert_close(out[0, 1, 3], (z[0, 1, 3] + z[0, 3, 1]) @ head.half_logits.weight.T + 2 * head.half_logits.bias)


def test_contacts_are_the_mass_below_a_distance() -> None:
    """64 bins, of which the 20th ends at 2.3125 + 18 * 0.3125 = 7.9375 A, and the 21st beyond 8."""
    head = DistogramHead(6)
    logits = torch.randn(4, 4, 64, dtype=torch.float64)
    mass = logits.exp() / logits.exp().sum(-1, keepdim=True)
    torch.testing.assert_close(head.contacts(logits), mass[..., :19].sum(-1))
    torch.testing.assert_close(head.contacts(logits, 12.0), mass[..., :32].sum(-1))
    certain = torch.full((64,), -1000.0)
    certain[3] = 1000.0
    assert head.contacts(certain.expand(2, 2, 64)).eq(1.0).all()


@pytest.mark.usefixtures("no_type_checks")
def test_bad_arguments() -> None:
    with pytest.raises(ShapeError, match=r"MaskedMSAHead: m has shape \(3, 4, 5\)"):
        MaskedMSAHead(6)(torch.zeros(3, 4, 5))
    with pytest.raises(ShapeError, match=r"DistogramHead: z has shape \(3, 4, 6\)"):
        DistogramHead(6)(torch.zeros(3, 4, 6))
    with pytest.raises(ConfigError, match=r"distance is 2.0; the bins tell distances from 2.3125 to 21.6875 Angstrom"):
        DistogramHead(6).contacts(torch.zeros(2, 2, 64), 2.0)
    with pytest.raises(ConfigError, match=r"distance is 30"):
        DistogramHead(6).contacts(torch.zeros(2, 2, 64), 30)
    with pytest.raises(ConfigError, match=r"bins is 2, first_break 5 and last_break 4"):
        DistogramHead(6, 2, first_break=5, last_break=4)
