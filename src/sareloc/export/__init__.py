"""A model as one ONNX file, for runtimes other than torch."""

from sareloc.export.onnx import INPUT, OUTPUT, Ranges, export_onnx, features_onnx

__all__ = ["INPUT", "OUTPUT", "Ranges", "export_onnx", "features_onnx"]
