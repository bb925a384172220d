"""Takes the screenshots of a report in images/: `python -m polis.pictures backstay-demo/reports/millbrook`.

It uses the system's Chromium through Playwright, which `scripts/bootstrap.py test` installs.
"""

import shutil
import sys
from pathlib import Path
from typing import Literal, NamedTuple

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).with_name("images")
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


class Picture(NamedTuple):
    name: str
    page: str
    scheme: Literal["light", "dark"]
    width: int
    height: int
    part: str = ""  # the element at the top of the picture


PICTURES = (
    Picture("report-light", "report", "light", 1200, 1640),
    Picture("report-dark", "report", "dark", 1200, 1150, "#consensus"),
    Picture("report-topics", "report", "light", 1200, 1000, "#topics"),
    Picture("report-phone", "report", "light", 390, 1100, "#groups"),
    Picture("report-phone-dark", "report", "dark", 390, 1100, "#topics"),
    Picture("multilayer", "multilayer", "light", 1200, 1500),
)


def main(folder: Path) -> None:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--force-color-profile=srgb"])
        for each in PICTURES:
            page = browser.new_page(viewport={"width": each.width, "height": each.height}, color_scheme=each.scheme)
            page.goto((folder.absolute() / f"{each.page}.html").as_uri())
            if each.part:
                page.evaluate(
                    "part => scrollTo({top: document.querySelector(part).offsetTop - 24, behavior: 'instant'})",
                    each.part,
                )
            page.screenshot(path=IMAGES / f"{each.name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
