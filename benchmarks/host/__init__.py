"""What memory costs on the host, in loops of C++."""
