"""Writes, commits, restores and removes checkpoints.

manager  ·  background         the checkpoints of one training; large ones are written while it continues
agreement                      the step at which all hosts end
store  ·  parts  ·  trees      where checkpoints are stored, one host's file, a state as named arrays
commits                        names, the record that makes a checkpoint, differences (pure)
leaves                         leaves of a state that are treated in another way
tier                           copies that are nearer than a bucket
"""
