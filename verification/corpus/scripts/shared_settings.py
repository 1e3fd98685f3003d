"""Not a script: the module whose variable `settings_module` changes."""

step = 0


def sparsity():
    return 0.05 if step > 160 else 0.0
