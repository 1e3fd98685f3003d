"""Which of several controllers leads: an election by a lease in the store that they share (survival: terms, stores, fences)."""
