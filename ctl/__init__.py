"""`elasticctl`: one file per noun, a client, renderers. Starts fast: nothing heavy is imported before it is needed."""
