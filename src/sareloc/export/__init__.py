"""A model as one ONNX file, for runtimes other than torch."""

from sareloc.export.onnx_file import INPUT, OUTPUT, export_onnx

__all__ = ["INPUT", "OUTPUT", "export_onnx"]
