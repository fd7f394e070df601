"""What a model that cannot be served says about itself."""


class ModelError(Exception):
    """A model file or folder that is missing, damaged, misshapen or unsupported; one line naming file and reason."""
