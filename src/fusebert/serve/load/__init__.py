"""The load generator: connections, protocols, closed and open loops, what became of the requests."""
