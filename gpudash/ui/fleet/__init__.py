"""A fleet of machines, as reported by a Prometheus server: overview, history of a GPU, comparison of two."""
