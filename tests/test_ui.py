"""The trigger form and the page "Semistream" in a real browser."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    StaleElementReferenceException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from airflow_server import wait_until
from semistream.paths import Paths
from semistream.pipeline import steps
from semistream.streaming.status import read_status
from test_operator import rows_read, running

FLAGS = ("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
         "disable-background-networking",
         "disable-component-update", "disable-sync", "window-size=1400,1400")
pytestmark = pytest.mark.timeout(600)


def chromium(profile: Path) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"user-data-dir={profile}"):
        options.add_argument("--" + flag)
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


@pytest.fixture(scope="module")
def browser(airflow_server, tmp_path_factory):
    driver = chromium(tmp_path_factory.mktemp("browser"))
    driver.get(airflow_server.url + "/")
    find(driver, "input[name=username]").send_keys("admin")
    find(driver, "input[name=password]").send_keys(airflow_server.password)
    find(driver, "button[type=submit]").click()
    find(driver, "a[href*='/plugin/semistream']")
    yield driver
    driver.quit()


@pytest.fixture
def shot(browser, tmp_path):
    """Takes a screenshot, kept in the test's directory, and fails on a blank page, or one that has
    what it does not allow."""

    def take(name: str) -> None:
        file = tmp_path / f"{name}.png"
        assert browser.save_screenshot(str(file)) and file.stat().st_size > 10_000
        assert forbidden(browser) == []

    return take


def forbidden(driver) -> list[str]:
    """What a page's own policy kept it from doing."""
    return [line["message"] for line in driver.get_log("browser")
            if "Content Security Policy" in line["message"]]


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
    WebDriverWait(driver, 30, poll_frequency=1,
                  ignored_exceptions=moving).until(unfolded, f"{section} unfolds")


def _shown(driver, by: str, what: str, seconds: float):
    wait = WebDriverWait(driver, seconds)
    return wait.until(
        lambda d: next((e for e in d.find_elements(by, what) if e.is_displayed()), None), what)


def open_form(browser, server, dag: str):
    browser.get(f"{server.url}/dags/{dag}")
    find(browser, "[data-testid=trigger-dag-button]").click()
    return find(browser, "[role=dialog]")


def test_form_shows_every_parameter_with_its_description(airflow_server, browser, shot):
    from semistream.streaming.settings import LoadSettings

    dialog = open_form(browser, airflow_server, "semi_stream_load")
    shown = ""
    for section in ("Data", "Join", "Rows", "Stop policy", "Source", "Failure"):
        unfold(browser, section)
        shown += dialog.text
        shot(section)
    assert {name for name in LoadSettings.model_fields
            if name not in shown} == {"checkpoint", "reason"}
    assert LoadSettings.model_fields["stop_after"].description in shown


def test_form_triggers_a_run(airflow_server, browser, provisioned):
    """Its defaults are valid: only the job is filled in."""
    before = len(airflow_server.runs("provision_master_data"))
    open_form(browser, airflow_server, "provision_master_data")
    unfold(browser, "Data")
    field = find(browser, "[role=dialog] input[name='element_job']")
    field.click()
    browser.execute_script("arguments[0].select()", field)
    field.send_keys(str(provisioned.file))
    find(browser, "[role=dialog]").find_elements(
        By.XPATH, ".//button[normalize-space()='Trigger']")[-1].click()
    wait_until(lambda: len(airflow_server.runs("provision_master_data")) == before + 1,
               "the run exists", 60)


def in_page(browser, server) -> None:
    browser.switch_to.default_content()
    browser.get(f"{server.url}/plugin/semistream")
    browser.switch_to.frame(find(browser, "iframe"))


def test_page_shows_loads_ledger_and_proof_and_opens_the_report(
        airflow_server, browser, shot, provisioned):
    in_page(browser, airflow_server)
    assert "small" in find(browser, "#apps").text and "stopped" in find(browser, "#apps").text
    assert "fact_small" in find(browser, "#ledger").text
    assert "complete" in find(browser, "#quality").text
    shot("page")
    find(browser, "#quality a").click()
    browser.switch_to.frame(find(browser, "iframe"))
    assert "small" in find(browser, "body").text
    browser.switch_to.default_content()
    shot("report")
    browser.switch_to.frame(find(browser, "iframe"))
    find(browser, "nav a").click()
    find(browser, "#apps")
    browser.switch_to.default_content()


def test_page_links_the_latest_tuning_report(airflow_server, browser, shot, provisioned):
    """The report itself, of points that no app has measured."""
    home = airflow_server.home
    places = Paths(home=home, warehouse_url=airflow_server.environment["WAREHOUSE_URL"])
    run = "manual__2026-01-01"
    form = {"job": str(provisioned.file), "memory": "500KB", "algorithms": ["meshjoin"], "grid": 1,
            "partitions": 1}
    for point in steps.sweep_points(form, run, places):
        steps.sweep_record(point, run, places)
    steps.sweep_publish(run, places)
    in_page(browser, airflow_server)
    assert "manual__2026-01-01 small" in find(browser, "#tuning").text
    shot("tuning")
    link = find(browser, "#tuning a")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", link)
    link.click()
    browser.switch_to.frame(find(browser, "iframe"))
    # what auto would choose is one of them
    assert re.match(r"(\d+) points, \1 failed", find(browser, "#outcome").text)
    browser.switch_to.default_content()
    shot("sweep")


def test_button_drains_a_running_load(airflow_server, browser, shot, provisioned):
    checkpoint = airflow_server.home / "checkpoints" / "button"
    run = airflow_server.trigger("semi_stream_load", job=str(provisioned.file), app="button",
                                 memory="1MB", trigger="1 second")
    wait_until(lambda: running(checkpoint) and rows_read(checkpoint) >= 1000, "it runs", 300)
    in_page(browser, airflow_server)
    find(browser, "form[action$='/apps/button/stop'] button")
    shot("running")
    find(browser, "form[action$='/apps/button/stop'] button").click()
    wait_until(lambda: read_status(checkpoint).state == "stopped", "it drained", 120)
    wait_until(lambda: airflow_server.state("semi_stream_load", run) == "success",
               "the run succeeded", 120)
    browser.switch_to.default_content()


@pytest.mark.parametrize("path", ["/", "/live", "/reports/index.html", "/report/index.html"])
def test_page_is_closed_to_strangers(airflow_server, path):
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(airflow_server.url + "/semistream" + path)


def test_stop_is_closed_to_strangers_and_to_other_sites(airflow_server):
    url = airflow_server.url + "/semistream/apps/small/stop"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(urllib.request.Request(url, method="POST"))
    airflow_server.call("/api/v2/dags")
    headers = {"Cookie": f"_token={airflow_server.token}", "Origin": "http://elsewhere.example"}
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(urllib.request.Request(url, method="POST", headers=headers))


@pytest.mark.parametrize("path", ["..%2Fwarehouse.db", "%2Fetc%2Fpasswd", "nothing.html"])
def test_reports_serve_nothing_else(airflow_server, path):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        airflow_server.call(f"/semistream/reports/{path}")


def test_unknown_app_cannot_be_stopped(airflow_server):
    airflow_server.call("/api/v2/dags")
    headers = {"Cookie": f"_token={airflow_server.token}", "Origin": airflow_server.url}
    url = airflow_server.url + "/semistream/apps/nothing/stop"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(urllib.request.Request(url, method="POST", headers=headers))
    assert not Path(airflow_server.home / "checkpoints" / "nothing").exists()
