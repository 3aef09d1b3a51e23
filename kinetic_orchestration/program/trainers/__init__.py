"""Connects the trainers of others with a job: their checkpoints, their metrics, the end of their training.

keras_callback                 KineticCallback: a `fit` that resumes
keras_others                   state of the other callbacks of a fit
command                        a command whose numbers are read on its way
parsers  ·  chosen             what reads them, and how hosts find it
maxtext  ·  maxtext_export     MaxText's words on a host; its checkpoint for others
"""
