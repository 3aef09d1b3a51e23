"""The steps around a training that users call: batch inference, promotion, serving, search."""
