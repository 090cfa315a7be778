"""The report of a verification in a browser."""

from __future__ import annotations

from browser import chromium
from loads import until
from sink_loads import BATCHES, ON_SQLITE, change, check

CUT = """return [...document.querySelectorAll('td, th, svg, pre, dd, p')]
    .filter(e => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth)
    .map(e => e.outerHTML)"""


@ON_SQLITE
def test_report_in_a_browser_offline(loader, tmp_path):
    loader.load(range(BATCHES))
    good = check(loader)
    assert good.success
    with loader.engine.begin() as connection:
        change(connection, "DELETE FROM fact_sales WHERE order_id = 20")
        change(
            connection,
            "UPDATE fact_sales SET name = '<script>document.title = 1</script>' "
            "WHERE order_id = 41",
        )
    result = check(loader)
    browser = chromium(tmp_path / "browser", "host-resolver-rules=MAP * ~NOTFOUND")
    try:
        browser.get(result.index.as_uri())
        rows = browser.find_elements("css selector", "tbody tr")
        assert ["complete" in r.text for r in rows] == [True, True]
        assert "not complete" in rows[0].text
        rows[0].find_element("tag name", "a").click()
        verdict = browser.find_element("tag name", "h1").text
        assert verdict == "sales is not complete: 5 of 24 checks fail."
        assert browser.title == "sales: 5 failed"
        covered = browser.find_element("class name", "covered").text
        assert "0 to 2, all" in covered
        assert "3: orders-0.parquet, orders-1.parquet, orders-2.parquet" in covered
        shown = browser.find_element("id", "none_missing").text
        assert "Every stream tuple has arrived" in shown
        assert "Tuples of the source are neither in fact_sales nor in unmatched" in shown
        assert "\nsemistream reset sales\n" in shown
        assert "source batch order id\n0 20\n" in shown
        cards = browser.find_elements("css selector", "section.card")
        assert [c.get_attribute("id") for c in cards] == [r.name for r in result.failed]
        [flow] = browser.find_elements("css selector", "#completeness svg")
        assert flow.text.split("\n") == [
            "matched 156 (86.7%)",
            "no match 12 (6.7%)",
            "null key 12 (6.7%)",
            "180 read",
        ]
        assert flow.accessible_name.startswith("sales: 180 read; 156 matched; 12 no match")
        trends = browser.find_elements("css selector", "#loads svg")
        assert ["of the last 1 load," in t.accessible_name for t in trends] == [True, True]
        browser.find_element("css selector", "#none_missing .csv").click()
        kept = tmp_path / "browser" / "sales-none_missing.csv"
        until(kept.exists, what="a download")
        assert kept.read_text().split() == ["source_batch,order_id", "0,20"]
        assert "<script>" in browser.find_element("id", "sample_joined").text
        loaded = browser.execute_script(
            "return performance.getEntriesByType('resource').map(e => e.name)"
        )
        assert [u for u in loaded if not u.startswith(("data:", "file:"))] == []
        color = browser.execute_script(
            "return getComputedStyle(document.querySelector('.tag.bad')).backgroundColor"
        )
        assert color not in ("rgba(0, 0, 0, 0)", "rgb(255, 255, 255)")
        changes = browser.find_element("id", "changes")
        assert "Nothing was loaded." in changes.text and "were changed since" in changes.text
        for width, media in ((360, "screen"), (703, "print")):  # 186 mm: of A4, without margins
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width
        assert browser.execute_script(CUT) == []
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        browser.find_element("link text", "its report").click()
        assert browser.current_url == good.report.as_uri()
        verdict = browser.find_element("tag name", "h1").text
        assert verdict == (
            "sales is complete: of 180 rows read, 156 are matched, 24 are unmatched, and none "
            "waits."
        )
        browser.find_element("link text", "All verifications").click()
        assert browser.find_element("tag name", "h1").text == "Data quality of the warehouse"
    finally:
        browser.quit()
