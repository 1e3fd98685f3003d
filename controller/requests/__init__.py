"""Requests of clients, their answers, and lists in pages."""
