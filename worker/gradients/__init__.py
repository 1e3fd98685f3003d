"""From the gradients of micro-batches to new parameters: the same bits for every number of workers."""
