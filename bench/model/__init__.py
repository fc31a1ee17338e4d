"""Transformers in plain torch: the layer that decoding measures, and the model that is trained and
profiled.
"""
