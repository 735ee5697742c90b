"""`make soak`: mixed jobs on a local cluster while parts of it are killed at random, and the bars that must hold."""
