"""What clients ask for: requests, their answers, and lists in pages."""
