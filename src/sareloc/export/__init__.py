"""Export of models as files for other programs: ONNX."""

from sareloc.export.onnx import INPUT, OUTPUT, export_onnx

__all__ = ["INPUT", "OUTPUT", "export_onnx"]
