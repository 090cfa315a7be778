"""Chromium, and what tests do with it."""

from __future__ import annotations

from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    StaleElementReferenceException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "window-size=1400,1400",
)


def chromium(profile: Path, *flags: str) -> webdriver.Chrome:
    """Start Chromium with a profile of its own; downloads go there too."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.add_experimental_option("prefs", {"download.default_directory": str(profile)})
    for flag in (*FLAGS, f"user-data-dir={profile}", *flags):
        options.add_argument("--" + flag)
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


def forbidden(driver) -> list[str]:
    """What a page's own policy kept it from doing."""
    return [
        line["message"]
        for line in driver.get_log("browser")
        if "Content Security Policy" in line["message"]
    ]


def find(driver, css: str, seconds: float = 60):
    return _shown(driver, By.CSS_SELECTOR, css, seconds)


def button(driver, text: str):
    return _shown(driver, By.XPATH, f"//button[normalize-space()='{text}']", 60)


def unfold(driver, section: str) -> None:
    """Open a section of the form, which may be open already, and wait until its fields have
    unfolded."""

    def unfolded(_) -> bool:
        header = button(driver, section)
        if header.get_attribute("aria-expanded") != "true":
            driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", header)
            header.click()
            return False
        content = driver.find_elements(By.ID, header.get_attribute("aria-controls") or "")
        return bool(content) and content[0].is_displayed() and bool(content[0].text)

    moving = [ElementClickInterceptedException, StaleElementReferenceException]
    WebDriverWait(driver, 30, poll_frequency=1, ignored_exceptions=moving).until(
        unfolded, f"{section} unfolds"
    )


def _shown(driver, by: str, what: str, seconds: float):
    # a page that is live draws its parts anew
    wait = WebDriverWait(driver, seconds, ignored_exceptions=[StaleElementReferenceException])
    return wait.until(
        lambda d: next((e for e in d.find_elements(by, what) if e.is_displayed()), None), what
    )
