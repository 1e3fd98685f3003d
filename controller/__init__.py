"""The controller: the truth about the cluster, kept by a pure machine, carried out by a thin daemon."""
