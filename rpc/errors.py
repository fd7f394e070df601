"""What stops a service, or refuses a message, in words its operator can act on."""


class ServiceError(Exception):
    """A service cannot start or go on, and its message is all that its operator needs: no trace is shown."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class FieldError(ValueError):
    """A message holds a value no correct peer sends."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
