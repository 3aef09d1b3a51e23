"""Tells others how a job's attempts went: as spans and metrics of OpenTelemetry, and as events of OpenLineage.

Nothing of it is on unless the variables of those tools name where to send. A job never waits for them: what is told
goes to a thread of its own, whose queue and whose last seconds are bounded, and a failure is said once.
"""
