"""Small changes of the pure machines, made by machine: do the tests and the simulated cluster notice each of them?"""
