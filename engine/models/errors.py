"""What a model that cannot be served says about itself."""


class ModelError(Exception):
    """A missing, damaged, misshapen or unsupported model; one line names the file and the reason."""
