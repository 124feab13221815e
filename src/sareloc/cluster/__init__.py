"""Building a map on the machines of a Ray cluster (extra `ray`)."""
