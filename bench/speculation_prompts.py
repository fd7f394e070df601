"""What is asked when speculation is measured: answers that copy from the prompt, and answers that do not."""

from random import Random

PEOPLE = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Frances", "Alan", "Radia", "Leslie", "Katherine")
THINGS = ("the bridge", "a lighthouse", "the archive", "a printing press", "the observatory", "a canal")
PLACES = ("in Lisbon", "near the harbour", "on the northern ridge", "beside the old mill", "in the capital")
DEEDS = ("repaired", "described", "measured", "financed", "painted", "rebuilt", "surveyed", "catalogued")
FIELDS = ("width", "height", "colour", "label", "weight", "owner", "serial", "price", "origin", "volume")


def quotes(draws: Random) -> str:
    """A report to be summarised with its own sentences."""
    sentences = [
        f"In {draws.randrange(1800, 1999)} {draws.choice(PEOPLE)} {draws.choice(DEEDS)} "
        f"{draws.choice(THINGS)} {draws.choice(PLACES)} with {draws.randrange(3, 90)} helpers."
        for _ in range(10)
    ]
    return (
        "Summarise this report by quoting its sentences word for word, each in quotation marks.\n\n"
        + " ".join(sentences)
    )


def code_edit(draws: Random) -> str:
    """A small class to be given back with one change."""
    fields = draws.sample(FIELDS, 6)
    lines = ["class Item:", f"    def __init__(self, {', '.join(fields)}):"]
    lines += [f"        self.{field} = {field}" for field in fields]
    for field in fields:
        lines += ["", f"    def get_{field}(self):", f"        return self.{field}"]
    code = "\n".join(lines)
    return f"Rename the class Item to Article and give back the whole file.\n\n```python\n{code}\n```"


def story(draws: Random) -> str:
    """Nothing to copy: speculation should keep out of the way."""
    return (
        f"Tell me a story about {draws.choice(PEOPLE)}, who {draws.choice(DEEDS)} {draws.choice(THINGS)} "
        f"{draws.choice(PLACES)} in {draws.randrange(1800, 1999)}."
    )


WORKLOADS = {"quotes": quotes, "code edit": code_edit, "story": story}
