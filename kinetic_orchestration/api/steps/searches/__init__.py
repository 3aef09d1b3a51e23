"""Drives a search: its study, its trials, and the jobs that these are."""
