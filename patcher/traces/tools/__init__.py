"""The vendor's tools: torch_npu's parser, and the files that programs which show traces need."""
