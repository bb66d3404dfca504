"""The live page of `advsweep serve`: a server on the loopback interface, for one user."""
