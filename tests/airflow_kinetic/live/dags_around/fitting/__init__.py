"""A package of a DAGs folder."""
