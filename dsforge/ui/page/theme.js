// The colour theme, set before the first paint: as the system, light or dark.
"use strict";
{
  let kept = "auto";
  try {
    kept = localStorage.getItem("dsforge-theme") ?? "auto";
  } catch {
    // no storage: as the system
  }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
}
