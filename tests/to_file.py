"""A notifier for tests."""

from typing import Any

from airflow.sdk import BaseNotifier


class ToFile(BaseNotifier):
    """Appends a text to a file."""

    template_fields = ("text",)

    def __init__(self, path: str, text: str):
        super().__init__()
        self.path, self.text = path, text

    def notify(self, context: Any) -> None:
        with open(self.path, "a") as file:
            file.write(f"{self.text}\n")
