"""Hands a model over to serving on Kubernetes: manifests, their application and their undoing as one set."""
