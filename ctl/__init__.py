"""The command `elasticctl`: one module per noun, a client of the controller, and renderers.

Heavy modules are imported only when needed, so that commands start fast.
"""
