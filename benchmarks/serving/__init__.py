"""GPUs are lent to serving over a day, and elastic jobs train on the others (EasyScale 5.3)."""
