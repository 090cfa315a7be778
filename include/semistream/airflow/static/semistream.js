// Shows what changes anew every five seconds; and when that fails, why, and how old the page is.
const live = document.getElementById("live"), stale = document.getElementById("stale");
let shown = Date.now();

async function renew() {
  const answer = await fetch(live.dataset.url, { signal: AbortSignal.timeout(10000) });
  if (!answer.ok) {
    throw new Error(answer.status === 401 || answer.status === 403 ? "Nobody is logged in any more"
                                                                   : `Airflow answers with error ${answer.status}`);
  }
  const html = await answer.text();
  if (document.activeElement?.tagName !== "BUTTON") live.innerHTML = html;  // else a click would meet another one
  shown = Date.now();
  stale.hidden = true;
}

async function follow() {
  try {
    await renew();
  } catch (error) {
    const why = error instanceof TypeError || error.name === "TimeoutError" ? "Airflow does not answer" : error.message;
    stale.textContent = `${why}. What is shown here is ${Math.round((Date.now() - shown) / 1000)} s old.`;
    stale.hidden = false;
  }
  setTimeout(follow, 5000);
}

setTimeout(follow, 5000);
