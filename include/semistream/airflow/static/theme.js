// Takes Airflow's theme (its UI keeps "light", "dark" or "system" under this name) before anything is drawn, and follows it.
const dark = matchMedia("(prefers-color-scheme: dark)");

function takeTheme() {
  let theme = null;
  try { theme = localStorage.getItem("theme"); } catch { /* storage is forbidden: the system's theme */ }
  if (theme !== "light" && theme !== "dark") theme = dark.matches ? "dark" : "light";
  document.documentElement.dataset.theme = theme;
  dispatchEvent(new Event("theme"));
}

takeTheme();
dark.addEventListener("change", takeTheme);
addEventListener("storage", (event) => { if (event.key === "theme") takeTheme(); });
