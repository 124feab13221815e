"""Export of models for runtimes other than torch: ONNX files, and OpenVINO for faster descriptors on a CPU."""

from sareloc.export.onnx import INPUT, OUTPUT, export_onnx

__all__ = ["INPUT", "OUTPUT", "export_onnx"]
