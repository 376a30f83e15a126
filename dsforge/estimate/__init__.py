"""Prediction: parameters, memory, FLOPs, traffic and step time of one strategy."""
