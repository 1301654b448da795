"""One process for each device of a host: what they run together, and a row for each of them."""
