"""A model as one ONNX file, for runtimes other than torch."""

from sareloc.export.backbone import Ranges
from sareloc.export.onnx_file import INPUT, OUTPUT, export_onnx, features_onnx

__all__ = ["INPUT", "OUTPUT", "Ranges", "export_onnx", "features_onnx"]
