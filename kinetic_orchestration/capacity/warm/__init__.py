"""Slices that stay warm after their jobs, for the next ones of the same shape (`keep=`)."""
