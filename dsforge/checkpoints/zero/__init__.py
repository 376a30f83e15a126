"""Files of ZeRO and model-parallel ranks, put together into whole parameters."""
