"""The authors' files that the tests of published networks follow, and how far descriptors are from theirs.

    python -m tests.models.families

runs these tests and prints the table of docs/models/published.md: the largest difference of a coordinate of a unit
descriptor between a file opened here and a re-implementation in double precision or by plain loops, over all tests of
a family. Names of tensors, shapes and formulas are facts from the files below (repository@commit, file: classes and
functions); the code of the tests is our own.
"""

from __future__ import annotations

import sys
from pathlib import Path

from torch import Tensor

DINOV2 = (
    "facebookresearch/dinov2@112792f `dinov2/models/vision_transformer.py`: DinoVisionTransformer, "
    "`dinov2/layers/attention.py`, `block.py`, `swiglu_ffn.py`, `dinov2/hub/backbones.py`@a44758b: _make_dinov2_model"
)
FOLLOWS = {
    "MegaLoc": "gmberton/MegaLoc@267cedb `megaloc_model.py`: MegaLocModel, Aggregator, SALAD, get_matching_probs",
    "SALAD": (
        "serizba/salad@3e39fa6 `models/aggregators/salad.py`: SALAD, log_optimal_transport, "
        "`models/backbones/dinov2.py`: DINOv2"
    ),
    "BoQ": (
        "amaralibey/Bag-of-Queries@fb61976 `src/boq.py`: BoQ, BoQBlock, `src/backbones.py`@1a4965e: ResNet, DinoV2, "
        "`hubconf.py`: get_trained_boq"
    ),
    "MixVPR": (
        "amaralibey/MixVPR@2f320d6 `models/backbones/resnet.py`: ResNet; gmberton/VPR-methods-evaluation@7d6baef "
        "`vpr_models/mixvpr.py`: MixVPR, get_mixvpr, which opens the published files strictly (in the authors' first "
        "`models/aggregators/mixvpr.py`, of the same commit, row_proj has no bias)"
    ),
    "CosPlace, EigenPlaces": (
        "gmberton/CosPlace@1f17a25 `cosplace_model/cosplace_network.py`: GeoLocalizationNet, get_backbone, "
        "`cosplace_model/layers.py`: GeM, L2Norm; gmberton/EigenPlaces@5325b16 "
        "`eigenplaces_model/eigenplaces_network.py`: GeoLocalizationNet_"
    ),
    "DINOv2": (
        f"{DINOV2}; huggingface/transformers@09cb93d "
        "`models/dinov2_with_registers/convert_dinov2_with_registers_to_hf.py`: create_rename_keys, read_in_q_k_v"
    ),
    "AnyLoc": "AnyLoc/AnyLoc@07acece `demo/utilities.py`: DinoV2ExtractFeatures, VLAD.generate",
    "NetVLAD (MatConvNet)": (
        "Relja/netvlad@b0acbe7 `layerVLAD.m`, `layerVLADv2.m`, `addLayers.m`, `addPCA.m`@7925133, "
        "`computeRepresentation.m`; cvg/Hierarchical-Localization@6f40f87 `hloc/extractors/netvlad.py`: NetVLAD"
    ),
    "OpenIBL": (
        "yxgeee/OpenIBL@f3ef4fb `ibl/models/netvlad.py`: NetVLAD, EmbedNetPCA, `ibl/models/vgg.py`: VGG, "
        "`ibl/pca.py`: PCA, `ibl/utils/data/__init__.py`: get_transformer_test"
    ),
    "pytorch-NetVlad": "Nanne/pytorch-NetVlad@881a5f5 `netvlad.py`: NetVLAD, `main.py`@7756777",
    "Patch-NetVLAD": (
        "QVPR/Patch-NetVLAD@1e4bdb3 `patchnetvlad/models/models_generic.py`: get_model, get_pca_encoding, "
        "`patchnetvlad/models/netvlad.py`: NetVLAD, `add_pca.py`@413eeec"
    ),
    "deep-visual-geo-localization-benchmark": (
        "gmberton/deep-visual-geo-localization-benchmark@027c97c `model/network.py`: GeoLocalizationNet, get_backbone, "
        "`parser.py`; `model/aggregation.py`: NetVLAD, from the copy in AnyLoc/AnyLoc@da93524 `dvgl_benchmark/`"
    ),
}
LARGEST: dict[str, float] = {}
"""The largest difference so far, by family."""


def record_difference(family: str, found: Tensor, expected: Tensor) -> None:
    """Keep the largest difference of the family; raises KeyError if no authors' file is named for it."""
    assert FOLLOWS[family]
    difference = float((found.double() - expected.double()).abs().max())
    LARGEST[family] = max(LARGEST.get(family, 0.0), difference)


def print_table() -> int:
    """Run the tests and print the table; the exit status of pytest."""
    import pytest
    from tests.models import families  # this module as the tests import it, not as "__main__"

    here = Path(__file__).parent
    files = [str(here / name) for name in ("test_place_networks.py", "test_published.py")]
    status = int(pytest.main(["-q", "-p", "no:cacheprovider", "-m", "", "-k", "comput or gives or sharp", *files]))
    print("\n| network | largest difference | follows |\n|---|---|---|")
    for family, follows in FOLLOWS.items():
        print(f"| {family} | {families.LARGEST.get(family, float('nan')):.0e} | {follows} |")
    return status


if __name__ == "__main__":
    sys.exit(print_table())
