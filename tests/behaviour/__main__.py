"""Prints how many behaviours there are; `--write` writes the page of the documentation too."""

from __future__ import annotations

import sys

from tests.behaviour.document import DOCUMENT, count, page

if "--write" in sys.argv[1:]:
    DOCUMENT.write_text(page())
print(count())
