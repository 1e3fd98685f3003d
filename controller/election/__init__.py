"""Leader election among controllers by a lease in the store that they share (survival: terms, stores, fences)."""
