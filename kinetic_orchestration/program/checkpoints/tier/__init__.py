"""Copies of checkpoints that are nearer than their bucket, which alone says what is in a checkpoint.

folder        on this machine's disk, or in its memory
buddies       from one host of an attempt to another
near          both, for the parts of a training
mirror        the other way round: files of trainers that keep their own checkpoints, sent to the bucket
"""
