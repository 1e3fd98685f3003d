"""Not a script: the module whose global variable `module_global_counter` changes."""

calls = 0


def weight():
    global calls
    calls += 1
    return min(1.0, calls / 80)
