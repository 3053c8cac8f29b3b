"""The vendor's tools: torch_npu's parser, msprof-analyze, and the files that programs which show traces need."""
