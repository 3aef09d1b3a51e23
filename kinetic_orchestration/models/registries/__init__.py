"""Registries of models: MLflow's, and Vertex AI's. Each module knows one of them, and no store."""
