"""A fleet of machines, as a Prometheus server knows it: overview, the past of one GPU, comparison of two."""
