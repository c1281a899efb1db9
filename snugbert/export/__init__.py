"""`snugbert export`: writes a model for ONNX Runtime, OpenVINO or stock BERT, and runs it there."""
