"""What the papers published, what their authors' peers' simulators give, and what this one gives, side by side."""
