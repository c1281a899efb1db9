"""`snugbert export`: writes a model for ONNX Runtime, OpenVINO, CTranslate2 or stock BERT, and runs it there."""
