"""A package of the bundle, used by DAG files in other folders of it."""
