"""Reuse past on-policy batches safely: TensorDict-native components for TorchRL."""
